/// A reason to refuse a refresh token, which the duckduckgo profile tells by the number that its document gives to the name.
enum TokenStatus: String, Sendable {
    /// Malformed, unknown, or refused for a reason that has no name.
    case invalid
    case expired
    /// Used before, longer ago than the grace period.
    case reused
    case loggedOut = "logged_out"
    /// A session or an authorization code was used twice.
    case fraudDetected = "fraud_detected"
}

/// An error of the token, device authorization or revocation endpoint.
struct OAuthError: Error, Equatable {
    enum Kind: Hashable, Sendable {
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
    /// Why a refresh token is refused.
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
}
