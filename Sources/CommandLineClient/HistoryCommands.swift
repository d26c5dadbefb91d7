import ExternalText
import HTTPCodec
import JSON

/// Events, and sessions that are restored.
enum HistoryCommands {
    static let all = [events, restore]
}

/// What the broker lists about the credentials under one storage key.
struct ListedSet: Sendable {
    let storageKey: String
    let userID: String?
    let state: String
    let ended: String?
    let cause: String?
    /// The provider's, of the answer that has ended the session.
    let errorCode: String?
    let keptUntil: String?
    /// As the broker has written it.
    let json: JSONValue

    /// Of a storage key that no list shows.
    init(storageKey: String, state: String) {
        (self.storageKey, self.state) = (storageKey, state)
        (userID, ended, cause, errorCode, keptUntil) = (nil, nil, nil, nil, nil)
        json = .object([
            "storage_key": .string(WireText(storageKey)), "state": .string(WireText(state)),
        ])
    }

    init?(_ json: JSONValue) {
        guard let storageKey = json["storage_key"]?.string?.text, let state = json["state"]?.string?.text else {
            return nil
        }
        self.json = json
        self.storageKey = storageKey
        self.state = state
        func text(_ member: WireText) -> String? { json[member]?.string?.text }
        userID = text("user_id")
        ended = text("ended")
        cause = text("cause")
        errorCode = json["last_error"]?["error_code"]?.string?.text
        keptUntil = text("kept_until")
    }
}

extension BrokerAPI {
    /// The credentials of the tenant, of all pages.
    /// - Parameter state: only those in this state; nil for all.
    func listedSets(state: String? = nil) async throws(CommandError) -> [ListedSet] {
        let filter = state.map { [(name: "state", value: $0)] } ?? []
        return try await ListPages("/credentials/list", "credentials", filter: filter).elements(self)
            .compactMap { ListedSet($0) }
    }
}
