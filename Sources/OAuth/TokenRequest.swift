package import Cryptography
package import HTTPCodec

/// A request to the token endpoint, one case per grant.
package enum TokenRequest: Sendable {
    /// RFC 6749 §4.1.3 with RFC 7636 §4.5.
    case authorizationCode(code: SecretBytes, redirectURI: String, codeVerifier: SecretBytes)
    /// RFC 6749 §6.
    case refresh(SecretBytes)
    /// RFC 6749 §4.4.
    case clientCredentials

    package enum Grant: String, Sendable, CaseIterable {
        case authorizationCode = "authorization_code"
        case refreshToken = "refresh_token"
        case clientCredentials = "client_credentials"
    }

    package var grant: Grant {
        switch self {
        case .authorizationCode: .authorizationCode
        case .refresh: .refreshToken
        case .clientCredentials: .clientCredentials
        }
    }

    /// The form to POST and the value of `Authorization`, if the client authenticates by it.
    package func form(
        for client: ClientConfiguration, at server: AuthorizationServer
    ) -> (pairs: [FormEncoding.Pair], authorization: String?) {
        var pairs: [FormEncoding.Pair] = [.init("grant_type", grant.rawValue)]
        let preset = server.preset
        switch self {
        case .authorizationCode(let code, let redirectURI, let codeVerifier):
            pairs.append(.init("code", code.revealedText))
            pairs.append(.init("redirect_uri", redirectURI))
            pairs.append(.init("code_verifier", codeVerifier.revealedText))
            if preset.repeatsScopes { pairs.append(.init("scope", client.scopes.description)) }
            if preset.sendsClientUniqueKey, let key = client.clientUniqueKey {
                pairs.append(.init("client_unique_key", key))
            }
        case .refresh(let refreshToken):
            pairs.append(.init("refresh_token", refreshToken.revealedText))
            if preset.repeatsScopes { pairs.append(.init("scope", client.scopes.description)) }
        case .clientCredentials:
            if preset.scopesClientCredentials, !client.scopes.isEmpty {
                pairs.append(.init("scope", client.scopes.description))
            }
        }
        let authorization = ClientAuthenticator.authenticate(client, by: server.clientAuthentication, into: &pairs)
        return (pairs, authorization)
    }
}

/// Adds a client's identity to a form (RFC 6749 §2.3.1).
package enum ClientAuthenticator {
    /// Returns the value of `Authorization` where the method wants one. A client without a secret is public: its
    /// identifier goes in the form, whatever the method.
    package static func authenticate(
        _ client: ClientConfiguration, by method: ProviderPreset.ClientAuthentication,
        into pairs: inout [FormEncoding.Pair]
    ) -> String? {
        guard let secret = client.clientSecret, method != .none else {
            pairs.append(.init("client_id", client.clientID))
            return nil
        }
        switch method {
        case .clientSecretBasic:
            // Both halves are form-encoded first (RFC 6749 §2.3.1, Appendix B), so a colon or a percent sign in
            // either survives.
            let user = FormEncoding.percentEncode(client.clientID)
            let password = FormEncoding.percentEncode(secret.revealedText)
            return "Basic " + Base64.encode(Array("\(user):\(password)".utf8))
        case .clientSecretPost:
            pairs.append(.init("client_id", client.clientID))
            pairs.append(.init("client_secret", secret.revealedText))
            return nil
        case .none:
            return nil
        }
    }
}
