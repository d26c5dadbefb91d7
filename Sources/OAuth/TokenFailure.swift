/// What an answer of the token endpoint that is no grant means for the request that got it.
package enum TokenFailure: Sendable, Equatable {
    /// The provider ended the session: the credentials are set aside and the next level is served.
    case endsSession
    /// Nothing was decided; the same request may succeed later. Tried again by the schedule.
    case retryable
    /// The provider asks to be left alone. Not tried again by itself when it refreshes.
    case rateLimited
    /// The client's registration does not allow what was asked for. Only a change of configuration helps.
    case illegalConfiguration
    /// Refused for a reason that the design does not list. What is held stays as it is.
    case unexpected
    /// An answer that is neither a grant nor an error.
    case unusable

    /// Total over every grant and status: an unlisted 4xx keeps the session, because a user is logged out only when
    /// the authorization server says so. What a device login's answers mean beyond this, `DevicePolling` says.
    /// - Parameters:
    ///   - status: the HTTP status, 100...999; 2xx for an answer without a usable token. A status in the body does
    ///     not count.
    ///   - sessionEndingAnswers: the provider's own, beside the design's.
    /// - Source: TIDAL's Auth design, "Upgrading credentials", "Refreshing credentials", "Client credentials",
    ///   "Standard Login".
    package init(
        grant: TokenRequest.Grant, status: Int, answer: TokenErrorResponse, sessionEndingAnswers: [RefusalPattern]
    ) {
        switch (grant, status) {
        // A misconfigured upgrade logs nobody out: whatever the answer, the old credentials stay and it is tried again.
        case (.upgrade, _): self = .retryable
        case (_, 500...): self = .retryable
        case (_, 429): self = .rateLimited
        case (.refreshToken, 400...499):
            let isListed =
                Self.endsSession(status, answer.error)
                || sessionEndingAnswers.contains { $0.matches(status: status, answer) }
            self = isListed ? .endsSession : .unexpected
        case (.authorizationCode, 400...499), (.deviceCode, 400...499): self = .unexpected
        case (.clientCredentials, 400...499): self = .illegalConfiguration
        default: self = .unusable
        }
    }

    private static func endsSession(_ status: Int, _ error: String?) -> Bool {
        switch (status, error) {
        case (400, "unauthorized_client"), (400, "invalid_grant"), (400, "invalid_request"),
            (401, "access_denied"), (401, "invalid_client"),
            // Not on the design's list; TIDAL answers a revoked refresh token with it.
            (401, "invalid_grant"):
            true
        default: false
        }
    }
}
