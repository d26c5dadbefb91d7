package import CredentialStore
package import Cryptography
package import ExternalText
import JSON
package import OAuth

/// An authorization code for an app (RFC 6749 §4.1.2): what it was issued for, and the session that was made of it.
package struct AppCode: Sendable, Equatable {
    /// For how long a code is valid.
    package static let validity: Duration = .seconds(300)
    /// For how long after its issue a second use is told from an unknown code.
    static let memory: Duration = .seconds(3600)

    let tenant: TenantName
    let clientID: String
    let redirectURI: String
    /// Whether the exchange must name the redirect URI, because the request for the code did (RFC 6749 §4.1.3).
    let mustNameRedirectURI: Bool
    /// Of the method S256 (RFC 7636 §4.2).
    let codeChallenge: WireText
    let storageKey: StorageKey
    let userID: WireText?
    /// `HeldCredentials.loggedInSince` of the login that it was issued for; nil in records of earlier builds.
    let login: Timestamp?
    let issued: Timestamp
    /// The session that let the app in, without which the code is good for nothing; nil for the code of a login.
    let origin: String?
    /// The session that the code was used for; nil for an unused code.
    var session: String?

    package init(
        for client: (tenant: TenantName, id: String), redirectURI: String, mustNameRedirectURI: Bool,
        codeChallenge: WireText,
        of id: CredentialsID, userID: WireText?, login: Timestamp?, origin: String? = nil, now: Timestamp
    ) {
        tenant = client.tenant
        clientID = client.id
        self.redirectURI = redirectURI
        self.mustNameRedirectURI = mustNameRedirectURI
        self.codeChallenge = codeChallenge
        storageKey = id.storageKey
        self.userID = userID
        self.login = login
        self.origin = origin
        issued = now
    }

    var credentialsID: CredentialsID { CredentialsID(tenant: tenant, storageKey: storageKey) }
    var owner: AppOwner { AppOwner(userID: userID, login: login, created: issued) }
    var expires: Timestamp { issued.advanced(by: Self.validity) }

    /// 256 random bits as text.
    package static func secret() throws(BrokerError) -> SecretBytes {
        do {
            return SecretBytes(utf8: Base64URL.encode(try SecureRandom.bytes(32)))
        } catch {
            throw BrokerError(.internalError, "The system's random source failed.")
        }
    }

    /// The identity of a code's record, which has only the code's digest.
    static func recordID(_ tenant: TenantName, code: Span<UInt8>) -> RecordID {
        RecordID(.code, tenant, key: Base64URL.encode(SHA256.digest(code)))
    }

    /// The change that issues a code.
    package func insertion(as code: SecretBytes) -> VaultChange {
        .insert(record(Self.recordID(tenant, code: WireText(code.revealedText).utf8.span), version: 1))
    }

    package func record(_ id: RecordID, version: Int64) -> OpenRecord {
        OpenRecord(
            id: id, version: version, content: SecretBytes(encoded), expires: issued.advanced(by: Self.memory))
    }

    private var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("client_id", clientID)
            json.member("redirect_uri", redirectURI)
            json.member("must_name_redirect_uri", mustNameRedirectURI)
            json.member("code_challenge", codeChallenge.text)
            json.member("storage_key", storageKey.description)
            json.memberIfPresent("user_id", userID?.text)
            json.memberIfPresent("login", login?.milliseconds)
            json.member("issued", issued.milliseconds)
            json.memberIfPresent("origin", origin)
            json.memberIfPresent("session", session)
        }
    }

    /// Throws `.damaged` where this build cannot read the record.
    package init(_ record: OpenRecord) throws(StoreError) {
        guard let json = try? JSONValue(parsing: record.content.revealedBytes),
            let clientID = json["client_id"]?.string?.text, let redirectURI = json["redirect_uri"]?.string?.text,
            let mustName = json["must_name_redirect_uri"]?.bool, let challenge = json["code_challenge"]?.string,
            let storageKey = json["storage_key"]?.string.flatMap({ StorageKey($0) }),
            let issued = json["issued"]?.integer
        else { throw .damaged("a code of tenant \(record.id.tenant) cannot be read by this version") }
        tenant = record.id.tenant
        self.clientID = clientID
        self.redirectURI = redirectURI
        mustNameRedirectURI = mustName
        codeChallenge = challenge
        self.storageKey = storageKey
        userID = json["user_id"]?.string
        login = json["login"]?.integer.map { Timestamp(milliseconds: $0) }
        self.issued = Timestamp(milliseconds: issued)
        origin = json["origin"]?.string?.text
        session = json["session"]?.string?.text
    }
}

extension AppCode {
    /// RFC 7636 §4.1.
    private static let verifierLengths = 43...128

    /// Whether the request comes from the app that the code was issued to (RFC 6749 §4.1.3, RFC 7636 §4.6).
    func verify(_ exchange: AppGrants.Exchange) throws(AppError) {
        let isSameURI = exchange.redirectURI.map { $0 == WireText(redirectURI) } ?? !mustNameRedirectURI
        guard isSameURI else { throw AppError(.invalidGrant, "invalid redirect URI") }
        guard let verifier = exchange.codeVerifier else {
            throw AppError(.invalidRequest, "PKCE code verifier is required")
        }
        let isVerifier =
            Self.verifierLengths.contains(verifier.count)
            && verifier.utf8.allSatisfy {
                $0.isDigit || $0.isLowercaseLetter || $0.isUppercaseLetter || "-._~".utf8.contains($0)
            }
        let challenge = Array(Base64URL.encode(SHA256.digest(verifier.utf8.span)).utf8)
        guard isVerifier, ConstantTime.equal(challenge, Array(codeChallenge.utf8)) else { throw .invalidCode }
    }
}
