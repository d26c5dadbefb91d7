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

    /// The profiles whose users log in with a browser, and that have no flow of their own.
    package static let withLoginPage = allCases.filter { $0.behaviour.flow == nil }
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
