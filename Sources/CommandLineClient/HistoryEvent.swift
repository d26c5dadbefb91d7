import ExternalText
import JSON
import OAuth

/// An event as the broker has sent it.
struct HistoryEvent: Sendable {
    /// The broker's place for it, at which the reading can go on.
    let id: String
    /// `credentials.updated`, for one.
    let kind: String
    private let members: JSONValue

    /// Nil for what is no event of a broker.
    init?(_ event: ServerSentEvents.Event) {
        guard let members = try? JSONValue(parsing: event.data), members.object != nil else { return nil }
        id = event.id
        kind = event.name
        self.members = members
    }

    private func text(_ member: WireText) -> String? { members[member]?.string?.text }

    var tenant: String? { text("tenant") }
    var storageKey: String? { text("storage_key") }
    var userID: String? { text("user_id") }
    /// The same in all events of one renewal.
    var refreshID: String? { text("refresh_id") }
    var writtenTime: String { text("time") ?? "-" }
    var time: Timestamp? { text("time").flatMap { Timestamp(rfc3339: $0) } }

    /// Why it happened.
    var cause: String {
        let cause = text("cause") ?? text("trigger") ?? text("flow") ?? "-"
        return text("reason").map { "\(cause) (\($0))" } ?? cause
    }

    /// The broker's code, and what the provider has called it.
    var problem: String {
        let words = [
            text("error"), text("error_code"), members["status"]?.integer.map { "status \($0)" },
            text("retry_at").map { "again at \($0)" },
        ]
        let known = words.compactMap(\.self)
        return known.isEmpty ? "-" : known.joined(separator: ", ")
    }

    /// The event's members as the broker has written them, with its identifier and its kind, in one line.
    var json: [UInt8] {
        JSONWriter.object { writer in
            writer.member("id", id)
            writer.member("event", kind)
            for (name, value) in (members.object ?? [:]).sorted(by: { $0.key < $1.key })
            where name != "id" && name != "event" {
                writer.member(name.text, value)
            }
        }
    }

    /// The kinds that a broker keeps.
    static let kinds = [
        "credentials.updated", "credentials.deauthorized", "credentials.subject_changed", "credentials.degraded",
        "credentials.held", "credentials.recovered", "credentials.expiring", "provider.degraded", "provider.recovered",
        "revocation.failed", "login.completed", "login.failed", "session.started", "session.ended", "app2app.approved",
        "app2app.rejected", "refresh.started", "refresh.refreshing_access_token", "refresh.refreshed_access_token",
        "refresh.fetching_jwks", "refresh.fetched_jwks", "refresh.verifying_access_token",
        "refresh.verifying_refresh_token", "refresh.saving_tokens", "refresh.succeeded", "refresh.failed",
    ]

    /// What several kinds begin with.
    static let groups = ["credentials", "provider", "login", "session", "app2app", "refresh"]

    /// That something is missing before it.
    var isReset: Bool { kind == "stream.reset" }
}

/// Which events are wanted.
struct EventFilter: Sendable {
    /// The kinds that tell of an end.
    private static let ends: Set = ["credentials.deauthorized", "credentials.held", "session.ended"]

    private let types: Set<String>
    private let onlyEnds: Bool
    /// The renewal that has brought the last end. Its failure is told behind it.
    private var endingRefresh: String?
    private let since: Timestamp?
    private let until: Timestamp?
    /// Nil for all.
    private let storageKeys: Set<String>?
    private let user: String?
    /// The user's storage keys; most events name no user. They grow with the events that do.
    private var keysOfUser: Set<String>

    /// - Parameters:
    ///   - types: kinds, and what kinds begin with; empty for all.
    ///   - onlyEnds: only what tells that a session has ended or is held, and why.
    ///   - storageKeys: empty for all.
    ///   - user: whose events are wanted; nil for those of all.
    ///   - keysOfUser: the storage keys that the user has now.
    init(
        types: [String] = [], onlyEnds: Bool = false, since: Timestamp? = nil, until: Timestamp? = nil,
        storageKeys: [String] = [],
        user: String? = nil, keysOfUser: [String] = []
    ) {
        self.types = Set(types)
        self.onlyEnds = onlyEnds
        self.since = since
        self.until = until
        self.storageKeys = storageKeys.isEmpty ? nil : Set(storageKeys)
        self.user = user
        self.keysOfUser = Set(keysOfUser)
    }

    mutating func includes(_ event: HistoryEvent) -> Bool {
        if let user, !belongs(event, to: user) { return false }
        if onlyEnds, !tellsOfEnd(event) { return false }
        guard types.isEmpty || types.contains(event.kind) || types.contains(String(event.kind.prefix { $0 != "." }))
        else {
            return false
        }
        if since != nil || until != nil {
            guard let time = event.time, since.map({ $0 <= time }) ?? true, until.map({ time <= $0 }) ?? true else {
                return false
            }
        }
        guard let storageKeys else { return true }
        return event.storageKey.map(storageKeys.contains) ?? false
    }

    private mutating func tellsOfEnd(_ event: HistoryEvent) -> Bool {
        if Self.ends.contains(event.kind) {
            endingRefresh = event.refreshID
            return true
        }
        return event.kind == "refresh.failed" && endingRefresh != nil && event.refreshID == endingRefresh
    }

    private mutating func belongs(_ event: HistoryEvent, to user: String) -> Bool {
        guard let named = event.userID else { return event.storageKey.map(keysOfUser.contains) ?? false }
        if named == user, let key = event.storageKey { keysOfUser.insert(key) }
        return named == user
    }
}
