import Cryptography
import ExternalText
import JOSE
import JSON
import OAuth

/// Makes the texts of tokens, those that are signed among them.
struct TokenMinter: Sendable {
    /// What an access token and a refresh token say.
    struct Content: Sendable {
        let clientID: String
        /// Nil for a token of the client itself.
        let user: ProviderUser?
        let scope: [String]
        /// The token family; nil for a token of the client itself.
        let family: Int?
        /// Milliseconds since 1970.
        let issuedAt: Int64
        /// Nil for a token that does not expire.
        let expiresAt: Int64?
    }

    /// What an ID token says beside its content.
    struct Login: Sendable {
        let nonce: String?
        let authenticatedAt: Int64
    }

    private(set) var keys = SigningKeys()
    /// A defect of the tokens that are made next.
    var defect: (token: SignedToken, defect: TokenDefect)?

    mutating func publishNextKey(_ configuration: ProviderConfiguration) {
        keys.publishNext(configuration.signingAlgorithm)
    }

    mutating func rotateKeys(_ configuration: ProviderConfiguration) { keys.rotate(configuration.signingAlgorithm) }

    mutating func publishedKeys(_ configuration: ProviderConfiguration) -> [(role: SigningKeys.Role, key: JSONWebKey)] {
        keys.published(configuration.signingAlgorithm)
    }

    mutating func accessToken(_ content: Content, _ configuration: ProviderConfiguration) -> String {
        if let account = configuration.behaviour.accountTokens {
            var claims = accountClaims(
                content, account.accessToken, scope: content.scope.joined(separator: " "), configuration)
            claims.user = content.user.map { (email: $0.email, isSubscriber: true) }
            return sign(claims, .access, type: "JWT", configuration)
        }
        switch configuration.accessTokenFormat {
        case .opaque:
            return Secrets.make("at_")
        case .jwt:
            let claims = Claims(
                issuer: configuration.baseURL.description,
                audience: configuration.baseURL.description,
                subject: content.user.map { String($0.id) } ?? content.clientID,
                identifier: Secrets.makeUUID(), scope: content.scope.joined(separator: " "),
                clientID: content.clientID, issuedAt: content.issuedAt / 1000,
                expiresAt: content.expiresAt.map { $0 / 1000 })
            // RFC 9068 §2.1.
            return sign(claims, .access, type: "at+jwt", configuration)
        }
    }

    mutating func refreshToken(_ content: Content, _ configuration: ProviderConfiguration) -> String {
        let behaviour = configuration.behaviour
        if let account = behaviour.accountTokens {
            let scope = account.refreshToken?.scopes?.description ?? ""
            let claims = accountClaims(content, account.refreshToken, scope: scope, configuration)
            return sign(claims, .refresh, type: "JWT", configuration)
        }
        guard let length = behaviour.refreshSecretLength else { return Secrets.make("rt_") }
        // The identifier of the grant is the same for all its tokens.
        return Secrets.accountID("grant \(content.family ?? 0)") + "." + Secrets.makeAlphanumeric(count: length)
    }

    /// - Parameters:
    ///   - content: `expiresAt` is that of the ID token.
    ///   - login: nil for a token that a refresh brings, which repeats nothing of the login (OpenID Connect Core §12.2).
    mutating func idToken(
        _ content: Content, _ login: Login?, accessToken: String, _ configuration: ProviderConfiguration
    ) -> String {
        var claims = Claims(
            issuer: configuration.baseURL.description, audience: content.clientID,
            subject: content.user.map { String($0.id) } ?? content.clientID, issuedAt: content.issuedAt / 1000,
            expiresAt: content.expiresAt.map { $0 / 1000 })
        claims.nonce = login?.nonce
        claims.authenticatedAt = login.map { $0.authenticatedAt / 1000 }
        let isOfOther = defect?.token == .id && defect?.defect == .accessTokenHash
        claims.accessTokenHash = Self.hash(isOfOther ? accessToken + "." : accessToken, configuration.signingAlgorithm)
        if defect?.token == .id, defect?.defect == .nonce { claims.nonce = Secrets.make("") }
        return sign(claims, .id, type: "JWT", configuration)
    }

