import Containers
import ExternalText
import HTTPCodec
import HTTPSClient
import OAuth
import Reactor
import Synchronization

/// Endpoints for pushed authorization requests that have failed a moment ago. Logins that can do without them do so meanwhile,
/// so that no user waits for such an endpoint.
final class PushPauses: Sendable {
    /// For how long such an endpoint is not asked.
    private static let pause: Duration = .seconds(60)

    /// Until when each is left alone. The newest 1024.
    private let ends = Mutex(BoundedTable<WireText, MonotonicInstant>(capacity: 1024))

    func isOver(_ endpoint: String, now: MonotonicInstant) -> Bool {
        ends.withLock { $0[WireText(endpoint)] }.map { $0 <= now } ?? true
    }

    func begin(_ endpoint: String, now: MonotonicInstant) {
        ends.withLock { _ = $0.setNewest(now.advanced(by: Self.pause), forKey: WireText(endpoint)) }
    }
}

/// Pushes the parameters of authorization requests (RFC 9126).
extension TokenEndpoint {
    /// How long a login waits for an endpoint that it can do without.
    private static let patience: Duration = .seconds(5)

    /// Where the browser goes: the address of a request that was pushed, where the provider has an endpoint for that, else the
    /// address with all parameters.
    ///
    /// Where the request is not required to be pushed, no failure prevents the login: the same parameters then go with the browser.
    /// - Parameter uri: that of the request with all parameters.
    /// - Returns: the address, and for how long it is good; nil for as long as the login.
    /// - Throws: where the request must be pushed: `unexpected_error` for a refusal, `retryable_error` and `network_error` after the
    ///   tries of the schedule, `illegal_configuration`.
    func pushing(
        _ uri: String, for client: ClientConfiguration, of tenant: TenantName, at server: AuthorizationServer
    ) async throws(BrokerError) -> (uri: String, lifetime: Duration?) {
        guard let push = server.pushedAuthorization, server.parameters(of: uri) != nil else { return (uri, nil) }
        if !push.isRequired, !pushPauses.isOver(push.endpoint, now: time.monotonic) { return (uri, nil) }
        do throws(BrokerError) {
            let pushed = try await self.push(
                Push(
                    uri: uri, endpoint: push.endpoint, isRequired: push.isRequired, client: client, tenant: tenant,
                    server: server))
            return (server.authorizationURI(of: client, referringTo: pushed), pushed.lifetime)
        } catch {
            if push.isRequired { throw error }
            pushPauses.begin(push.endpoint, now: time.monotonic)
            return (uri, nil)
        }
    }

    private struct Push {
        /// That of the request with all parameters.
        let uri: String
        let endpoint: String
        let isRequired: Bool
        let client: ClientConfiguration
        let tenant: TenantName
        let server: AuthorizationServer
    }

    /// One call, and more where the request must be pushed and the provider fails or cannot be reached. It has no effect that a
    /// repetition could double.
    ///
    /// A refused proof is left out: `dpop_jkt` names the key as well (RFC 9449 §10), and the code is redeemed with a proof. Glewlwyd
    /// wants a nonce in the proof and tells it at the token endpoint only.
    private func push(_ push: Push) async throws(BrokerError) -> PushedAuthorizationResponse {
        let client = push.client
        var server = push.server
        var request = try self.request(push, at: server)
        let fields: [LogField] = [
            .tenant(push.tenant), .refresh(RefreshID()), .provider(server.preset), .endpoint(push.endpoint),
        ]
        let waits = CallWaits(
            server.schedule, heeding: ProviderClient.User(nil, of: ProviderClient(client, at: server)))
        while true {
            let failure: BrokerError
            var (retryAfter, limit): (Duration?, Duration?)
            let (message, result) = try await send(request, at: server) {
                await self.send($0, endpoint: .pushedAuthorization, server: server)
            }
            switch result {
            case .success(let response) where (200..<300).contains(response.status.code):
                let pushed = await InputReading.run(bytes: response.body.count) {
                    PushedAuthorizationResponse(body: response.body)
                }
                if let pushed { return pushed }
                log.warning("pushed_authorization_unusable", fields + [.status(response.status)])
                throw BrokerError(
                    .tokenResponseError, "The provider answered without a usable request_uri.")
            case .success(let response):
                let refusal = await refusal(response, to: message, at: server, fields)
                log.warning("pushed_authorization_refused", refusal.fields)
                if server.proofKey != nil, refusal.answer.error == Self.invalidProof {
                    server.proofKey = nil
                    request = try self.request(push, at: server)
                    continue
                }
                retryAfter = refusal.retryAfter
                guard refusal.status >= 500 || refusal.status == 429 else {
                    throw Self.refused(refusal, at: push.endpoint)
                }
                failure = refusal.retryable
                if refusal.status == 429 { limit = Self.countedLimit(retryAfter, at: server) }
            case .failure(let error):
                log.warning("pushed_authorization_failed", fields + [.transport(error)])
                let (reason, isFinal) = Self.meaning(of: error, grant: .deviceCode)
                if isFinal { throw reason }
                failure = reason
            }
            guard push.isRequired, waits.repeats(retryAfter: retryAfter, limit: limit) else { throw failure }
            try await waitBeforeRetry(waits)
        }
    }

    private static let invalidProof = "invalid_dpop_proof"

    private func request(
        _ push: Push, at server: AuthorizationServer
    ) throws(BrokerError) -> AuthenticatedRequest {
        let parameters = server.parameters(of: push.uri) ?? []
        return try authenticated(
            push.client, at: server, for: push.endpoint, by: server.clientAuthentication,
            or: server.alternativeAuthentication
        ) { client, server throws(BrokerError) in
            let (form, authorization) = PushedAuthorization.form(parameters, for: client, at: server)
            return try Self.message(.form, to: push.endpoint, form, authorization, server)
        }.limited(to: push.isRequired ? nil : Self.patience)
    }

    private static func refused(_ refusal: Refusal, at endpoint: String) -> BrokerError {
        refusal.redirected(from: endpoint, "endpoints.pushed_authorization_request")
            ?? BrokerError(
                .unexpectedError,
                "The provider refused the pushed authorization request with status \(refusal.status).".followed(
                    by: RefusalAdvice.sentence(of: refusal.answer, status: refusal.status, grant: .authorizationCode)),
                errorCode: refusal.answer.errorCode)
    }
}
