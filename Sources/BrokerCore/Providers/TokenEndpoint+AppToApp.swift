import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth

/// The requests of apps that let other apps of a device in.
extension TokenEndpoint {
    /// What a provider has answered to the request for a code for another app.
    enum AppToAppAnswer: Sendable {
        case code(WireText)
        /// - Parameters:
        ///   - error: nil where the provider names none that can be shown.
        ///   - description: the same.
        case refused(error: String?, description: WireText?)
    }

    /// The longest challenge and the longest code that are read, in bytes.
    private static let longestValue = 2048

    /// Asks for a challenge, and proves with it that this broker has a device key.
    /// - Parameter retries: how often a provider that fails or cannot be reached is asked again.
    /// - Throws: `network_error`, `retryable_error`, `provider_untrusted`; `illegal_configuration` where the provider has no
    ///   such endpoint or refuses; `internal_error` where the key cannot be used.
    func proof(
        of key: DeviceKey, at server: AuthorizationServer, of tenant: TenantName, retries: Int
    ) async throws(BrokerError) -> WireText {
        let (rules, address) = try Self.challengeEndpoint(at: server)
        let challenge = try await challenge(for: rules.challengePurpose, address, server, tenant, retries: retries)
        do throws(KeyError) {
            return try key.proof(of: challenge, by: rules, at: time.now)
        } catch {
            throw BrokerError(.internalError, "The device key of the session cannot be used.")
        }
    }

    /// The provider's rules for keys of devices, and the address of its challenges.
    /// - Throws: `illegal_configuration` where the provider has no such endpoint.
    static func challengeEndpoint(
        at server: AuthorizationServer
    ) throws(BrokerError) -> (rules: ProviderPreset.AppToAppRules, address: String) {
        guard let rules = server.preset.appToApp, let address = server.challengeEndpoint else {
            throw BrokerError(
                .illegalConfiguration,
                "No challenge endpoint is known of this provider. Name it in the configured endpoints.")
        }
        return (rules, address)
    }

    /// Asks for a challenge for that purpose.
    func challenge(
        for purpose: String, _ address: String, _ server: AuthorizationServer, _ tenant: TenantName, retries: Int
    ) async throws(BrokerError) -> WireText {
        let message = try Self.challengeRequest(purpose, address, server)
        let fields: [LogField] = [.tenant(tenant), .provider(server.preset), .endpoint(address)]
        let waits = CallWaits(server.schedule, heeding: nil)
        var retry = 0
        while true {
            let failure: BrokerError
            var retryAfter: Duration?
            switch await send(message, endpoint: .challenge, server: server) {
            case .success(let response) where (200..<300).contains(response.status.code):
                if let challenge = await Self.challenge(in: response) { return challenge }
                log.warning("challenge_unusable", fields + [.status(response.status)])
                throw BrokerError(.networkError, "The provider answered without a usable challenge.")
            case .success(let response):
                let refusal = await refusal(response, to: .none, at: server, fields)
                log.warning("challenge_refused", refusal.fields)
                guard refusal.status >= 500 || refusal.status == 429 else {
                    throw BrokerError(
                        .illegalConfiguration,
                        "The provider refused a challenge with status \(refusal.status). Check the issuer, or "
                            + "endpoints.challenge, and whether the provider has app2app enabled.")
                }
                (failure, retryAfter) = (refusal.retryable, refusal.retryAfter)
            case .failure(let error):
                log.warning("challenge_failed", fields + [.transport(error)])
                // A challenge that is not used does no harm, so the request may be repeated.
                let (reason, isFinal) = Self.meaning(of: error, grant: .deviceCode)
                if isFinal { throw reason }
                failure = reason
            }
            retry += 1
            guard retry <= retries, waits.repeats(retryAfter: retryAfter) else { throw failure }
            try await waitBeforeRetry(waits)
        }
    }

    private static func challengeRequest(
        _ purpose: String, _ address: String, _ server: AuthorizationServer
    ) throws(BrokerError) -> ClientRequest {
        var message = try ClientRequest(provider: server, .post, address)
        message.fields.append("Content-Type", "application/json")
        message.body = JSONWriter.object { $0.member("purpose", purpose) }
        return message
    }

    /// The challenge of an answer; nil where it has none of a usable form.
    static func challenge(in response: ClientResponse) async -> WireText? {
        await value(in: response, at: ["result", "token"])
    }

