package import CredentialStore
import Cryptography
package import ExternalText
import JSON
package import OAuth

/// What an app holds in place of a provider's refresh token: the record of a broker session.
package struct AppSession: Cacheable, Equatable {
    /// The key of the app that its refresh token is bound to, or that lets other apps in.
    package struct DeviceKey: Sendable, Equatable {
        /// The public key as JSON (RFC 7517).
        package let jwk: [UInt8]
        /// Base64url of the SHA-256 thumbprint (RFC 7638).
        package let thumbprint: String

        package init(jwk: [UInt8], thumbprint: String) {
            self.jwk = jwk
            self.thumbprint = thumbprint
        }
    }

    /// The biometric key that was set up with the session.
    package struct BiometricKey: Sendable, Equatable {
        /// The key of its record.
        package let keyID: String
        package let thumbprint: String

        package init(keyID: String, thumbprint: String) {
            self.keyID = keyID
            self.thumbprint = thumbprint
        }
    }

    /// A refresh token that was replaced.
    struct Replaced: Sendable, Equatable {
        let secretDigest: [UInt8]
        let replaced: Timestamp
        /// The answer that had its successor, which a repeated request gets again.
        let answer: SecretBytes
    }

    package let tenant: TenantName
    /// The key of its record, which is its identifier for operators.
    package let id: String
    package internal(set) var version: Int64
    package let clientID: String
    package let storageKey: StorageKey
    /// The user who had logged in when the session began; nil where the provider told of none.
    package let userID: WireText?
    /// `HeldCredentials.loggedInSince` of the login that the session belongs to; nil in records of earlier builds until their
    /// next refresh.
    package internal(set) var login: Timestamp?
    package let created: Timestamp
    package internal(set) var lastUsed: Timestamp
    /// SHA-256 of the secret part of the refresh token.
    var secretDigest: [UInt8]
    /// How many refresh tokens of the session came before this one. 0 in records of earlier builds.
    var generation: UInt32
    /// The tokens that were replaced, the last one first: that one for as long as the session, and those before it for
    /// `Replaced.memory`, `Replaced.most` of them in all.
    private(set) var replaced: [Replaced] = []
    package var deviceKey: DeviceKey?
    package var biometricKey: BiometricKey?
    /// The key of the biometric key's record that the session was begun with; nil for another beginning.
    package let begunWith: String?
    /// What the app said of its device, as JSON; nil for nothing.
    package var deviceInfo: [UInt8]?

    /// Whether this is its refresh token.
    func has(_ token: AppSessionToken) -> Bool { ConstantTime.equal(secretDigest, token.secretDigest) }

    /// Where the token is in `replaced`; nil where it is not.
    func place(ofReplaced token: AppSessionToken) -> Int? {
        replaced.firstIndex { ConstantTime.equal($0.secretDigest, token.secretDigest) }
    }

    /// Whether the broker has issued the token for this session. A token that is known by its handle only may be garbled, and
    /// proves nothing. Earlier builds issued tokens without an authentication code, of which only those count that the session has.
    func hasIssued(_ token: AppSessionToken, by vault: Vault) -> Bool {
        has(token) || place(ofReplaced: token) != nil || token.isAuthentic(in: vault)
    }

    /// Notes that the present refresh token is replaced.
    mutating func replace(_ token: AppSessionToken, by next: AppSessionToken, answer: SecretBytes, at now: Timestamp) {
        let recent = replaced.filter { $0.replaced.duration(to: now) <= Replaced.memory }
        let last = Replaced(secretDigest: token.secretDigest, replaced: now, answer: answer)
        replaced = [last] + recent.prefix(Replaced.most - 1)
        (secretDigest, generation) = (next.secretDigest, next.generation)
    }

    package var recordID: RecordID { RecordID(.session, tenant, key: id) }
    package var credentialsID: CredentialsID { CredentialsID(tenant: tenant, storageKey: storageKey) }

    var owner: AppOwner { AppOwner(userID: userID, login: login, created: created) }

    init(
        of id: CredentialsID, client: AppClient, userID: WireText?, login: Timestamp?, token: AppSessionToken,
        now: Timestamp, version: Int64,
        deviceKey: DeviceKey? = nil, begunWith: String? = nil, deviceInfo: [UInt8]? = nil
    ) {
        tenant = id.tenant
        self.id = token.sessionID
        self.version = version
        clientID = client.clientID
        storageKey = id.storageKey
        self.userID = userID
        self.login = login
        (created, lastUsed) = (now, now)
        (secretDigest, generation) = (token.secretDigest, token.generation)
        self.deviceKey = deviceKey
        self.begunWith = begunWith
        self.deviceInfo = deviceInfo
    }

    /// - Parameter end: when the session ends unless it is used.
    package func record(end: Timestamp) -> OpenRecord {
        // The record outlives the session, so that `SessionEndings` tells of the end.
        OpenRecord(
            id: recordID, version: version, content: SecretBytes(encoded), lookup: Self.lookup(id),
            expires: end.advanced(by: .seconds(86_400)), due: end)
    }

    /// By what the session is found whose tenant is not known.
    static func lookup(_ id: String) -> [UInt8] { SHA256.digest(Array(id.utf8)) }
}

