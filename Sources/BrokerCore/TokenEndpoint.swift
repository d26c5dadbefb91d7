internal import Cryptography
internal import HTTPCodec
internal import HTTPSClient
internal import OAuth
internal import Reactor
internal import Synchronization

/// Where the OAuth core meets the HTTPS client: sends token requests, tries again by the schedule, and says what an
/// answer means.
package struct TokenEndpoint: Sendable {
    /// A request that brought no token.
    enum Failure: Error {
        /// The provider ended the session that the refresh token belongs to.
        case sessionEnded(TokenErrorResponse)
        case failed(BrokerError)

        /// The failure for one to whom a refusal is a refusal: a refresh token is not what was asked with.
        var reason: BrokerError {
            switch self {
            case .failed(let reason): reason
            case .sessionEnded(let answer):
                BrokerError(
                    .unexpectedError, "The provider refused the request.",
                    errorCode: answer.error ?? answer.subStatus)
            }
        }
    }

    private let transport: any ProviderTransport
    private let time: any Time
    private let metrics: Metrics
    private let log: Log
    private let pauses = ProviderPauses()

    package init(transport: any ProviderTransport, time: any Time, metrics: Metrics, log: Log) {
        self.transport = transport
        self.time = time
        self.metrics = metrics
        self.log = log
    }

    /// Shows that the provider has not asked to be left alone.
    /// - Throws: `retryable_error` for as long as it has.
    func admit(_ client: ClientConfiguration, at server: AuthorizationServer) throws(BrokerError) {
        if let remaining = pauses.remaining(Self.pauseKey(client, server), now: time.monotonic) {
            throw Self.retryable(nil, after: remaining)
        }
    }

    private static func pauseKey(_ client: ClientConfiguration, _ server: AuthorizationServer) -> ProviderPauses.Key {
        ProviderPauses.Key(tokenEndpoint: server.tokenEndpoint, clientID: client.clientID)
    }

    /// Asks for a token: one call, and up to five more where the design has them.
    /// - Parameter retriesEveryFailure: whether every failure at all is tried again, and none is final: an upgrade.
    func request(
        _ request: TokenRequest, for client: ClientConfiguration, at server: AuthorizationServer, as id: RefreshID,
        retriesEveryFailure: Bool = false
    ) async throws(Failure) -> TokenResponse {
        let pause = Self.pauseKey(client, server)
        if request.grant != .authorizationCode {
            do throws(BrokerError) {
                try admit(client, at: server)
            } catch {
                throw .failed(error)
            }
        }
        let (form, authorization) = request.form(for: client, at: server)
        let message = try Self.message(to: server.tokenEndpoint, form, authorization, server)
        var retry = 0
        while true {
            var outcome = await attempt(message, grant: request.grant, server: server, id: id)
            if retriesEveryFailure { outcome = outcome.neverFinal }
            switch outcome {
            case .granted(let response): return response
            case .ended(let failure): throw failure
            case .again(let error, let retryAfter):
                retry += 1
                guard let wait = BackoffSchedule.standard.wait(before: retry, retryAfter: retryAfter) else {
                    if let retryAfter { pauses.pause(pause, for: retryAfter, now: time.monotonic) }
                    throw .failed(error)
                }
                do {
                    try await time.sleep(for: wait)
                } catch {
                    throw .failed(BrokerError(.retryableError, "The broker is shutting down.", retryAfter: 1))
                }
            case .rateLimited(let error, let retryAfter):
                pauses.pause(pause, for: retryAfter, now: time.monotonic)
                throw .failed(error)
            }
        }
    }

    /// Asks for the codes of a device login (RFC 8628 §3.1): one call, and up to five more where the provider fails or
    /// cannot be reached.
    func authorizeDevice(
        for client: ClientConfiguration, at server: AuthorizationServer
    ) async throws(BrokerError) -> DeviceAuthorizationResponse {
        guard let address = server.deviceAuthorizationEndpoint else {
            throw BrokerError(
                .illegalConfiguration,
                "No device authorization endpoint is known of this provider. Name it in the tenant's endpoints.")
        }
        let (form, authorization) = DeviceAuthorizationRequest.form(for: client, at: server)
        let message: ClientRequest
        do throws(Failure) {
            message = try Self.message(to: address, form, authorization, server)
        } catch {
            throw error.reason
        }
        let id = RefreshID()
        var retry = 0
        while true {
            let failure: BrokerError
            var retryAfter: Duration?
            switch await send(message, endpoint: "device_authorization", server: server) {
            case .success(let response) where (200..<300).contains(response.status.code):
                if let granted = DeviceAuthorizationResponse(body: response.body) { return granted }
                log.warning("device_authorization_unusable", [.refresh(id), .provider(server.preset)])
                throw BrokerError(.tokenResponseError, "The provider answered without usable codes.")
            case .success(let response):
                let answer = TokenErrorResponse(body: response.body)
                log.warning(
                    "device_authorization_refused",
                    [.refresh(id), .provider(server.preset), .status(response.status)]
                        + [LogField.providerError(answer)].compactMap { $0 })
                let (status, errorCode) = (response.status.code, answer.error ?? answer.subStatus)
                retryAfter = response.fields["Retry-After"].flatMap { RetryAfter.parse($0, now: time.now) }
                guard status >= 500 || status == 429 else {
                    throw BrokerError(
                        .unexpectedError, "The provider refused the device login with status \(status).",
                        errorCode: errorCode)
                }
                failure = Self.retryable(errorCode, after: retryAfter)
            case .failure(let error):
                log.warning("device_authorization_failed", [.refresh(id), .provider(server.preset), .transport(error)])
                // A code that nobody was told of is no harm, so that asking twice is none either.
                switch Self.meaning(of: error, grant: .deviceCode) {
                case .again(let reason, _): failure = reason
                case .ended(let ended): throw ended.reason
                case .granted, .rateLimited: throw Self.unusable
                }
            }
            retry += 1
            guard let wait = BackoffSchedule.standard.wait(before: retry, retryAfter: retryAfter) else {
                throw failure
            }
            do {
                try await time.sleep(for: wait)
            } catch {
                throw BrokerError(.retryableError, "The broker is shutting down.", retryAfter: 1)
            }
        }
    }

    /// Polls for the token of a device login (RFC 8628 §3.4), one call.
    func poll(
        _ deviceCode: SecretBytes, for client: ClientConfiguration, at server: AuthorizationServer, as id: RefreshID
    ) async -> (outcome: DevicePolling.Outcome, response: TokenResponse?) {
        let (form, authorization) = TokenRequest.deviceCode(deviceCode).form(for: client, at: server)
        guard let message = try? Self.message(to: server.tokenEndpoint, form, authorization, server) else {
            return (.unreachable, nil)
        }
        switch await send(message, endpoint: "token", server: server) {
        case .failure(let error):
            log.warning("device_poll_failed", [.refresh(id), .provider(server.preset), .transport(error)])
            return (.unreachable, nil)
        case .success(let response):
            let status = response.status.code
            if (200..<300).contains(status), let granted = TokenResponse(body: response.body, receivedAt: time.now) {
                return (.granted, granted)
            }
            let answer = TokenErrorResponse(body: response.body)
            log.debug(
                "device_poll_answered",
                [.refresh(id), .provider(server.preset), .status(response.status)]
                    + [LogField.providerError(answer)].compactMap { $0 })
            let retryAfter = response.fields["Retry-After"].flatMap { RetryAfter.parse($0, now: time.now) }
            return (.answered(status: status, answer, retryAfter: retryAfter), nil)
        }
    }

    /// Revokes a token (RFC 7009 §2.1), one call. Returns whether the provider said that it is revoked.
    func revoke(
        _ token: SecretBytes, isRefreshToken: Bool, for client: ClientConfiguration, at server: AuthorizationServer
    ) async -> Bool {
        guard let endpoint = server.revocationEndpoint else { return false }
        var form: [FormEncoding.Pair] = [
            .init("token", token.revealedText),
            .init("token_type_hint", isRefreshToken ? "refresh_token" : "access_token"),
        ]
        let authorization = ClientAuthenticator.authenticate(client, by: server.clientAuthentication, into: &form)
        guard let message = try? Self.message(to: endpoint, form, authorization, server) else { return false }
        let answer = await send(message, endpoint: "revocation", server: server)
        guard case .success(let response) = answer else { return false }
        return response.status == .ok
    }

    private enum Attempt {
        case granted(TokenResponse)
        case ended(Failure)
        case again(BrokerError, retryAfter: Duration?)
        case rateLimited(BrokerError, retryAfter: Duration)

        var neverFinal: Attempt {
            switch self {
            case .granted, .again: self
            case .ended(let failure): .again(failure.reason, retryAfter: nil)
            case .rateLimited(let error, let retryAfter): .again(error, retryAfter: retryAfter)
            }
        }
    }

    private func attempt(
        _ message: ClientRequest, grant: TokenRequest.Grant, server: AuthorizationServer, id: RefreshID
    ) async -> Attempt {
        let response: ClientResponse
        switch await send(message, endpoint: "token", server: server) {
        case .success(let answer): response = answer
        case .failure(let error):
            log.warning(
                "token_request_failed", [.refresh(id), .provider(server.preset), .transport(error)])
            return Self.meaning(of: error, grant: grant)
        }
        let status = response.status.code
        if (200..<300).contains(status) {
            if let granted = TokenResponse(body: response.body, receivedAt: time.now) { return .granted(granted) }
            log.warning(
                "token_response_unusable", [.refresh(id), .provider(server.preset), .status(response.status)])
            return .ended(.failed(Self.unusable))
        }
        let answer = TokenErrorResponse(body: response.body)
        log.warning(
            "token_request_refused",
            [.refresh(id), .provider(server.preset), .status(response.status)]
                + [LogField.providerError(answer)].compactMap { $0 })
        let retryAfter = response.fields["Retry-After"].flatMap { RetryAfter.parse($0, now: time.now) }
        let errorCode = answer.error ?? answer.subStatus
        let failure = TokenFailure(
            grant: grant, status: status, answer: answer, sessionEndingAnswers: server.sessionEndingAnswers)
        switch failure {
        case .endsSession: return .ended(.sessionEnded(answer))
        case .retryable: return .again(Self.retryable(errorCode, after: retryAfter), retryAfter: retryAfter)
        case .rateLimited:
            let error = Self.retryable(errorCode, after: retryAfter)
            if grant == .authorizationCode { return .again(error, retryAfter: retryAfter) }
            return .rateLimited(error, retryAfter: retryAfter ?? .seconds(Self.defaultRetryAfterSeconds))
        case .illegalConfiguration:
            return .ended(
                .failed(
                    BrokerError(
                        .illegalConfiguration,
                        "The provider does not grant this client credentials. Check the tenant's client_id, "
                            + "client_secret and scopes.",
                        errorCode: answer.subStatus ?? answer.error)))
        case .unexpected:
            return .ended(
                .failed(
                    BrokerError(
                        .unexpectedError, "The provider refused the token request with status \(status).",
                        errorCode: errorCode)))
        case .unusable: return .ended(.failed(Self.unusable))
        }
    }

    /// What a missing answer means. A code may be spent once the request was sent, so its exchange is not repeated
    /// then; a refresh token is good for another try (a provider's grace period covers it).
    private static func meaning(of error: TransportError, grant: TokenRequest.Grant) -> Attempt {
        let unreachable = BrokerError(
            .networkError, "The provider could not be reached or did not answer in time.",
            retryAfter: defaultRetryAfterSeconds)
        switch error {
        case .untrusted:
            return .ended(
                .failed(
                    BrokerError(
                        .providerUntrusted,
                        "The provider's certificate, host name or pin does not fit. Nothing was sent to it.")))
        case .invalidURL, .invalidRequest, .insecureTarget, .forbiddenAddress:
            return .ended(
                .failed(
                    BrokerError(
                        .illegalConfiguration,
                        "The tenant's provider addresses may not be called: http:// and private addresses need "
                            + "TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS=true.")))
        case .malformedResponse, .responseTooLarge:
            return .ended(.failed(unusable))
        case .cancelled:
            return .ended(.failed(unreachable))
        case .nameNotFound, .nameResolutionFailed, .connectFailed, .tlsFailed, .timedOut, .connectionLost:
            if grant == .authorizationCode, error.requestMayHaveBeenProcessed { return .ended(.failed(unreachable)) }
            return .again(unreachable, retryAfter: nil)
        }
    }

    private func send(
        _ message: ClientRequest, endpoint: String, server: AuthorizationServer
    ) async -> Result<ClientResponse, TransportError> {
        let start = time.monotonic
        let result: Result<ClientResponse, TransportError>
        do throws(TransportError) {
            result = .success(try await transport.send(message))
        } catch {
            result = .failure(error)
        }
        let code = if case .success(let response) = result { String(response.status.code) } else { "error" }
        metrics.providerAnswered(
            provider: server.preset.name, endpoint: endpoint, code: code, took: start.duration(to: time.monotonic))
        return result
    }

    private static func message(
        to endpoint: String, _ form: [FormEncoding.Pair], _ authorization: String?, _ server: AuthorizationServer
    ) throws(Failure) -> ClientRequest {
        guard let url = URLTarget(endpoint) else {
            throw .failed(BrokerError(.illegalConfiguration, "The provider's endpoint is not a usable URL."))
        }
        let pins: PinSet?
        do throws(BrokerError) {
            pins = try PinSet.inForce(server.pinnedCertificates, at: url)
        } catch {
            throw .failed(error)
        }
        var fields: Fields = [
            "Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json",
            "User-Agent": "token-broker",
        ]
        if let authorization { fields.append("Authorization", authorization) }
        return ClientRequest(
            method: .post, url: url, fields: fields, body: Array(FormEncoding.encode(form).utf8),
            pins: pins)
    }

    /// What a caller is told when the provider says nothing about it.
    private static let defaultRetryAfterSeconds = 5

    private static let unusable = BrokerError(
        .tokenResponseError, "The provider answered without a usable token. What is stored was left as it is.")

    private static func retryable(_ errorCode: String?, after duration: Duration?) -> BrokerError {
        let seconds = duration.map { Int(($0.milliseconds + 999) / 1000) }
        return BrokerError(
            .retryableError, "The provider cannot answer now. What is stored was left as it is.",
            errorCode: errorCode, retryAfter: max(1, seconds ?? defaultRetryAfterSeconds))
    }
}

/// Which providers asked to be left alone, and until when.
private final class ProviderPauses: Sendable {
    struct Key: Hashable {
        let tokenEndpoint: String
        let clientID: String
    }

    private let pauses = Mutex<[Key: MonotonicInstant]>([:])

    func pause(_ key: Key, for duration: Duration, now: MonotonicInstant) {
        let end = now.advanced(by: duration)
        pauses.withLock { pauses in
            // Clients that are never asked for again leave their pauses behind.
            if pauses.count >= 1024 { pauses = pauses.filter { $0.value > now } }
            pauses[key] = max(end, pauses[key] ?? end)
        }
    }

    /// How long the pause still lasts; nil without one. Pauses that are over are forgotten.
    func remaining(_ key: Key, now: MonotonicInstant) -> Duration? {
        pauses.withLock { pauses in
            guard let end = pauses[key] else { return nil }
            if end > now { return now.duration(to: end) }
            pauses[key] = nil
            return nil
        }
    }
}