    /// Asks for a challenge, by one call, for the check of a tenant.
    /// - Parameter limit: for how long to wait for the answer.
    func tryChallenge(
        _ rules: ProviderPreset.AppToAppRules, _ address: String, at server: AuthorizationServer, within limit: Duration
    ) async throws(BrokerError) -> Result<ClientResponse, TransportError> {
        var message = try Self.challengeRequest(rules.challengePurpose, address, server)
        message.timeLimit = limit
        return await send(message, endpoint: .challenge, server: server)
    }

    /// Asks for a code for another app, by one call.
    /// - Throws: `network_error`, `retryable_error`, `provider_untrusted`, `illegal_configuration`, `token_response_error`: the
    ///   provider has not decided.
    func code(
        for request: AppToAppRequest, of refreshToken: SecretBytes, proving proof: WireText,
        at server: AuthorizationServer, of tenant: Tenant
    ) async throws(BrokerError) -> AppToAppAnswer {
        guard let rules = server.preset.appToApp else {
            throw BrokerError(.illegalConfiguration, "This provider lets no app in by another one.")
        }
        let form: [FormEncoding.Pair] = [
            .init("grant_type", rules.grantType), .init("client_id", request.clientID),
            .init("refresh_token", refreshToken.revealedText), .init("jwt", proof),
            .init("redirect_uri", request.redirectURI), .init("code_challenge", request.codeChallenge),
            .init("code_challenge_method", "S256"),
        ]
        let message = try Self.message(.form, to: server.tokenEndpoint, form, nil, server)
        let fields = Self.fields(of: tenant.name, at: server, as: RefreshID())
        let circuit = ProviderClient.OfTenant(tenant.name, tenant.configuration.client, at: server)
        switch await send(message, through: circuit, at: server) {
        case .failure(let error):
            log.warning("app2app_request_failed", fields + [.transport(error)])
            throw Self.meaning(of: error, grant: .deviceCode).error
        case .success(let response) where (200..<300).contains(response.status.code):
            if let code = await Self.value(in: response, at: ["code"]) { return .code(code) }
            log.warning("app2app_response_unusable", fields + [.status(response.status)])
            throw BrokerError(.tokenResponseError, "The provider answered without a usable code.")
        case .success(let response):
            let sent = SentSecrets(form: message.parameters, authorization: nil)
            let refusal = await refusal(response, to: sent, at: server, fields)
            log.warning("app2app_request_refused", refusal.fields)
            try requireDecision(refusal, for: tenant.configuration.client, at: server)
            return .refused(
                error: refusal.answer.error.map { ErrorText.shown($0, answering: sent) },
                description: await Self.description(in: response, answering: sent))
        }
    }

    /// Has other requests for apps spare a provider that limits their rate.
    /// - Throws: `retryable_error` where the refusal says nothing about the request.
    func requireDecision(
        _ refusal: Refusal, for client: ClientConfiguration, at server: AuthorizationServer
    ) throws(BrokerError) {
        let isPassing = TokenFailure.isPassing(status: refusal.status, refusal.answer)
        if isPassing, refusal.status < 500 {
            health.pause(
                ProviderClient.User(nil, of: ProviderClient(client, at: server)),
                for: refusal.retryAfter ?? .seconds(Self.defaultRetryAfterSeconds))
        }
        guard (400...499).contains(refusal.status), !isPassing else { throw refusal.retryable }
    }

    /// A text of an answer; nil where it has none of a usable form.
    static func value(in response: ClientResponse, at path: [WireText]) async -> WireText? {
        let text = await InputReading.run(bytes: response.body.count) { () -> WireText? in
            guard let json = try? JSONValue(parsing: response.body) else { return nil }
            return path.reduce(json as JSONValue?) { $0?[$1] }?.string
        }
        guard let text, (1...longestValue).contains(text.count), TokenText.isSendable(text) else { return nil }
        return text
    }

    /// The description of a refusal for the app that has asked; nil where there is none that can be passed on.
    static func description(in response: ClientResponse, answering sent: SentSecrets) async -> WireText? {
        await InputReading.run(bytes: response.body.count) {
            guard let text = (try? JSONValue(parsing: response.body))?["error_description"]?.string,
                (1...256).contains(text.count), text.utf8.allSatisfy({ $0 >= 0x20 && $0 < 0x7f }),
                !sent.areRepeated(in: text)
            else { return nil }
            return text
        }
    }
}
