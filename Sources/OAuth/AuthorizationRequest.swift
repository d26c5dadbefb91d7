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

    /// Names that a custom parameter must not have. If a name occurred twice, the server and the broker could read
    /// different values. The names that the broker never sends are reserved because they could extend what is requested
    /// (`claims`, OpenID Connect Core §5.5; `authorization_details`, RFC 9396) or bind the code to a key that the
    /// broker does not have (`dpop_jkt`, RFC 9449 §10).
    package static let reservedNames: Set<WireText> = [
        "response_type", "redirect_uri", "client_id", "scope", "code_challenge_method", "code_challenge", "state",
        "client_unique_key", "lang", "language", "ui_locales", "email", "login_hint", "response_mode", "request",
        "request_uri", "nonce", "client_secret", "resource", "code_verifier", "authorization_details", "claims",
        "registration",
        "dpop_jkt",
    ]

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
        // RFC 6749 §3.3: a scope has at least one name, so an empty scope must not be sent.
        if !client.scopes.isEmpty { parameters.append(.init("scope", shape.scope(client.scopes))) }
        if let name = shape.userScopeParameter, !shape.userScopes.isEmpty {
            parameters.append(.init(name, WireText(shape.scope(shape.userScopes))))
        }
        if shape.pkce != .forbidden {
            parameters.append(.init("code_challenge_method", "S256"))
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
        parameters += shape.authorizeParameters.filter { customParameters[$0.name] == nil }
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