// MARK: - Stored

extension AppSession {
    var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("client_id", clientID)
            json.member("storage_key", storageKey.description)
            json.memberIfPresent("user_id", userID?.text)
            json.memberIfPresent("login", login?.milliseconds)
            json.member("created", created.milliseconds)
            json.member("last_used", lastUsed.milliseconds)
            json.member("secret_digest", Base64URL.encode(secretDigest))
            json.member("generation", Int64(generation))
            // An earlier build reads the first one only.
            if let last = replaced.first {
                json.name("previous")
                json.object { last.encode(to: &$0) }
            }
            if replaced.count > 1 {
                json.name("earlier")
                json.array { json in
                    for token in replaced.dropFirst() { json.object { token.encode(to: &$0) } }
                }
            }
            if let deviceKey {
                json.name("device_key")
                json.object { json in
                    json.member("jwk", String(decoding: deviceKey.jwk, as: UTF8.self))
                    json.member("thumbprint", deviceKey.thumbprint)
                }
            }
            if let biometricKey {
                json.name("biometric_key")
                json.object { json in
                    json.member("key_id", biometricKey.keyID)
                    json.member("thumbprint", biometricKey.thumbprint)
                }
            }
            json.memberIfPresent("begun_with", begunWith)
            json.memberIfPresent("device_info", deviceInfo.map { String(decoding: $0, as: UTF8.self) })
        }
    }

    /// Throws `.damaged` where this build cannot read the record.
    package init(_ record: OpenRecord) throws(StoreError) {
        guard let json = try? JSONValue(parsing: record.content.revealedBytes),
            let clientID = json["client_id"]?.string?.text,
            let storageKey = json["storage_key"]?.string.flatMap({ StorageKey($0) }),
            let created = json["created"]?.integer, let lastUsed = json["last_used"]?.integer,
            let digest = json["secret_digest"]?.string.flatMap({ Base64URL.decode($0.text) })
        else { throw .damaged("a session of tenant \(record.id.tenant) cannot be read by this version") }
        tenant = record.id.tenant
        id = record.id.key
        version = record.version
        self.clientID = clientID
        self.storageKey = storageKey
        userID = json["user_id"]?.string
        login = json["login"]?.integer.map { Timestamp(milliseconds: $0) }
        self.created = Timestamp(milliseconds: created)
        self.lastUsed = Timestamp(milliseconds: lastUsed)
        secretDigest = digest
        generation = json["generation"]?.integer.flatMap { UInt32(exactly: $0) } ?? 0
        let last = json["previous"].map { [$0] } ?? []
        replaced = (last + (json["earlier"]?.array ?? [])).compactMap { Replaced($0) }
        if let key = json["device_key"], let jwk = key["jwk"]?.string, let thumbprint = key["thumbprint"]?.string {
            deviceKey = DeviceKey(jwk: Array(jwk.utf8), thumbprint: thumbprint.text)
        }
        if let key = json["biometric_key"], let keyID = key["key_id"]?.string,
            let thumbprint = key["thumbprint"]?.string
        {
            biometricKey = BiometricKey(keyID: keyID.text, thumbprint: thumbprint.text)
        }
        begunWith = json["begun_with"]?.string?.text
        deviceInfo = json["device_info"]?.string.map { Array($0.utf8) }
    }
}

