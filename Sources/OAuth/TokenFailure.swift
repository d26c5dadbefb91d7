import ExternalText

/// What a response of the token endpoint without a grant means for the request.
package enum TokenFailure: Sendable, Equatable {
    /// The provider ended the session: the credentials are quarantined and the next lower level is served.
    case endsSession
    /// The provider decided nothing, and the same request may succeed later. It is retried by the schedule.
    case retryable
    /// The provider limits the rate of requests, or says that its refusal will pass. A refresh is then not retried
    /// automatically.
    case rateLimited
    /// The client's registration does not permit the request. Only a change of the configuration helps.
    case illegalConfiguration
    /// The provider refused for a reason that the design does not list. The held credentials stay.
    case unexpected
    /// A response that is neither a grant nor an error.
    case unusable

    /// Defined for every grant and status. A 4xx that is not listed keeps the session, because a user is logged out
    /// only when the authorization server says so. A fault of the registration, which affects all users at once, keeps
    /// it as well. What a rule of the profile says of an answer to a refresh (`TokenErrorResponse.meaning`) counts before the
    /// lists, which know only the provider's own `error` values.
    /// - Parameters:
    ///   - status: the HTTP status, 100...999; 2xx for a response without a usable token. A status in the body does not
    ///     count.
    ///   - sessionEndingAnswers: the responses to a refresh that end a session at this provider.
    ///   - sessionEndingErrors: the `error` values that end a session whatever the status that bears them, 2xx or 4xx.
    ///   - configurationErrors: the `error` values that are about the client's registration, likewise.
    /// - Source: TIDAL's Auth design, "Upgrading credentials", "Refreshing credentials", "Client credentials",
    ///   "Standard Login".
    package init(
        grant: TokenRequest.Grant, status: Int, answer: TokenErrorResponse, sessionEndingAnswers: [RefusalPattern],
        sessionEndingErrors: [String] = [], configurationErrors: [String]
    ) {
        // 408 and 425 say that the same request may succeed later.
        let isDecided = (200...299).contains(status) || RefusalPattern.isAllowed(status: status) && status != 425
        func isNamed(in errors: [String]) -> Bool {
            guard isDecided, let error = answer.error else { return false }
            return errors.contains { WireText($0) == WireText(error) }
        }

        switch (grant, status) {
        // A misconfigured upgrade must not log users out: after any response the old credentials stay and the upgrade
        // is retried.
        case (.upgrade, _): self = .retryable
        case (_, 500...): self = .retryable
        case (_, 429): self = .rateLimited
        // RFC 9110 §15.5.9, RFC 8470 §5.2. A code is not presented twice.
        case (.refreshToken, 408), (.refreshToken, 425), (.clientCredentials, 408), (.clientCredentials, 425):
            self = .rateLimited
        case (.refreshToken, 200...299), (.refreshToken, 400...499):
            switch answer.meaning {
            case .sessionEnded?: self = .endsSession
            case .configuration?: self = .illegalConfiguration
            case .transient? where status >= 400, .slowDown? where status >= 400: self = .rateLimited
            case .transient?, .slowDown?, .pending?: self = status < 300 ? .unusable : .unexpected
            case nil:
                if isNamed(in: sessionEndingErrors)
                    || sessionEndingAnswers.contains(where: { $0.matches(status: status, answer) })
                {
                    self = .endsSession
                } else if status >= 400, answer.isPassing {
                    self = .rateLimited
                } else if isNamed(in: configurationErrors) {
                    self = .illegalConfiguration
                } else {
                    self = status < 300 ? .unusable : .unexpected
                }
            }
        case (.clientCredentials, 400...499) where answer.isPassing: self = .rateLimited
        case (.authorizationCode, 400...499), (.deviceCode, 400...499), (.accountCreation, 400...499):
            self = .unexpected
        case (.clientCredentials, 400...499): self = .illegalConfiguration
        default: self = .unusable
        }
    }
}

extension TokenFailure {
    /// Whether an answer decides nothing, so that the same request may succeed later.
    package static func isPassing(status: Int, _ answer: TokenErrorResponse) -> Bool {
        switch status {
        case 408, 425, 429, 500...: true
        case 400...499: answer.isPassing
        default: false
        }
    }
}

extension TokenErrorResponse {
    /// Whether the error code says that the same request may succeed later, whatever 4xx status bears it (RFC 6749
    /// §4.1.2.1, RFC 8628 §3.5).
    package var isPassing: Bool {
        switch error {
        case "temporarily_unavailable", "server_error", "slow_down": true
        default: false
        }
    }
}
