import HTTPCodec
import HTTPSClient
import OAuth

/// What the answers of a token endpoint mean, and what a missing answer means.
extension TokenEndpoint {
    func meaning(
        of refusal: Refusal, grant: TokenRequest.Grant, server: AuthorizationServer
    ) -> Answer {
        // An upgrade is tried again after any refusal of the client. This refusal concerns the refresh token.
        if grant == .upgrade, (400...499).contains(refusal.status), refusal.answer.isInvalidGrant {
            return .sessionEnded(refusal.answer, status: refusal.status)
        }
        switch Self.failure(refusal, grant, server) {
        case .endsSession: return .sessionEnded(refusal.answer, status: refusal.status)
        case .retryable: return .again(refusal.retryable, retryAfter: refusal.retryAfter)
        case .rateLimited:
            if grant == .authorizationCode, server.schedule.rateLimitRetries == nil {
                return .again(refusal.retryable, retryAfter: refusal.retryAfter)
            }
            return Self.rateLimited(for: refusal.retryAfter, at: time.now, refusal.answer.errorCode)
        // The same refusal as for a refresh.
        case .illegalConfiguration
        where refusal.answer.isInvalidClient
            && Self.failure(refusal, .refreshToken, server) == .illegalConfiguration:
            return .clientRefused(refusal.marked(Self.refusedClient(refusal.answer)), .client)
        case .illegalConfiguration where grant == .clientCredentials:
            let error = BrokerError(
                .illegalConfiguration,
                refusal.answer.namesMissingGrant
                    ? "The client may not use the client credentials grant at the provider, for which it has its "
                        + "client_secret here: \(RefusalAdvice.clientCredentials)".followed(
                            by: RefusalAdvice.alsoWrongSecret(refusal.answer))
                    : "The provider does not grant this client credentials. Check the configured client_id, "
                        + "client_secret and scopes.",
                errorCode: refusal.answer.shownSubStatus ?? refusal.answer.errorCode)
            return .clientRefused(refusal.marked(error), .grant(grant))
        case .illegalConfiguration: return .clientRefused(Self.refusedClient(refusal.answer), .grant(grant))
        case .unexpected:
            let error = refusal.marked(
                BrokerError(
                    .unexpectedError,
                    "The provider refused the token request with status \(refusal.status).".followed(
                        by: RefusalAdvice.sentence(of: refusal.answer, status: refusal.status, grant: grant)),
                    errorCode: refusal.answer.errorCode))
            // Only an answer that the tenant could list in `session_ending_answers`, which a proxy's page is not.
            let isUnclear =
                grant == .refreshToken && refusal.answer.subStatus == nil
                && [nil, "invalid_request"].contains(refusal.answer.error)
                && RefusalPattern(status: refusal.status, error: refusal.answer.error)?.matches(
                    status: refusal.status, refusal.answer) == true
            return isUnclear
                ? .refusedUnclearly(error, RefusedAnswer(status: refusal.status, refusal.answer)) : .refused(error)
        case .unusable:
            return .refused(refusal.redirected(from: server.tokenEndpoint, "endpoints.token") ?? Self.unusable)
        }
    }

    /// What an answer of 2xx without a grant means where it bears an error, as some providers send it; nil where that decides
    /// nothing.
    func meaning(
        ofErrorIn response: ClientResponse, to message: ClientRequest, of call: Call, at server: AuthorizationServer
    ) async -> Answer? {
        let refusal = await refusal(response, to: message, at: server, call.fields)
        guard refusal.answer.error != nil else { return nil }
        let answer = meaning(of: refusal, grant: call.grant, server: server)
        switch answer {
        case .sessionEnded, .clientRefused: break
        // The refresh token may be spent, so the answer to a refresh counts as one that cannot be used.
        case _ where call.grant.spendsRefreshToken: return nil
        default: break
        }
        log.warning("token_request_refused", refusal.fields)
        return answer
    }

    private static func failure(
        _ refusal: Refusal, _ grant: TokenRequest.Grant, _ server: AuthorizationServer
    ) -> TokenFailure {
        TokenFailure(
            grant: grant, status: grant.spendsRefreshToken ? refusal.status : refusal.decidingStatus,
            answer: refusal.answer, sessionEndingAnswers: server.sessionEndingAnswers,
            sessionEndingErrors: server.preset.sessionEndingErrors,
            configurationErrors: server.preset.configurationErrors)
    }

    /// What callers get when the provider does not accept the client.
    static func refusedClient(_ answer: TokenErrorResponse) -> BrokerError {
        refusedClient(errorCode: answer.errorCode)
    }

