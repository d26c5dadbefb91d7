import ExternalText
import HTTPCodec
import JSON

/// What tables show of a user's session, in the same words for one user and for all.
struct ShownSession {
    /// One of the states of `token-broker list`, or `logged out`.
    private(set) var state: String
    /// When the session ended; nil where it has not, and where the broker does not know it.
    private let ended: String?
    private let cause: String?

    /// Whether its credentials are kept aside, so that they can be restored.
    var isKept: Bool { state == Self.kept }

    private static let kept = "quarantined"

    /// Of an entry of `GET /credentials/list`.
    init(listed entry: JSONValue) {
        self.init(
            state: entry["state"]?.string?.text, level: entry["level"]?.string?.text, ended: entry["ended"],
            cause: entry["cause"])
    }

    /// Of `GET /credentials/status`.
    /// - Parameter session: the member `session` of `GET /credentials`.
    private init(status: JSONValue, session: JSONValue?) {
        self.init(
            state: status["state"]?.string?.text, level: status["level"]?.string?.text, ended: session?["ended"],
            cause: session?["cause"])
    }

    private init(state: String?, level: String?, ended: JSONValue?, cause: JSONValue?) {
        self.ended = ended?.string?.text
        self.cause = cause?.string?.text
        switch state {
        // No user has logged in; a client may have a token of its own.
        case nil: self.state = level == "client" ? "active" : "logged out"
        // A session that ended otherwise than by a logout has a time.
        case "ended"? where self.ended == nil: self.state = "logged out"
        case let state?: self.state = state
        }
    }

    /// Reads what the broker's answer about one user does not have: when and why the session ended, and whether its credentials are
    /// kept. That is known only to keys that may restore them.
    static func read(_ status: JSONValue, of user: CommandUser) async throws(CommandError) -> ShownSession {
        guard status["state"]?.string == "ended" else { return ShownSession(status: status, session: nil) }
        let key = (name: "storage_key", value: user.storageKey)
        let answer = try await user.api.send(
            .init(.get, "/credentials", query: [key, ("policy", "local")], expected: [404, 424]))
        var shown = ShownSession(status: status, session: try answer.json()["session"])
        let body = JSONWriter.object { json in
            json.member("storage_keys", [user.storageKey])
            json.member("dry_run", true)
        }
        let trial = try await user.api.send(.init(.post, "/credentials/restore", json: body, expected: [401, 403]))
        if trial.status.code == 200, try trial.json()["outcomes"]?.array?.first?["outcome"]?.string == "restored" {
            shown.state = kept
        }
        return shown
    }

    /// When it ended, and why, in one cell.
    var end: String {
        guard let ended else { return "-" }
        return ended + (cause.map { " (\($0))" } ?? "")
    }

    /// The same in a sentence, with a colon before it; empty where it is not known.
    var endWords: String {
        guard let ended else { return "" }
        return ": the session ended at \(TextTable.shown(ended))" + (cause.map { " (\(TextTable.shown($0)))" } ?? "")
            + (isKept ? ", and is kept aside" : "")
    }
}
