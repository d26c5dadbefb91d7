/// DuckDuckGo's reasons to refuse a refresh token, which its errors call by number.
enum TokenStatus: Int, Sendable {
    /// Malformed, unknown, or refused for a reason that has no number.
    case invalid = 0
    case expired = 1
    /// Used before, longer ago than the grace period.
    case reused = 2
    case loggedOut = 3
    /// A session or an authorization code was used twice.
    case fraudDetected = 4
}

/// An error of the token, device authorization or revocation endpoint.
struct OAuthError: Error, Equatable {
    enum Kind: Equatable {
        case invalidRequest
        case invalidClient
        case invalidGrant
        /// `invalid_grant` for a refresh token.
        case invalidRefreshToken
        case unauthorizedClient
        case unsupportedGrantType
        case invalidScope
        case authorizationPending
        case slowDown
        case expiredToken
        case accessDenied
        /// The account of the token does not exist any more. Only the duckduckgo profile has it.
        case unknownAccount
        /// `invalid_grant` for a request that needs a session and names none. Only the authgear profile has this and
        /// the next ones.
        case unauthenticated
        case rateLimited
        case serverError
        /// Only the rfc profile has these two.
        case invalidProof
        case nonceWanted
    }

    let kind: Kind
    /// Why DuckDuckGo's token endpoint refuses a refresh token.
    var tokenStatus = TokenStatus.invalid
    /// A text for people, in US-ASCII without quotation marks and backslashes (RFC 6749 §5.2). Never contains content
    /// of the request.
    let description: String

    init(_ kind: Kind, _ description: String, tokenStatus: TokenStatus = .invalid) {
        self.kind = kind
        self.tokenStatus = tokenStatus
        self.description = description
    }

    /// The `error` member.
    var error: String {
        switch kind {
        case .invalidRequest: "invalid_request"
        case .invalidClient: "invalid_client"
        case .invalidGrant, .invalidRefreshToken, .unauthenticated: "invalid_grant"
        case .unauthorizedClient: "unauthorized_client"
        case .unsupportedGrantType: "unsupported_grant_type"
        case .invalidScope: "invalid_scope"
        case .authorizationPending: "authorization_pending"
        case .slowDown: "slow_down"
        case .expiredToken: "expired_token"
        case .accessDenied: "access_denied"
        case .unknownAccount: "unknown_account"
        case .rateLimited: "x_rate_limited"
        case .serverError: "server_error"
        case .invalidProof: "invalid_dpop_proof"
        case .nonceWanted: "use_dpop_nonce"
        }
    }

    /// TIDAL's number for the error. 1002, 1005, 11003 and 11101 are known from TIDAL's responses and clients. The
    /// numbers of the other errors are not published; they have 1000 here, which has no meaning to any client.
    var subStatus: Int {
        switch kind {
        case .authorizationPending: 1002
        case .invalidClient: 1005
        case .expiredToken: 11003
        case .invalidRefreshToken: 11101
        case .invalidRequest, .invalidGrant, .unauthorizedClient, .unsupportedGrantType, .invalidScope, .slowDown,
            .accessDenied, .unknownAccount, .unauthenticated, .rateLimited, .serverError,
            .invalidProof, .nonceWanted:
            1000
        }
    }
}
