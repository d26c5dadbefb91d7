import BrokerCore
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth

/// `/tenants/{tenant}/sessions`, for the admin: the sessions of apps, and the biometric keys that begin such sessions.
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
            Route(.delete, "/tenants/{tenant}/biometric-keys/{key_id}", .admin, deleteKey),
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
        let place = try page.after { Self.place($0) }
        var (found, next): ([(AppSession, end: Timestamp)], String?) = ([], nil)
        // The keys follow all sessions.
        var keyPlace: String??
        switch place {
        case .key(let after): keyPlace = .some(after)
        case .session(let after):
            (found, next) = try await apps.list(
                of: tenant, storageKey: storageKey, clientID: clientID, after: after, limit: page.limit,
                reading: Self.mostRead)
            if next == nil { keyPlace = .some(nil) }
        case nil:
            (found, next) = try await apps.list(
                of: tenant, storageKey: storageKey, clientID: clientID, after: nil, limit: page.limit,
                reading: Self.mostRead)
            if next == nil { keyPlace = .some(nil) }
        }
        var keys: [BiometricKey] = []
        if let keyPlace {
            let (listed, nextKey) = try await apps.biometricKeys(
                of: tenant, storageKey: storageKey, clientID: clientID, after: keyPlace,
                limit: page.limit - found.count, reading: Self.mostRead)
            (keys, next) = (listed, nextKey.map { Self.keyMark + $0 })
        }
        return await Page.answer(found.count + keys.count) { [found, keys, next] json in
            json.name("sessions")
            json.array { json in
                for (session, end) in found { json.object { Self.encode(session, end, to: &$0) } }
            }
            json.name("biometric_keys")
            json.array { json in
                for key in keys { json.object { Self.encode(key, to: &$0) } }
            }
            if let next { json.member("next_cursor", Page.cursor(after: next)) }
        }
    }

    /// What a page follows.
    private enum Place {
        case session(String)
        /// Nil for the first key.
        case key(String?)
    }

    /// What the places of keys begin with, as no session's identifier does.
    private static let keyMark = "key:"

    private static func place(_ text: WireText) -> Place? {
        if text.starts(with: WireText(keyMark)) {
            let key = text.dropping(keyMark.utf8.count)
            return .key(key.isEmpty ? nil : key.text)
        }
        return isID(text) ? .session(text.text) : nil
    }

    private func deleteKey(_ call: Call) async throws(BrokerError) -> Response {
        try call.refuseQuery()
        let tenant = try await broker.tenantNamed(in: call)
        let keyID = call.parameters["key_id"] ?? ""
        guard !keyID.isEmpty, try await apps.removeBiometricKey(keyID, of: tenant) else {
            throw BrokerError(.notFound, "The tenant has no biometric key of this identifier.")
        }
        return .empty(.noContent)
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
        encode(deviceInfo: session.deviceInfo, to: &json)
    }

    private static func encode(_ key: BiometricKey, to json: inout JSONWriter) {
        json.member("key_id", key.keyID.text)
        json.member("thumbprint", key.thumbprint)
        json.member("client_id", key.clientID)
        json.member("storage_key", key.storageKey.description)
        json.memberOrNull("user_id", key.userID?.text)
        json.member("created", key.created.description)
        encode(deviceInfo: key.deviceInfo, to: &json)
    }

    private static func encode(deviceInfo: [UInt8]?, to json: inout JSONWriter) {
        json.name("device_info")
        if let info = deviceInfo.flatMap({ try? JSONValue(parsing: $0) }) {
            json.value(info)
        } else {
            json.null()
        }
    }
}
