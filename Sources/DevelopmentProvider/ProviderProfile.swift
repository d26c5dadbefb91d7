/// The kind of provider that is simulated.
package enum ProviderProfile: String, Sendable, CaseIterable {
    /// TIDAL's login and auth services: their paths, camelCase members in device responses, errors with four members,
    /// and numeric user IDs.
    case tidal
    /// A provider that follows the RFCs exactly: 6749, 7636, 8628, 7009, 8414 and 9207.
    case rfc
    /// DuckDuckGo's Auth v2: no login page, a session cookie between its steps, redirects that carry codes, a token
    /// endpoint that is called by GET, and signed access and refresh tokens.
    case duckduckgo
    /// Authgear: one app of a device lets another one in, proven by a device key or a biometric key.
    case authgear

    /// The profiles whose users log in with a browser.
    package static let withLoginPage: [ProviderProfile] = [.tidal, .rfc]

    /// The values of `grant_type` that the token endpoint accepts.
    var grants: [GrantType] {
        switch self {
        case .tidal: [.authorizationCode, .refreshToken, .clientCredentials, .deviceCode, .updateClient]
        case .rfc: [.authorizationCode, .refreshToken, .clientCredentials, .deviceCode]
        case .authgear: [.authorizationCode, .refreshToken, .appToApp, .appToAppRequest, .biometric]
        case .duckduckgo: [.authorizationCode, .refreshToken]
        }
    }

    /// The path of an endpoint below the base URL; nil when the profile has no such endpoint. Metadata is at the
    /// well-known paths instead.
    func path(of endpoint: Endpoint) -> String? {
        switch (self, endpoint) {
        case (.duckduckgo, .authorize): "/api/auth/v2/authorize"
        case (.duckduckgo, .token): "/api/auth/v2/token"
        case (.duckduckgo, .createAccount): "/api/auth/v2/account/create"
        case (.duckduckgo, .sendPassword): "/api/auth/v2/otp"
        case (.duckduckgo, .login): "/api/auth/v2/login"
        case (.duckduckgo, .logout): "/api/auth/v2/logout"
        case (.duckduckgo, .keys): "/api/auth/v2/.well-known/jwks.json"
        case (.duckduckgo, .deviceAuthorization), (.duckduckgo, .revoke): nil
        case (.authgear, .authorize): "/oauth2/authorize"
        case (.authgear, .token): "/oauth2/token"
        case (.authgear, .revoke): "/oauth2/revoke"
        case (.authgear, .challenge): "/oauth2/challenge"
        case (.authgear, .userInfo): "/oauth2/userinfo"
        case (.authgear, .keys): "/oauth2/jwks"
        case (.authgear, .assetLinks): "/.well-known/assetlinks.json"
        case (.authgear, .appleAssociation): "/.well-known/apple-app-site-association"
        case (.authgear, .deviceAuthorization): nil
        case (_, .authorize): "/authorize"
        case (.tidal, .token): "/v1/oauth2/token"
        case (.tidal, .deviceAuthorization): "/v1/oauth2/device_authorization"
        case (.tidal, .keys): "/v1/jwks"
        case (.rfc, .token): "/token"
        case (.rfc, .deviceAuthorization): "/device_authorization"
        case (.rfc, .revoke): "/revoke"
        case (.rfc, .pushedAuthorization): "/par"
        case (.rfc, .keys): "/jwks"
        case (.tidal, .revoke), (_, .metadata), (_, .pushedAuthorization), (_, .createAccount), (_, .sendPassword),
            (_, .login),
            (_, .logout), (_, .challenge), (_, .userInfo), (_, .assetLinks), (_, .appleAssociation):
            nil
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
    /// The key set (RFC 7517 §5).
    case keys = "jwks"
    case createAccount = "account_creation"
    /// Sends a password for one use to an email address.
    case sendPassword = "otp"
    case login
    case logout
    /// Issues the challenges that apps sign.
    case challenge
    /// OpenID Connect Core §5.3.
    case userInfo = "userinfo"
    case assetLinks = "asset_links"
    case appleAssociation = "apple_app_site_association"
    /// RFC 9126.
    case pushedAuthorization = "pushed_authorization_request"
}

/// A `grant_type` that the token endpoint supports.
package enum GrantType: String, Sendable, CaseIterable, Hashable {
    case authorizationCode = "authorization_code"
    case refreshToken = "refresh_token"
    case clientCredentials = "client_credentials"
    case deviceCode = "urn:ietf:params:oauth:grant-type:device_code"
    /// TIDAL's grant that moves a session to another client registration.
    case updateClient = "update_client"
    /// One app lets another one in, by the name in Authgear's design and by that in its server.
    case appToApp = "urn:authgear:params:oauth:grant-type:app2app"
    case appToAppRequest = "urn:authgear:params:oauth:grant-type:app2app-request"
    case biometric = "urn:authgear:params:oauth:grant-type:biometric-request"
}
