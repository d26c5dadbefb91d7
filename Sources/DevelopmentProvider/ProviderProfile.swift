/// Whose habits the provider has.
package enum ProviderProfile: String, Sendable, CaseIterable {
    /// TIDAL's login and auth services: their paths, camelCase device answers, errors of four members, a numeric user.
    case tidal
    /// The RFCs by the letter: 6749, 7636, 8628, 7009, 8414 and 9207.
    case rfc

    /// Where an endpoint stands below the base URL; nil where the profile has no such endpoint. Metadata stands at the
    /// well-known paths.
    func path(of endpoint: Endpoint) -> String? {
        switch (self, endpoint) {
        case (_, .authorize): "/authorize"
        case (.tidal, .token): "/v1/oauth2/token"
        case (.tidal, .deviceAuthorization): "/v1/oauth2/device_authorization"
        case (.rfc, .token): "/token"
        case (.rfc, .deviceAuthorization): "/device_authorization"
        case (.rfc, .revoke): "/revoke"
        case (.tidal, .revoke), (_, .metadata): nil
        }
    }
}

/// What a request is counted under and a fault is scripted for.
package enum Endpoint: String, Sendable, CaseIterable, Hashable {
    case authorize
    case token
    case deviceAuthorization = "device_authorization"
    case revoke
    case metadata
}

/// A `grant_type` that the token endpoint knows.
package enum GrantType: String, Sendable, CaseIterable, Hashable {
    case authorizationCode = "authorization_code"
    case refreshToken = "refresh_token"
    case clientCredentials = "client_credentials"
    case deviceCode = "urn:ietf:params:oauth:grant-type:device_code"
    /// TIDAL's: moves a session to another client registration.
    case updateClient = "update_client"
}
