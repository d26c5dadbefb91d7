/// The kind of provider that is simulated.
package enum ProviderProfile: String, Sendable, CaseIterable {
    /// TIDAL's login and auth services: their paths, camelCase members in device responses, errors with four members,
    /// and numeric user IDs.
    case tidal
    /// A provider that follows the RFCs exactly: 6749, 7636, 8628, 7009, 8414 and 9207.
    case rfc

    /// The path of an endpoint below the base URL; nil when the profile has no such endpoint. Metadata is at the
    /// well-known paths instead.
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

/// An endpoint, by which requests are counted and for which faults are scripted.
package enum Endpoint: String, Sendable, CaseIterable, Hashable {
    case authorize
    case token
    case deviceAuthorization = "device_authorization"
    case revoke
    case metadata
}

/// A `grant_type` that the token endpoint supports.
package enum GrantType: String, Sendable, CaseIterable, Hashable {
    case authorizationCode = "authorization_code"
    case refreshToken = "refresh_token"
    case clientCredentials = "client_credentials"
    case deviceCode = "urn:ietf:params:oauth:grant-type:device_code"
    /// TIDAL's grant that moves a session to another client registration.
    case updateClient = "update_client"
}
