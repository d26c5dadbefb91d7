import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Reactor

/// Sends the requests of the OAuth core by the HTTPS client, repeats them by the schedule, and finds out what an answer means.
package struct TokenEndpoint: Sendable {
    /// The result of one call.
    enum Answer {
        case granted(TokenResponse)
        /// An answer of success without a usable access token, but with the refresh token that has replaced the one of the request.
        case rotated(BrokerError, refreshToken: SecretBytes)
        /// The provider says that the session of the refresh token has ended.
        /// - Parameter status: of that answer.
        case sessionEnded(TokenErrorResponse, status: Int)
        /// The provider refused, and would refuse again.
        case refused(BrokerError)
        /// The same, with an answer of status 4xx that names no cause, or one that can mean the client, the request or the grant.
        case refusedUnclearly(BrokerError, RefusedAnswer)
        /// The provider does not accept the client, so that it refuses the requests for all users.
        case clientRefused(BrokerError, ClientRefusalScope)
        case again(BrokerError, retryAfter: Duration?)
        /// The provider counts the client's requests, and asks it to wait.
        case rateLimited(BrokerError, retryAfter: Duration)

        /// The wait that the provider asks for; nil for none.
        var retryAfter: Duration? {
            switch self {
            case .again(_, let wait): wait
            case .rateLimited(_, let wait): wait
            case .granted, .rotated, .sessionEnded, .refused, .refusedUnclearly, .clientRefused: nil
            }
        }

        /// The error for callers, for whom the end of a session is a refusal; nil for a grant.
        var error: BrokerError? {
            switch self {
            case .granted: nil
            case .sessionEnded(let answer, _):
                BrokerError(.unexpectedError, "The provider refused the request.", errorCode: answer.errorCode)
            case .rotated(let error, _), .refused(let error), .refusedUnclearly(let error, _),
                .clientRefused(let error, _), .again(let error, _), .rateLimited(let error, _):
                error
            }
        }
    }

    /// A token request that can be sent any number of times.
    struct Call: Sendable {
        fileprivate let request: AuthenticatedRequest
        let grant: TokenRequest.Grant
        let server: AuthorizationServer
        let id: RefreshID
        /// The tenant on whose behalf the call is made.
        let tenant: TenantName
        let client: ClientConfiguration
        /// What the provider sees of the client.
        let shown: ClientUse
        /// The key of the provider's pauses for this client.
        let pause: ProviderClient
        /// The circuit through which the call goes.
        let circuit: ProviderClient.OfTenant

        /// The fields of the call's log lines.
        var fields: [LogField] { TokenEndpoint.fields(of: tenant, at: server, as: id) }
    }

    /// The fields of the log lines of a request to the token endpoint.
    static func fields(
        of tenant: TenantName, at server: AuthorizationServer, as id: RefreshID
    ) -> [LogField] {
        [.tenant(tenant), .refresh(id), .provider(server.preset), .endpoint(server.tokenEndpoint)]
    }

    private let transport: any ProviderTransport
    let time: any Time
    private let metrics: Metrics
    let log: Log
    /// A renewal takes a place of this budget before it begins. Calls themselves take none: the caller has a place already, or a
    /// user waits for the call.
    let budget: ProviderBudget
    /// Notes what calls show of the provider. A renewal asks it before a call. Logins and polls do not ask it: a user waits for
    /// them.
    package var health: ProviderHealths { budget.health }
    /// Which clients are accepted by another method than the first one.
    let acceptedMethods = AcceptedMethods()
    /// The nonces that servers want in proofs.
    let nonces = ProofNonces()
    /// Which endpoints for pushed authorization requests are left alone.
    let pushPauses = PushPauses()
    /// The longest time of one call, unless the provider's preset has a longer one for token requests.
    private let callLimit: Duration
    /// Where the files that tenants name must be; nil for anywhere.
    let clientFileDirectories: [String]?

    /// The executor that work with the provider should prefer; nil for any.
    var executor: (any TaskExecutor)? { transport.executor }

    package init(
        transport: any ProviderTransport, budget: ProviderBudget, callLimit: Duration,
        clientFileDirectories: [String]?, time: any Time, metrics: Metrics, log: Log
    ) {
        self.clientFileDirectories = clientFileDirectories
        self.callLimit = callLimit
        self.transport = transport
        self.budget = budget
        self.time = time
        self.metrics = metrics
        self.log = log
    }

    /// Prepares a token request.
    /// - Throws: `illegal_configuration` where the tenant's addresses or pins are not usable.
    func prepare(
        _ request: TokenRequest, for client: ClientConfiguration, of tenant: TenantName,
        at server: AuthorizationServer, as id: RefreshID
    ) throws(BrokerError) -> Call {
        return Call(
            request: try authenticated(request, for: client, at: server), grant: request.grant,
            server: server, id: id, tenant: tenant, client: client, shown: ClientUse(client, request.grant),
            pause: ProviderClient(client, at: server), circuit: ProviderClient.OfTenant(tenant, client, at: server))
    }

    /// Exchanges a code for a token: one call, and more where the schedule allows retries, by default up to five.
    /// - Parameters:
    ///   - key: the device key that the exchange of a code binds; each further call needs a proof of its own.
    ///   - notesOutage: whether the circuit of the client is told. False for a code that may be made up.
    ///   - repeats: false for one call.
    func redeem(
        _ request: TokenRequest, for client: ClientConfiguration, of tenant: TenantName,
        at server: AuthorizationServer, as id: RefreshID,
        binding key: DeviceKey? = nil, notesOutage: Bool = true, repeats: Bool = true
    ) async throws(BrokerError) -> TokenResponse {
        var call = try prepare(request, for: client, of: tenant, at: server, as: id)
        // A code expires soon, so it does not wait for a pause that the provider has asked other calls for.
        let waits = CallWaits(server.schedule, heeding: nil)
        while true {
            let answer = await send(call, notesOutage: notesOutage).answer
            switch answer {
            case .granted(let response): return response
            case .again(let error, _), .rateLimited(let error, _):
                var limit: Duration?
                if case .rateLimited(_, let wait) = answer { limit = wait }
                guard repeats, waits.repeats(retryAfter: answer.retryAfter, limit: limit) else { throw error }
                try await waitBeforeRetry(waits)
                if let key, case .authorizationCode(let code, let redirectURI, let codeVerifier, _) = request {
                    let proof = try await proof(of: key, at: server, of: tenant, retries: 0)
                    call = try prepare(
                        .authorizationCode(
                            code: code, redirectURI: redirectURI, codeVerifier: codeVerifier, keyProof: proof),
                        for: client, of: tenant, at: server, as: id)
                }
            case .rotated, .refused, .refusedUnclearly, .clientRefused, .sessionEnded: throw answer.error!
            }
        }
    }

    /// Requests the codes of a device login (RFC 8628 §3.1): one call, and more where the provider fails or cannot be reached, by
    /// default up to five.
    func authorizeDevice(
        for client: ClientConfiguration, of tenant: TenantName, at server: AuthorizationServer
    ) async throws(BrokerError) -> DeviceAuthorizationResponse {
        guard let address = server.deviceAuthorizationEndpoint else {
            throw BrokerError(
                .illegalConfiguration,
                "No device authorization endpoint is known of this provider. Name it in the configured endpoints.")
        }
        let request = try authenticated(
            client, at: server, for: address, by: server.clientAuthentication, or: server.alternativeAuthentication
        ) { client, server throws(BrokerError) in
            let (form, authorization) = DeviceAuthorizationRequest.form(for: client, at: server)
            return try Self.message(.form, to: address, form, authorization, server)
        }
        let fields: [LogField] = [
            .tenant(tenant), .refresh(RefreshID()), .provider(server.preset), .endpoint(address),
        ]
        let waits = CallWaits(
            server.schedule, heeding: ProviderClient.User(nil, of: ProviderClient(client, at: server)))
        while true {
            let failure: BrokerError
            var (retryAfter, limit): (Duration?, Duration?)
            let (message, result) = try await send(request, at: server) {
                await self.send($0, endpoint: .deviceAuthorization, server: server)
            }
            switch result {
            case .success(let response) where (200..<300).contains(response.status.code):
                let granted = await InputReading.run(bytes: response.body.count) {
                    DeviceAuthorizationResponse(body: response.body)
                }
                if let granted { return granted }
                log.warning("device_authorization_unusable", fields + [.status(response.status)])
                throw BrokerError(.tokenResponseError, "The provider answered without usable codes.")
            case .success(let response):
                let refusal = await refusal(response, to: message, at: server, fields)
                log.warning("device_authorization_refused", refusal.fields)
                retryAfter = refusal.retryAfter
                guard refusal.status >= 500 || refusal.status == 429 else {
                    if let redirected = refusal.redirected(from: address, "endpoints.device_authorization") {
                        throw redirected
                    }
                    throw BrokerError(
                        .unexpectedError,
                        "The provider refused the device login with status \(refusal.status).".followed(
                            by: RefusalAdvice.sentence(of: refusal.answer, status: refusal.status, grant: .deviceCode)),
                        errorCode: refusal.answer.errorCode)
                }
                failure = refusal.retryable
                if refusal.status == 429 { limit = Self.countedLimit(retryAfter, at: server) }
            case .failure(let error):
                log.warning("device_authorization_failed", fields + [.transport(error)])
                // A code that no user has seen does no harm, so the request may be repeated.
                let (reason, isFinal) = Self.meaning(of: error, grant: .deviceCode)
                if isFinal { throw reason }
                failure = reason
            }
            guard waits.repeats(retryAfter: retryAfter, limit: limit) else { throw failure }
            try await waitBeforeRetry(waits)
        }
    }

    /// The result of a token request that tries a client.
    enum ClientTrial {
        case answered(Answered)
        case unanswered(TransportError)
    }

    /// The answer to such a request.
    enum Answered {
        case granted
        case refused(status: Int, TokenErrorResponse, retryAfter: Duration?)
        /// An answer with a status of 2xx and without a token.
        case unusable
    }

    /// Tries the client by one call. A token that it is granted is dropped.
    /// - Throws: `illegal_configuration` where the tenant's addresses or pins are not usable.
    func tryClient(
        by request: TokenRequest, for client: ClientConfiguration, of tenant: TenantName,
        at server: AuthorizationServer, within limit: Duration
    ) async throws(BrokerError) -> ClientTrial {
        let call = try prepare(request, for: client, of: tenant, at: server, as: RefreshID())
        let asked = time.now
        let (message, result) = try await send(call.request.limited(to: limit), through: call.circuit, at: server)
        switch result {
        case .failure(let error): return .unanswered(error)
        case .success(let response):
            let isSuccess = (200..<300).contains(response.status.code)
            if isSuccess, await readGrant(response, of: server, askedAt: asked, call.fields) != nil {
                return .answered(.granted)
            }
            let refusal = await refusal(response, to: message, at: server, call.fields)
            // An error counts whatever the status that bears it.
            if isSuccess, refusal.answer.error == nil { return .answered(.unusable) }
            return .answered(
                .refused(status: refusal.status, refusal.answer, retryAfter: refusal.retryAfter))
        }
    }

    /// Polls for the token of a device login (RFC 8628 §3.4), one call.
    func poll(
        _ deviceCode: SecretBytes, for client: ClientConfiguration, of tenant: TenantName,
        at server: AuthorizationServer, as id: RefreshID
    ) async -> (outcome: DevicePolling.Outcome, response: TokenResponse?) {
        guard let request = try? authenticated(.deviceCode(deviceCode), for: client, at: server) else {
            return (.unreachable, nil)
        }
        let asked = time.now
        let fields = Self.fields(of: tenant, at: server, as: id)
        let (message, result): (ClientRequest, Result<ClientResponse, TransportError>)
        do throws(BrokerError) {
            (message, result) = try await send(
                request, through: ProviderClient.OfTenant(tenant, client, at: server), at: server)
        } catch {
            log.warning("device_poll_failed", fields + [.code(error.code)])
            return (.unreachable, nil)
        }
        switch result {
        case .failure(let error):
            log.warning("device_poll_failed", fields + [.transport(error)])
            return (.unreachable, nil)
        case .success(let response):
            if (200..<300).contains(response.status.code),
                let granted = await readGrant(response, of: server, askedAt: asked, fields)
            {
                return (.granted, granted)
            }
            let refusal = await refusal(response, to: message, at: server, fields)
            log.debug("device_poll_answered", refusal.fields)
            return (
                .answered(status: refusal.decidingStatus, refusal.answer, retryAfter: refusal.retryAfter), nil
            )
        }
    }

    /// What a call without a grant may have done at the provider.
    enum Trace {
        case none
        /// The provider has answered, and may have spent the refresh token.
        case spent
        /// The provider has not answered, and may still process the call.
        case underWay
    }

    /// Makes one call. Returns its result, what it may have done at the provider, and whether the provider's answer was read.
    /// - Parameters:
    ///   - limit: for how long to wait for the answer; nil for as long as a token request may take.
    ///   - notesOutage: whether the circuit of the client is told of it.
    func send(
        _ call: Call, limit: Duration? = nil, notesOutage: Bool = true
    ) async -> (answer: Answer, trace: Trace, isAnswered: Bool) {
        let (server, grant) = (call.server, call.grant)
        let response: ClientResponse
        // A lifetime counts from the grant, which comes after this.
        let asked = time.now
        let circuit = notesOutage ? call.circuit : nil
        let (message, result): (ClientRequest, Result<ClientResponse, TransportError>)
        do throws(BrokerError) {
            (message, result) = try await send(call.request.limited(to: limit), through: circuit, at: server)
        } catch {
            log.warning("token_request_failed", call.fields + [.code(error.code)])
            return (.refused(error), .none, false)
        }
        switch result {
        case .success(let answer): response = answer
        case .failure(let error):
            log.warning("token_request_failed", call.fields + [.transport(error)])
            let (reason, isFinal) = Self.meaning(of: error, grant: grant)
            let trace: Trace =
                error.requestMayBeUnderWay ? .underWay : error.requestMayHaveBeenProcessed ? .spent : .none
            return (isFinal ? .refused(reason) : .again(reason, retryAfter: nil), trace, false)
        }
        if (200..<300).contains(response.status.code) {
            if let granted = await readGrant(
                response, of: server, askedAt: asked, isRefresh: grant.spendsRefreshToken, call.fields)
            {
                return (.granted(granted), .none, true)
            }
            if grant.spendsRefreshToken, let successor = await refreshToken(ofUnusable: response) {
                log.warning("token_response_unusable", call.fields + [.status(response.status)])
                return (.rotated(Self.unusable, refreshToken: successor), .spent, true)
            }
            if let answer = await meaning(ofErrorIn: response, to: message, of: call, at: server) {
                return (answer, .none, true)
            }
            log.warning("token_response_unusable", call.fields + [.status(response.status)])
            // The refresh token is spent nevertheless. It can be presented again during the provider's grace.
            return (
                grant.spendsRefreshToken ? .again(Self.unusable, retryAfter: nil) : .refused(Self.unusable), .spent,
                true
            )
        }
        let refusal = await refusal(response, to: message, at: server, call.fields)
        log.warning("token_request_refused", refusal.fields)
        return (meaning(of: refusal, grant: grant, server: server), refusal.status >= 500 ? .spent : .none, true)
    }

    /// The grant in an answer; nil where there is none.
    func readGrant(
        _ response: ClientResponse, of server: AuthorizationServer, askedAt asked: Timestamp, isRefresh: Bool = false,
        _ fields: [LogField]
    ) async -> TokenResponse? {
        let granted = await InputReading.run(bytes: response.body.count) {
            TokenResponse(
                body: response.body, askedAt: asked, from: server.preset, use: server.tokenUse, isForm: response.isForm,
                isRefresh: isRefresh, provenBy: server.proofKey)
        }
        if granted?.hasUnreadableLifetime == true {
            log.warning("token_lifetime_unreadable", fields)
        }
        if granted?.hasUnreadableRefreshToken == true { log.warning("refresh_token_unreadable", fields) }
        return granted
    }

    private func refreshToken(ofUnusable response: ClientResponse) async -> SecretBytes? {
        await InputReading.run(bytes: response.body.count) {
            TokenResponse.refreshToken(ofUnusable: response.body, isForm: response.isForm)
        }
    }

    func refusal(
        _ response: ClientResponse, to request: ClientRequest, at server: AuthorizationServer, _ fields: [LogField]
    ) async -> Refusal {
        await refusal(
            response, to: SentSecrets(form: request.parameters, authorization: request.fields["Authorization"]),
            at: server, fields)
    }

    /// - Parameter sent: the secrets of the request.
    func refusal(
        _ response: ClientResponse, to sent: SentSecrets, at server: AuthorizationServer, _ fields: [LogField]
    ) async -> Refusal {
        let (status, answers) = (response.status.code, server.preset.answers)
        let answer = await InputReading.run(bytes: response.body.count) {
            let answer = TokenErrorResponse(body: response.body, answering: sent, answers: answers)
            let meaning = answers.meaning(ofAnswer: response.body, status: status)
            return meaning.map { TokenErrorResponse(answer, meaning: $0) } ?? answer
        }
        return Refusal(
            status: response.status.code, answer: answer,
            retryAfter: server.schedule.followsRetryAfter
                ? response.fields["Retry-After"].flatMap {
                    RetryAfter.parse($0, status: response.status.code, now: time.now)
                } : nil,
            redirect: ReceivedAnswer.redirect(response, answering: sent),
            fields: fields + [.status(response.status)] + [LogField.providerError(answer)].compactMap { $0 })
    }

    /// How long to wait before a request is repeated: as long as the schedule says, and until the end of a pause that the
    /// provider has asked for meanwhile, in the answer to another call of the same client.
    /// - Throws: `retryable_error`, with the rest of the pause, where the pause lasts longer than `longest`.
    func wait(
        _ scheduled: Duration, heeding pause: ProviderClient.User, atMost longest: Duration
    ) throws(BrokerError) -> Duration {
        guard let refusal = health.refusal(pause) else { return scheduled }
        let remaining = time.monotonic.duration(to: refusal.until)
        if remaining > longest { throw health.error(refusal) }
        return max(scheduled, remaining)
    }

    /// The wait after a 429 that counts where the tenant says how often that is waited for; nil where it does not.
    static func countedLimit(_ retryAfter: Duration?, at server: AuthorizationServer) -> Duration? {
        server.schedule.rateLimitRetries.map { _ in retryAfter ?? .seconds(defaultRetryAfterSeconds) }
    }

    /// Waits before a request is repeated, and for a pause that the provider has asked for meanwhile, in the time that is left for
    /// the call's waits.
    func waitBeforeRetry(_ waits: CallWaits) async throws(BrokerError) {
        let start = time.monotonic
        let latest = waits.latestEnd(now: start)
        var wait = waits.next
        while true {
            if let pause = waits.pause {
                wait = try self.wait(wait, heeding: pause, atMost: time.monotonic.duration(to: latest))
            }
            if wait <= .zero { break }
            do {
                try await time.sleep(for: wait)
            } catch {
                throw BrokerError.shuttingDown
            }
            wait = .zero
        }
        waits.count(start.duration(to: time.monotonic))
    }

    /// Sends a request to the token endpoint, and notes whether the provider answers.
    /// - Parameter circuit: where that is noted; nil for nowhere.
    func send(
        _ message: ClientRequest, through circuit: ProviderClient.OfTenant?, at server: AuthorizationServer
    ) async -> Result<ClientResponse, TransportError> {
        let result = await send(message, endpoint: .token, server: server)
        guard let circuit else { return result }
        switch result {
        case .success(let response):
            if response.status.code >= 500 {
                health.fail(.serverError, circuit, at: server)
            } else {
                health.succeed(circuit)
            }
        case .failure(let error):
            // An error that another try would meet as well says nothing about an outage.
            let isFinal = Self.meaning(of: error, grant: .refreshToken).isFinal
            if !isFinal { health.fail(.unreachable, circuit, at: server) }
        }
        return result
    }

    func send(
        _ message: ClientRequest, endpoint: Metrics.ProviderEndpoint, server: AuthorizationServer
    ) async -> Result<ClientResponse, TransportError> {
        let start = time.monotonic
        var message = message
        let longest = endpoint == .token ? server.preset.longestTokenRequest(atLeast: callLimit) : callLimit
        message.timeLimit = min(message.timeLimit ?? longest, longest)
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

    /// The `Retry-After` for callers where the provider names none.
    static let defaultRetryAfterSeconds = 5

    static let unusable = BrokerError(
        .tokenResponseError, "The provider answered without a usable token. What is stored was left as it is.")

    static func retryable(_ errorCode: String?, after duration: Duration?) -> BrokerError {
        let seconds = duration.map { Int(($0.milliseconds + 999) / 1000) }
        return BrokerError(
            .retryableError, "The provider cannot answer now. What is stored was left as it is.",
            errorCode: errorCode, retryAfter: max(1, seconds ?? defaultRetryAfterSeconds))
    }
}
