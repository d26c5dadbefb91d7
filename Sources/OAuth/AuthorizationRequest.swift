package import ExternalText
package import HTTPCodec

/// The request that the user's browser sends to the login service (RFC 6749 §4.1.1; TIDAL's Auth design, "Standard
/// Login").
package struct AuthorizationRequest: Sendable {
    package var redirectURI: String
    package var state: String
    package var codeChallenge: String
    /// Nil when no ID token is asked for (OpenID Connect Core §3.1.2.1).
    package var nonce: String?
    package var language: String?
    package var email: String?
    package var customParameters: [WireText: WireText]
    /// The thumbprint of the key that the code is bound to (RFC 9449 §10); nil for none.
    package var keyThumbprint: String?

    package init(
        redirectURI: String, state: String, codeChallenge: String, nonce: String? = nil, language: String? = nil,
        email: String? = nil,
        customParameters: [WireText: WireText] = [:], keyThumbprint: String? = nil
    ) {
        self.redirectURI = redirectURI
        self.state = state
        self.codeChallenge = codeChallenge
        self.nonce = nonce
        self.language = language
        self.email = email
        self.customParameters = customParameters
        self.keyThumbprint = keyThumbprint
    }

    /// The longest sum of the names and values of all custom parameters, in bytes.
    package static let customParametersLimit = 4096

    /// Whether the name has the form of a custom parameter's name: `[A-Za-z0-9_-]{1,64}`.
    package static func isCustomParameterName(_ name: WireText) -> Bool {
        (1...64).contains(name.count)
            && name.utf8.allSatisfy {
                $0.isLowercaseLetter || $0.isUppercaseLetter || $0.isDigit || $0 == UInt8(ascii: "_")
                    || $0 == UInt8(ascii: "-")
            }
    }

    /// The URI to open in the user's browser.
    package func uri(for client: ClientConfiguration, at server: AuthorizationServer) -> String {
        server.authorizationURI(with: parameters(for: client, at: server))
    }

    /// The parameters by the provider's names: the design's in the design's order, then `state`, then the login
    /// configuration, then the custom parameters in the order of their names.
    package func parameters(
        for client: ClientConfiguration, at server: AuthorizationServer
    ) -> [FormEncoding.Pair] {
        var parameters: [FormEncoding.Pair] = [
            .init("response_type", "code"),
            .init("redirect_uri", redirectURI),
            .init("client_id", client.clientID),
        ]
        let shape = server.shape
        let scopes = server.asked?.scopes ?? client.scopes
        // RFC 6749 §3.3: a scope has at least one name, so an empty scope must not be sent.
        if !scopes.isEmpty { parameters.append(.init("scope", shape.scope(scopes))) }
        if let name = shape.userScopeParameter, !shape.userScopes.isEmpty {
            parameters.append(.init(name, WireText(shape.scope(shape.userScopes))))
        }
        if server.usesPKCE {
            parameters.append(.init("code_challenge_method", PKCE.method))
            parameters.append(.init("code_challenge", codeChallenge))
        }
        parameters.append(.init("state", state))
        if let nonce { parameters.append(.init("nonce", nonce)) }
        if let keyThumbprint { parameters.append(.init("dpop_jkt", keyThumbprint)) }
        if server.preset.sendsClientUniqueKey, let key = client.clientUniqueKey {
            parameters.append(.init("client_unique_key", key))
        }
        if let language, let name = server.preset.languageParameter { parameters.append(.init(name, language)) }
        if let email, let name = server.preset.emailParameter { parameters.append(.init(name, email)) }
        if let asked = server.asked { parameters += asked.pairs }
        parameters += shape.authorizeParameters.filter {
            customParameters[$0.name] == nil && server.asked?.hasParameter($0.name) != true
        }
        for (name, value) in customParameters.sorted(by: { $0.key < $1.key }) {
            parameters.append(.init(name, value))
        }
        return shape.named(parameters)
    }
}

/// Printing a request uses this mirror. It omits the state, which is a secret until it is used, and the user's email
/// address.
extension AuthorizationRequest: CustomReflectable {
    package var customMirror: Mirror {
        Mirror(self, children: ["redirectURI": redirectURI, "codeChallenge": codeChallenge], displayStyle: .struct)
    }
}
