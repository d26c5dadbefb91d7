internal import BrokerCore
internal import ExternalText
internal import HTTPCodec
internal import HTTPServer
internal import JSON
internal import OAuth

/// `/tenants/{tenant}/sessions`, for the admin: the sessions of apps.
struct AppSessionRoutes {
    private let broker: Broker
    private var apps: AppGrants { broker.core.apps }

    init(_ broker: Broker) {
        self.broker = broker
    }

    var all: [Route] {
        [
            Route(.get, "/tenants/{tenant}/sessions", .admin, list),
            Route(.delete, "/tenants/{tenant}/sessions/{session_id}", .admin, delete),
        ]
    }

    /// How many sessions one call reads at most while it looks for those of a client. A page can have fewer than its limit, and
    /// a cursor all the same.
    private static let mostRead = 5000

    private func list(_ call: Call) async throws(BrokerError) -> Response {
        var query = try call.query()
        let page = Page(&query)
        let storageKey = query.value("storage_key", rule: StorageKey.rule) { StorageKey($0) }
        let clientID = query.value("client_id", rule: "must be a client's identifier") {
            AppClient.isID($0) ? $0 : nil
        }
        try query.finish()
        let tenant = try await broker.tenantNamed(in: call)
        let after = try page.after { Self.isID($0) ? $0.text : nil }
        let (found, next) = try await apps.list(
            of: tenant, storageKey: storageKey, clientID: clientID, after: after, limit: page.limit,
            reading: Self.mostRead)
        return await Page.answer(found.count) { json in
            json.name("sessions")
            json.array { json in
                for (session, end) in found { json.object { Self.encode(session, end, to: &$0) } }
            }
            if let next { json.member("next_cursor", Page.cursor(after: next)) }
        }
    }

    private func delete(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let tenant = try await broker.tenantNamed(in: call)
        let id = call.parameters["session_id"] ?? ""
        guard Self.isID(id), try await apps.end(session: id.text, of: tenant) else {
            throw BrokerError(.notFound, "The tenant has no session of this identifier.")
        }
        return .empty(.noContent)
    }

    /// Whether a text has the form of a session's identifier.
    private static func isID(_ text: WireText) -> Bool {
        text.count == 45
            && text.utf8.allSatisfy {
                $0.isDigit || $0.isLowercaseLetter || $0.isUppercaseLetter || "-_.".utf8.contains($0)
            }
    }

    private static func encode(_ session: AppSession, _ end: Timestamp, to json: inout JSONWriter) {
        json.member("session_id", session.id)
        json.member("client_id", session.clientID)
        json.member("storage_key", session.storageKey.description)
        json.memberOrNull("user_id", session.userID?.text)
        json.member("created", session.created.description)
        json.member("last_used", session.lastUsed.description)
        json.member("expires", end.description)
        json.memberOrNull("device_key", session.deviceKey?.thumbprint)
        json.memberOrNull("biometric", session.biometricKey?.thumbprint)
        json.name("device_info")
        if let info = session.deviceInfo.flatMap({ try? JSONValue(parsing: $0) }) {
            json.value(info)
        } else {
            json.null()
        }
    }
}
