package import Cryptography
package import ExternalText
package import HTTPCodec

/// A request to the token endpoint, with one case for each grant.
package enum TokenRequest: Sendable {
    /// RFC 6749 §4.1.3 with RFC 7636 §4.5. `keyProof` binds a device key to the session; it is sent where the provider
    /// has a parameter for it.
    case authorizationCode(code: SecretBytes, redirectURI: String, codeVerifier: SecretBytes, keyProof: WireText? = nil)
    /// RFC 6749 §6, or the provider's own form of it. `accessToken` is that of the set, for forms that present it.
    case refresh(SecretBytes, accessToken: SecretBytes? = nil)
    /// Exchanges the access token of a login for one that lives longer, by the provider's own form. `refreshToken` is what the
    /// set is renewed with.
    case exchange(accessToken: SecretBytes, refreshToken: SecretBytes)
    /// RFC 6749 §4.4.
    case clientCredentials
    /// Moves the session of a refresh token that another registration obtained to this registration (TIDAL's Auth
    /// design, "Upgrading credentials"). `grantType` is the preset's `upgradeGrant`.
    case upgrade(SecretBytes, grantType: String)
    /// One poll of a device login (RFC 8628 §3.4).
    case deviceCode(SecretBytes)

    /// The kind of request, named for metrics and the log.
    package enum Grant: String, Sendable, CaseIterable {
        case authorizationCode = "authorization_code"
        case refreshToken = "refresh_token"
        case clientCredentials = "client_credentials"
        case upgrade
        case deviceCode = "device_code"
        /// Not a `grant_type`: the requests that create an account, and the exchange of the code that they bring.
        case accountCreation = "account_creation"

        /// Whether a provider that rotates refresh tokens invalidates the sent token with its response.
        package var spendsRefreshToken: Bool { self == .refreshToken || self == .upgrade }
    }

    package var grant: Grant {
        switch self {
        case .authorizationCode: .authorizationCode
        case .refresh, .exchange: .refreshToken
        case .clientCredentials: .clientCredentials
        case .upgrade: .upgrade
        case .deviceCode: .deviceCode
        }
    }

    /// The value of `grant_type`.
    private var grantType: String {
        switch self {
        case .authorizationCode: "authorization_code"
        case .refresh, .exchange: "refresh_token"
        case .clientCredentials: "client_credentials"
        case .upgrade(_, let grantType): grantType
        case .deviceCode: "urn:ietf:params:oauth:grant-type:device_code"
        }
    }

    /// The parameters to send, and the value of `Authorization` if the client authenticates with that header; not for a request
    /// that has an `ownForm`.
    package func form(
        for client: ClientConfiguration, at server: AuthorizationServer
    ) -> (pairs: [FormEncoding.Pair], authorization: String?) {
        var pairs: [FormEncoding.Pair] = [.init("grant_type", grantType)]
        let preset = server.preset
        // RFC 6749 §3.3: a scope has at least one name, so a client without scopes must send none.
        let shape = server.shape
        let scopes = Self.pairs(of: server.asked?.scopes ?? client.scopes, shape)
        let uniqueKey = preset.sendsClientUniqueKey ? client.clientUniqueKey : nil
        switch self {
        case .authorizationCode(let code, let redirectURI, let codeVerifier, let keyProof):
            pairs.append(.init("code", code.revealedText))
            pairs.append(.init("redirect_uri", redirectURI))
            if server.usesPKCE { pairs.append(.init("code_verifier", codeVerifier.revealedText)) }
            if shape.repeatsScopes { pairs += scopes }
            pairs += Self.further(shape.tokenParameters, server.asked)
            if let uniqueKey { pairs.append(.init("client_unique_key", uniqueKey)) }
            if let keyProof, let rules = preset.appToApp {
                pairs.append(.init(WireText(rules.keyParameter), keyProof))
            }
        case .refresh(let refreshToken, _), .exchange(_, let refreshToken):
            pairs.append(.init("refresh_token", refreshToken.revealedText))
            if shape.repeatsScopes { pairs += scopes }
            pairs += Self.further(shape.refreshParameters, server.asked)
        case .clientCredentials:
            if preset.scopesClientCredentials { pairs += Self.pairs(of: client.scopes.withoutOpenID, shape) }
            pairs += shape.asked?.pairs ?? []
        case .upgrade(let refreshToken, _):
            pairs.append(.init("refresh_token", refreshToken.revealedText))
            // The scopes of the new registration, to which the session is moved.
            pairs += Self.pairs(of: client.scopes, shape)
            if let uniqueKey { pairs.append(.init("client_unique_key", uniqueKey)) }
        case .deviceCode(let deviceCode):
            pairs.append(.init("device_code", deviceCode.revealedText))
            if shape.repeatsScopes { pairs += scopes }
            pairs += server.asked?.pairs ?? []
            if let uniqueKey { pairs.append(.init("client_unique_key", uniqueKey)) }
        }
        let authorization = ClientAuthenticator.authenticate(
            client, by: server.clientAuthentication, at: server, into: &pairs)
        return (shape.named(Self.ordered(pairs, by: preset.parameterOrder)), authorization)
    }

    /// What is configured, and what the grant is asked for, which counts more.
    private static func further(_ pairs: [FormEncoding.Pair], _ asked: AskedGrant?) -> [FormEncoding.Pair] {
        guard let asked else { return pairs }
        return asked.pairs + pairs.filter { !asked.hasParameter($0.name) }
    }

    private static func pairs(of scopes: ScopeSet, _ shape: RequestShape) -> [FormEncoding.Pair] {
        scopes.isEmpty ? [] : [FormEncoding.Pair("scope", shape.scope(scopes))]
    }

    /// The parameters in the order of `names`, followed by the others in their own order.
    private static func ordered(_ pairs: [FormEncoding.Pair], by names: [WireText]) -> [FormEncoding.Pair] {
        if names.isEmpty { return pairs }
        return names.flatMap { name in pairs.filter { $0.name == name } } + pairs.filter { !names.contains($0.name) }
    }
}

