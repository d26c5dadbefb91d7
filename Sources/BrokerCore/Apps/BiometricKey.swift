package import CredentialStore
import Cryptography
package import ExternalText
import JSON
package import OAuth

/// A key that a device guards by biometrics: who has it can log in to the app as its user. Lives until the user's login or the
/// client ends, or an operator ends the session that has it.
package struct BiometricKey: Sendable, Equatable {
    /// The identifier within the key, unique in the tenant.
    package let keyID: WireText
    /// The public key as JSON (RFC 7517).
    let jwk: [UInt8]
    package let thumbprint: String
    package let clientID: String
    package let storageKey: StorageKey
    package let userID: WireText?
    /// `HeldCredentials.loggedInSince` of the login that it belongs to; nil in records of earlier builds.
    let login: Timestamp?
    package let created: Timestamp
    package let deviceInfo: [UInt8]?

    static func recordID(_ id: CredentialsID, _ keyID: WireText) -> RecordID {
        RecordID(.biometricKey, id.tenant, key: PendingSessionEnding.keyPrefix(of: id.storageKey) + keyID.text)
    }

    /// By what the key is found of which only the identifier is known.
    static func lookup(_ tenant: TenantName, _ keyID: WireText) -> [UInt8] {
        SHA256.digest(Array((tenant.description + "/" + keyID.text).utf8))
    }

    package func record(_ tenant: TenantName, version: Int64) -> OpenRecord {
        let id = CredentialsID(tenant: tenant, storageKey: storageKey)
        return OpenRecord(
            id: Self.recordID(id, keyID), version: version, content: SecretBytes(encoded),
            lookup: Self.lookup(tenant, keyID))
    }

    var owner: AppOwner { AppOwner(userID: userID, login: login, created: created) }

    /// Whether the key was set up by this client for the same storage key.
    func isBeside(_ session: AppSession) -> Bool {
        WireText(clientID) == WireText(session.clientID) && storageKey == session.storageKey
    }

    private var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("key_id", keyID.text)
            json.member("jwk", String(decoding: jwk, as: UTF8.self))
            json.member("thumbprint", thumbprint)
            json.member("client_id", clientID)
            json.member("storage_key", storageKey.description)
            json.memberIfPresent("user_id", userID?.text)
            json.memberIfPresent("login", login?.milliseconds)
            json.member("created", created.milliseconds)
            json.memberIfPresent("device_info", deviceInfo.map { String(decoding: $0, as: UTF8.self) })
        }
    }

    init(
        keyID: WireText, _ key: AppSession.DeviceKey, of session: AppSession, created: Timestamp, deviceInfo: [UInt8]?
    ) {
        self.keyID = keyID
        (jwk, thumbprint) = (key.jwk, key.thumbprint)
        clientID = session.clientID
        storageKey = session.storageKey
        userID = session.userID
        login = session.login
        self.created = created
        self.deviceInfo = deviceInfo
    }

    /// Throws `.damaged` where this build cannot read the record.
    package init(_ record: OpenRecord) throws(StoreError) {
        guard let json = try? JSONValue(parsing: record.content.revealedBytes), let keyID = json["key_id"]?.string,
            let jwk = json["jwk"]?.string, let thumbprint = json["thumbprint"]?.string?.text,
            let clientID = json["client_id"]?.string?.text,
            let storageKey = json["storage_key"]?.string.flatMap({ StorageKey($0) }),
            let created = json["created"]?.integer
        else { throw .damaged("a biometric key of tenant \(record.id.tenant) cannot be read by this version") }
        self.keyID = keyID
        self.jwk = Array(jwk.utf8)
        self.thumbprint = thumbprint
        self.clientID = clientID
        self.storageKey = storageKey
        userID = json["user_id"]?.string
        login = json["login"]?.integer.map { Timestamp(milliseconds: $0) }
        self.created = Timestamp(milliseconds: created)
        deviceInfo = json["device_info"]?.string.map { Array($0.utf8) }
    }
}