    /// `at_hash` (OpenID Connect Core §3.1.3.6).
    private static func hash(_ accessToken: String, _ algorithm: SignatureAlgorithm) -> String {
        let digest = algorithm.hashFunction.digest(Array(accessToken.utf8))
        return Base64URL.encode(Array(digest.prefix(digest.count / 2)))
    }

    // MARK: Claims

    private struct Claims {
        var issuer: String
        var audience: String
        var subject: String
        var identifier: String?
        var scope: String?
        var clientID: String?
        var api: String?
        var issuedAt: Int64
        var expiresAt: Int64?
        var authenticatedAt: Int64?
        var nonce: String?
        var accessTokenHash: String?
        var user: (email: String?, isSubscriber: Bool)?

        var json: [UInt8] {
            JSONWriter.object { writer in
                writer.member("iss", issuer)
                writer.member("aud", audience)
                writer.member("sub", subject)
                writer.memberIfPresent("jti", identifier)
                writer.memberIfPresent("scope", scope)
                writer.memberIfPresent("client_id", clientID)
                writer.memberIfPresent("api", api)
                writer.member("iat", issuedAt)
                writer.memberIfPresent("exp", expiresAt)
                writer.memberIfPresent("auth_time", authenticatedAt)
                writer.memberIfPresent("nonce", nonce)
                writer.memberIfPresent("at_hash", accessTokenHash)
                if let user {
                    writer.memberOrNull("email", user.email)
                    writer.name("entitlements")
                    writer.array { writer in
                        for product in user.isSubscriber ? ["Network Protection", "Duck.ai"] : [] {
                            writer.object { writer in
                                writer.member("product", product)
                                writer.member("name", "subscriber")
                            }
                        }
                    }
                }
            }
        }
    }

    /// The claims that an account's access and refresh tokens have in common.
    private func accountClaims(
        _ content: Content, _ expected: TokenVerification.Expectations?, scope: String,
        _ configuration: ProviderConfiguration
    ) -> Claims {
        Claims(
            issuer: configuration.baseURL.description, audience: expected?.audience?.text ?? "",
            subject: content.user.map { Secrets.accountID($0.name) } ?? content.clientID,
            identifier: (content.family.map { "\($0):" } ?? "") + Secrets.makeUUID(), scope: scope, api: "v2",
            issuedAt: content.issuedAt / 1000, expiresAt: content.expiresAt.map { $0 / 1000 })
    }

    // MARK: Signatures

    private mutating func sign(
        _ claims: Claims, _ token: SignedToken, type: WireText, _ configuration: ProviderConfiguration
    ) -> String {
        let algorithm = configuration.signingAlgorithm
        var claims = claims
        var key = keys.activeKey(algorithm)
        switch defect?.token == token ? defect?.defect : nil {
        case .opaque: return Secrets.make("opaque_")
        case .unsigned:
            let header = JSONWriter.object { writer in
                writer.member("alg", "none")
                writer.memberIfPresent("kid", key.keyID?.text)
                writer.member("typ", type.text)
            }
            return Base64URL.encode(header) + "." + Base64URL.encode(claims.json) + "."
        case .unpublishedKey: key = keys.unpublished(algorithm)
        case .signature:
            key = PrivateJSONWebKey(
                keys.unpublished(algorithm).privateKey, keyID: key.keyID, algorithm: algorithm)
        case .expired:
            claims.issuedAt -= 3600
            claims.expiresAt = claims.issuedAt + 3599
        case .issuedInFuture: claims.issuedAt += 3600
        case .issuer: claims.issuer += ".other.example"
        case .audience: claims.audience += "-other"
        case .subject: claims.subject += "-other"
        case .scope: claims.scope = (claims.scope ?? "") + "-other"
        case .nonce, .accessTokenHash, nil: break
        }
        do {
            return try TokenSigner(key, algorithm: algorithm).sign(claims.json, type: type).text
        } catch {
            fatalError("OpenSSL does not sign: \(error)")
        }
    }
}