/// Adds a client's authentication to a form (RFC 6749 §2.3.1).
package enum ClientAuthenticator {
    /// Returns the value of `Authorization` if the method uses that header. A client without anything to
    /// show is public: its identifier is sent in the form, whatever the method.
    package static func authenticate(
        _ client: ClientConfiguration, by method: ProviderPreset.ClientAuthentication, at server: AuthorizationServer,
        into pairs: inout [FormEncoding.Pair]
    ) -> String? {
        switch method {
        case .privateKeyJWT, .clientSecretJWT, .clientAssertionFile:
            guard let assertion = client.assertion else { break }
            // RFC 7521 §4.2: the identifier is not needed beside a JWT. Some servers look for it nevertheless.
            if server.repeatsClientID { pairs.append(.init("client_id", client.clientID)) }
            pairs.append(.init("client_assertion_type", ClientAssertion.type))
            pairs.append(.init("client_assertion", assertion))
            return nil
        default: break
        }
        guard let secret = client.clientSecret else {
            pairs.append(.init("client_id", client.clientID))
            return nil
        }
        switch method {
        case .clientSecretBasic:
            // Both parts are form-encoded first (RFC 6749 §2.3.1, Appendix B), so that a colon or a percent sign in
            // them survives.
            let user = FormEncoding.percentEncode(client.clientID.text)
            let password = FormEncoding.percentEncode(secret.revealedText)
            if server.repeatsClientID { pairs.append(.init("client_id", client.clientID)) }
            return "Basic " + Base64.encode(Array("\(user):\(password)".utf8))
        case .clientSecretPost:
            pairs.append(.init("client_id", client.clientID))
            pairs.append(.init("client_secret", secret.revealedText))
            return nil
        case .clientSecretBearer:
            if server.repeatsClientID { pairs.append(.init("client_id", client.clientID)) }
            return "Bearer " + secret.revealedText
        // The certificate is shown in TLS, and the form says whose it is (RFC 8705 §2).
        case .none, .tlsClientAuth, .privateKeyJWT, .clientSecretJWT, .clientAssertionFile:
            pairs.append(.init("client_id", client.clientID))
            return nil
        }
    }
}