extension AppSession.Replaced {
    /// How many are kept at most. An app that refreshes faster is told from a thief by the last ones only.
    static let most = 16
    /// For how long a token before the last one is kept: it is repeated within ten seconds, or within a minute more by an app
    /// that was told to come again.
    static let memory: Duration = AppSessions.repetition + DeferredTokens.validity

    fileprivate func encode(to json: inout JSONWriter) {
        json.member("secret_digest", Base64URL.encode(secretDigest))
        json.member("replaced", replaced.milliseconds)
        json.member("answer", answer.revealedText)
    }

    /// Nil where this build cannot read it.
    fileprivate init?(_ json: JSONValue) {
        guard let digest = json["secret_digest"]?.string.flatMap({ Base64URL.decode($0.text) }),
            let replaced = json["replaced"]?.integer, let answer = json["answer"]?.string
        else { return nil }
        self.init(
            secretDigest: digest, replaced: Timestamp(milliseconds: replaced), answer: SecretBytes(utf8: answer.text))
    }
}

/// The refresh token of an app: a handle, which stays for as long as the session, and a secret, which each rotation replaces.
///
/// The handle is as secret as the rest. The secret has the token's generation, and the broker's authentication code: so an earlier
/// token of the session, which only a thief or its app can have, is told from one that was garbled on its way, and a token that a
/// store has lost, which is later than the one that it has, from an earlier one.
package struct AppSessionToken: Sendable {
    /// The token as the app has it.
    let text: SecretBytes
    /// The key of the session's record.
    package let sessionID: String
    let secretDigest: [UInt8]
    /// How many tokens of the session came before this one, as the token says.
    let generation: UInt32
    private let handle: [UInt8]
    private let secret: [UInt8]

    private static let label = "session token"
    private static let placeBytes = 16
    private static let handleBytes = 32
    private static let generationBytes = 4
    private static let randomBytes = 16
    private static let codeBytes = 12
    private static let secretBytes = generationBytes + randomBytes + codeBytes

    /// The token of a new session.
    init(for storageKey: StorageKey, in vault: Vault) throws(BrokerError) {
        let place = SHA256.digest(Array(storageKey.description.utf8)).prefix(Self.placeBytes)
        try self.init(handle: place + Self.random(Self.handleBytes), generation: 0, in: vault)
    }

    /// The next token of the same session.
    func rotated(in vault: Vault) throws(BrokerError) -> AppSessionToken {
        try AppSessionToken(handle: handle, generation: generation &+ 1, in: vault)
    }

    private init(handle: [UInt8], generation: UInt32, in vault: Vault) throws(BrokerError) {
        let message =
            [24, 16, 8, 0].map { UInt8(truncatingIfNeeded: generation >> $0) } + (try Self.random(Self.randomBytes))
        let code = vault.authenticationCode(of: handle + message, label: Self.label, count: Self.codeBytes)
        self.init(handle: handle, secret: message + code)
    }

    private init(handle: [UInt8], secret: [UInt8]) {
        self.handle = handle
        self.secret = secret
        secretDigest = SHA256.digest(secret)
        generation = secret.prefix(Self.generationBytes).reduce(0) { $0 << 8 | UInt32($1) }
        sessionID =
            Base64URL.encode(Array(handle.prefix(Self.placeBytes))) + "."
            + Base64URL.encode(Array(SHA256.digest(handle).prefix(16)))
        text = SecretBytes(utf8: Base64URL.encode(handle) + "." + Base64URL.encode(secret))
    }

    /// Reads a token; nil for a text that cannot be one.
    package init?(_ text: WireText) {
        let parts = text.split(at: ".", limit: 3)
        guard parts.count == 2, text.count < 200, let handle = Base64URL.decode(parts[0].text),
            handle.count == Self.placeBytes + Self.handleBytes, let secret = Base64URL.decode(parts[1].text),
            secret.count == Self.secretBytes
        else { return nil }
        self.init(handle: handle, secret: secret)
    }

    /// Whether a broker with these keys has issued it.
    func isAuthentic(in vault: Vault) -> Bool {
        let message = handle + secret.dropLast(Self.codeBytes)
        return vault.isAuthentic(Array(secret.suffix(Self.codeBytes)), of: message, label: Self.label)
    }

    private static func random(_ count: Int) throws(BrokerError) -> [UInt8] {
        do {
            return try SecureRandom.bytes(count)
        } catch {
            throw BrokerError(.internalError, "The system's random source failed.")
        }
    }
}