    static func refusedClient(errorCode: String?) -> BrokerError {
        BrokerError(
            .illegalConfiguration,
            "The provider does not accept the client. Check the configured client_id, client_secret and "
                + "token_endpoint_auth_method. Users stay logged in meanwhile.",
            errorCode: errorCode)
    }

    /// - Parameter duration: the pause that the provider asks for; nil where it names none.
    static func rateLimited(for duration: Duration?, at now: Timestamp, _ errorCode: String? = nil) -> Answer {
        let pause = duration ?? .seconds(Self.defaultRetryAfterSeconds)
        return .rateLimited(paused(for: pause, at: now, errorCode), retryAfter: pause)
    }

    /// What callers get until a pause has ended that the provider has asked for.
    static func paused(for duration: Duration, at now: Timestamp, _ errorCode: String? = nil) -> BrokerError {
        let error = retryable(errorCode, after: duration)
        return BrokerError(
            error.code,
            "The provider limits how often it is asked, or cannot answer at present: it is not asked again before "
                + "\(now.advanced(by: duration)). What is stored was left as it is.",
            errorCode: errorCode, retryAfter: error.retryAfter)
    }

    /// An answer without a token.
    struct Refusal {
        let status: Int
        let answer: TokenErrorResponse
        /// The status that decides: 400 for an error that an answer of success bears.
        var decidingStatus: Int { (200..<300).contains(status) && answer.error != nil ? 400 : status }
        /// The answer's `Retry-After`; nil where there is none that can be read.
        let retryAfter: Duration?
        /// What continues a sentence about an answer that is a redirect; nil for other answers.
        var redirect: String?
        let fields: [LogField]

        /// The error with what it says of the address that was called.
        func marked(_ error: BrokerError) -> BrokerError {
            var error = error
            error.isMisdirected = status == 404 || answer.isInvalidClient
            return error
        }

        /// The error for a redirect; nil for another answer.
        /// - Parameters:
        ///   - endpoint: the address that was called.
        ///   - member: the member of the configuration that names it.
        func redirected(from endpoint: String, _ member: String) -> BrokerError? {
            redirect.map {
                BrokerError(
                    .tokenResponseError,
                    "\(endpoint) \($0): name in \(member) the address that answers itself. What is stored was left as it "
                        + "is.")
            }
        }

        /// The error for callers where the answer decides nothing.
        var retryable: BrokerError { TokenEndpoint.retryable(answer.errorCode, after: retryAfter) }
    }

    /// What a missing answer means, and whether the request must not be repeated. Once the exchange of a code was sent, the code
    /// may be spent, so it is not repeated. A refresh is repeated, since a provider accepts the same refresh token again during
    /// its grace.
    static func meaning(
        of error: TransportError, grant: TokenRequest.Grant
    ) -> (error: BrokerError, isFinal: Bool) {
        let unreachable = BrokerError(
            .networkError, "The provider could not be reached or did not answer in time.",
            retryAfter: defaultRetryAfterSeconds)
        return switch error {
        case .untrusted:
            (
                BrokerError(
                    .providerUntrusted,
                    "The provider's certificate, host name, pin or version of TLS does not fit. Nothing was sent to it."
                ), true
            )
        case .invalidRequest:
            (
                BrokerError(
                    .illegalConfiguration, "The request to the provider has a header field that may not be sent."), true
            )
        case .invalidURL, .insecureTarget, .forbiddenAddress:
            (
                BrokerError(
                    .illegalConfiguration,
                    "The provider's configured addresses may not be called: " + TargetPolicy.remedy), true
            )
        case .certificateWithoutTLS: (BrokerError(.illegalConfiguration, TargetPolicy.certificateRemedy), true)
        case .proxyRefused(let status):
            (
                BrokerError(
                    .networkError,
                    "The proxy opens no connection to the provider: it answered \(status.code). The tenant's "
                        + "outbound_proxy names the proxy, else HTTPS_PROXY, and NO_PROXY the hosts that are reached without it.",
                    retryAfter: defaultRetryAfterSeconds), status.code < 500
            )
        case .malformedResponse, .responseTooLarge: (unusable, !grant.spendsRefreshToken)
        case .cancelled: (unreachable, true)
        case .nameNotFound, .nameResolutionFailed, .connectFailed, .tlsFailed, .timedOut, .connectionLost:
            (unreachable, grant == .authorizationCode && error.requestMayHaveBeenProcessed)
        }
    }
}

extension TokenEndpoint.Answer {
    /// Whether the token endpoint may have moved: see `MovedEndpoints`.
    var isMisdirected: Bool {
        if case .sessionEnded(let answer, 404) = self { return answer.error == nil }
        return error?.isMisdirected == true
    }
}
