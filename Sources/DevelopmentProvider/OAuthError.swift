/// An error of the token, device authorization or revocation endpoint.
struct OAuthError: Error, Equatable {
    enum Kind: Equatable {
        case invalidRequest
        case invalidClient
        case invalidGrant
        /// `invalid_grant` for a refresh token.
        case deadRefreshToken
        case unauthorizedClient
        case unsupportedGrantType
        case invalidScope
        case authorizationPending
        case slowDown
        case expiredToken
        case accessDenied
    }

    let kind: Kind
    /// For people: US-ASCII without quotes and backslashes (RFC 6749 §5.2). Never holds what a request sent.
    let description: String

    init(_ kind: Kind, _ description: String) {
        self.kind = kind
        self.description = description
    }

    /// The `error` member.
    var error: String {
        switch kind {
        case .invalidRequest: "invalid_request"
        case .invalidClient: "invalid_client"
        case .invalidGrant, .deadRefreshToken: "invalid_grant"
        case .unauthorizedClient: "unauthorized_client"
        case .unsupportedGrantType: "unsupported_grant_type"
        case .invalidScope: "invalid_scope"
        case .authorizationPending: "authorization_pending"
        case .slowDown: "slow_down"
        case .expiredToken: "expired_token"
        case .accessDenied: "access_denied"
        }
    }

    /// TIDAL's number. 1002, 1005, 11003 and 11101 are known from its answers and clients; for the errors whose number
    /// nobody has published this provider has 1000, which means nothing to any client.
    var subStatus: Int {
        switch kind {
        case .authorizationPending: 1002
        case .invalidClient: 1005
        case .expiredToken: 11003
        case .deadRefreshToken: 11101
        case .invalidRequest, .invalidGrant, .unauthorizedClient, .unsupportedGrantType, .invalidScope, .slowDown,
            .accessDenied:
            1000
        }
    }
}
