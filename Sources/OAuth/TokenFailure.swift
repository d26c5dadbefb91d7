internal import ExternalText

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
    /// the authorization server says so. A fault of the registration, which hits all users at once, keeps it as well.
    /// - Parameters:
    ///   - status: the HTTP status, 100...999; 2xx for an answer without a usable token. A status in the body does
    ///     not count.
    ///   - sessionEndingAnswers: the answers to a refresh that end a session at this provider.
    ///   - configurationErrors: the `error` of those that are about the client's registration.
    /// - Source: TIDAL's Auth design, "Upgrading credentials", "Refreshing credentials", "Client credentials",
    ///   "Standard Login".
    package init(
        grant: TokenRequest.Grant, status: Int, answer: TokenErrorResponse, sessionEndingAnswers: [RefusalPattern],
        configurationErrors: [String]
    ) {
        switch (grant, status) {
        // A misconfigured upgrade logs nobody out: whatever the answer, the old credentials stay and it is tried again.
        case (.upgrade, _): self = .retryable
        case (_, 500...): self = .retryable
        case (_, 429): self = .rateLimited
        case (.refreshToken, 400...499):
            if sessionEndingAnswers.contains(where: { $0.matches(status: status, answer) }) {
                self = .endsSession
            } else if RefusalPattern.isAllowed(status: status), let error = answer.error,
                configurationErrors.contains(where: { WireText($0) == WireText(error) })
            {
                self = .illegalConfiguration
            } else {
                self = .unexpected
            }
        case (.authorizationCode, 400...499), (.deviceCode, 400...499): self = .unexpected
        case (.clientCredentials, 400...499): self = .illegalConfiguration
        default: self = .unusable
        }
    }
}
