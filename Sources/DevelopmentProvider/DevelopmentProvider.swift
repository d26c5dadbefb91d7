import ExternalText
package import HTTPCodec
package import HTTPServer
import JOSE
import JSON
package import Reactor
import Synchronization
import Waiting

/// An OAuth 2.0 authorization server for development and tests. It keeps its state in memory.
///
/// Everyone can log in with any name, and everyone can read the state of tokens under `/_control`, so the server must
/// not be reachable by others. Any task may use it; calls block only for a short lock.
package final class DevelopmentProvider: RequestHandler {
    private struct State: Sendable {
        var issuer: TokenIssuer
        var log: RequestLog
        var faults: [Fault] = []
        var random: (faults: RandomFaults, generator: SplitMix64)?
        var offset: Int64 = 0
    }

    private let state: Mutex<State>
    private let time: @Sendable () -> Int64
    private let clock: any Clock<Duration>

    /// The most scripted faults that may wait.
    static let maximumFaults = 10_000

    /// The configuration of its server. The long queueing delay keeps a slow machine from refusing requests
    /// as overload.
    package static func serverConfiguration(address: SocketAddress, loopCount: Int? = nil) -> ServerConfiguration {
        var configuration = ServerConfiguration(address: address, loopCount: loopCount)
        configuration.maximumQueueingDelay = .seconds(10)
        return configuration
    }

    /// - Parameters:
    ///   - now: returns milliseconds since 1970.
    ///   - clock: measures the delays of faults.
    package init(
        _ configuration: ProviderConfiguration, now: @escaping @Sendable () -> Int64 = { systemTime() },
        clock: any Clock<Duration> = ContinuousClock()
    ) {
        state = Mutex(
            State(
                issuer: TokenIssuer(configuration: configuration),
                log: RequestLog(capacity: configuration.capacity / 10)))
        time = now
        self.clock = clock
    }

    package static func systemTime() -> Int64 { WallClock.milliseconds }

    // MARK: Control

    /// Changes the provider's behaviour for later requests.
    package func configure(_ change: @Sendable (inout ProviderConfiguration) -> Void) {
        state.withLock { change(&$0.issuer.configuration) }
    }

    package var configuration: ProviderConfiguration { state.withLock { $0.issuer.configuration } }

    /// The provider's time: `now` of the initialiser plus the time that `advance` added.
    package var now: Int64 { state.withLock { now($0) } }

    /// Advances the provider's time, so that codes and tokens expire earlier.
    package func advance(by duration: Duration) {
        state.withLock { $0.offset = $0.offset.addingReportingOverflow(duration.milliseconds).partialValue }
    }

    /// Adds a fault after those that were scripted before. Returns false when too many are waiting.
    @discardableResult
    package func script(_ fault: Fault) -> Bool {
        state.withLock { state in
            guard state.faults.count < Self.maximumFaults else { return false }
            state.faults.append(fault)
            return true
        }
    }

    /// The scripted faults that still apply, with the remaining number of times of each.
    package var faults: [Fault] { state.withLock { $0.faults } }

    package func removeFaults() { state.withLock { $0.faults = [] } }

    /// Adds random faults to later requests; nil ends them. Each call restarts the sequence of the seed.
    package func disturbAtRandom(_ faults: RandomFaults?) {
        state.withLock { $0.random = faults.map { ($0, SplitMix64(seed: $0.seed)) } }
    }

    package var randomFaults: RandomFaults? { state.withLock { $0.random?.faults } }

    /// The newest requests at the endpoints, at most a tenth of the capacity, oldest first.
    package var requests: [RequestRecord] { state.withLock { $0.log.all } }

    package var counters: RequestCounters { state.withLock { $0.log.counters } }

    /// Deletes the recorded requests and resets the counters. Sessions stay.
    package func resetRequests() {
        state.withLock { $0.log.reset(capacity: $0.issuer.configuration.capacity / 10) }
    }

    package var ledger: Ledger { state.withLock { $0.issuer.ledger() } }

    /// The ledger of one user.
    package func ledger(userID: Int64) -> Ledger { state.withLock { $0.issuer.ledger(userID: userID) } }

    package var ledgerSummary: LedgerSummary { state.withLock { $0.issuer.ledgerSummary() } }

    /// Opens a session for each of the users, as a login does. Nil when the client does not exist.
    /// - Parameter clientID: nil means the first client.
    package func openSessions(users: [String], clientID: String? = nil) -> [OpenedSession]? {
        state.withLock { state in
            let configuration = state.issuer.configuration
            guard let client = clientID.map({ configuration.client(WireText($0)) }) ?? configuration.clients.first
            else { return nil }
            return users.map { name in
                let user = ProviderUser(name)
                let grant = state.issuer.openSession(user: user, client: client, now: now(state))
                return OpenedSession(
                    user: user, accessToken: grant.accessToken, expiresIn: grant.lifetime.components.seconds,
                    refreshToken: grant.refreshToken)
            }
        }
    }

    // MARK: Keys and accounts

    /// Publishes the key that the next rotation puts into use, if it is not published yet.
    package func publishNextKey() {
        state.withLock { $0.issuer.minter.publishNextKey($0.issuer.configuration) }
    }

    /// Signs with the next key from now on: a published one, or a new one if none was published. The former key stays
    /// published until the next rotation.
    package func rotateKeys() { state.withLock { $0.issuer.minter.rotateKeys($0.issuer.configuration) } }

    /// The published keys by `kid`, oldest first, and what each is used for: `former`, `active` or `next`.
    package var keys: [(id: String, role: String)] {
        state.withLock { state in
            state.issuer.minter.publishedKeys(state.issuer.configuration).map {
                ($0.key.keyID?.text ?? "", $0.role.rawValue)
            }
        }
    }

    /// Sets the state of an account of the duckduckgo profile.
    /// - Parameter user: the name of the account, which is also its platform signature.
    package func setAccount(_ user: String, to state: AccountState) {
        self.state.withLock { $0.issuer.accounts.set(state, of: ProviderUser(user)) }
    }

    /// Returns once `count` requests have arrived at `endpoint`, or at `endpoint` with `grant`, since the last reset.
    /// They may not have been answered yet.
    /// - Throws: `CancellationError` when the task is cancelled.
    package func waitForRequests(_ count: Int, at endpoint: Endpoint, grant: GrantType? = nil) async throws {
        let waiter = state.withLock { $0.log.wait(for: count, endpoint: endpoint, grant: grant) }
        guard let waiter else { return }
        let isReached = await waiter.value {
            self.state.withLock { $0.log.stopWaiting(waiter) }?.resume(returning: false)
        }
        if !isReached { throw CancellationError() }
    }

    /// Revokes all sessions of the user and returns how many were active.
    @discardableResult
    package func revokeAll(userID: Int64) -> Int {
        state.withLock { $0.issuer.revokeAll(userID: userID, now: now($0)) }
    }

    /// Makes all objects of this kind expire now, for one user or for all.
    package func expire(_ what: Expirable, userID: Int64? = nil) {
        state.withLock { $0.issuer.expire(what, userID: userID, now: now($0)) }
    }

    /// The record of a token that a resource server would accept; nil for other tokens.
    package func introspect(accessToken: String) -> AccessTokenRecord? {
        state.withLock { $0.issuer.introspect(accessToken: accessToken, now: now($0)) }
    }

    /// The record of a token, even if it has expired or its family was revoked. Nil for a token that was never issued
    /// or whose record was removed.
    package func record(ofAccessToken token: String) -> AccessTokenRecord? {
        state.withLock { $0.issuer.record(ofAccessToken: token) }
    }

    /// Deletes sessions, accounts, requests and faults. The configuration, the keys and the time stay.
    package func reset() {
        state.withLock { state in
            state.issuer = TokenIssuer(configuration: state.issuer.configuration, minter: state.issuer.minter)
            state.log.reset(capacity: state.issuer.configuration.capacity / 10)
            state.faults = []
            state.random = nil
        }
    }

    private func now(_ state: borrowing State) -> Int64 {
        time().addingReportingOverflow(state.offset).partialValue
    }

    // MARK: Requests

    package func respond(to request: Request) async -> Response {
        var request = request
        // The server omits the body of the response to HEAD (RFC 9110 §9.3.2).
        if request.method == .head { request.method = .get }
        guard let route = Route(request.path, configuration) else {
            return .problem(.notFound, "There is no such path.")
        }
        switch route {
        case .control(let segments):
            return ControlInterface(provider: self).respond(to: request, segments)
        case .verification(let userCode):
            return state.withLock { state in
                VerificationEndpoint.respond(request, userCode: userCode, issuer: &state.issuer, now: now(state))
            }
        case .resource:
            return request.method == .get ? MetadataEndpoint.resource(configuration) : .methodNotAllowed("GET")
        case .endpoint(let endpoint):
            if let allowed = Self.refusedMethod(request.method, endpoint, configuration) {
                return .methodNotAllowed(allowed)
            }
            return await respond(to: request, at: endpoint)
        }
    }

    /// The line that the executable prints when it is ready: a JSON object with the address that it listens on, the
    /// base URL, the profile and, with a certificate of its own, the file with the authority that clients have to trust.
    package func announcement(address: String, authorityFile: String? = nil) -> String {
        let configuration = configuration
        let line = JSONWriter.object { writer in
            writer.member("address", address)
            writer.member("base_url", configuration.baseURL.description)
            writer.member("profile", configuration.translation?.name ?? configuration.profile.rawValue)
            if let translation = configuration.translation {
                writer.name("tenant")
                writer.value(
                    .object(
                        translation.tenant(
                            below: configuration.baseURL.description, clientID: configuration.clients.first?.id ?? "")))
            }
            writer.memberIfPresent("ca_file", authorityFile)
        }
        return String(decoding: line, as: UTF8.self)
    }

    package func response(toFault status: Status, detail: String) -> Response {
        .problem(status, detail)
    }

    /// The methods of the endpoint, for a request by another one.
    private static func refusedMethod(
        _ method: Method, _ endpoint: Endpoint, _ configuration: ProviderConfiguration
    ) -> String? {
        if let methods = configuration.translation?.methods(of: endpoint) {
            return methods.contains(method.name) ? nil : methods.joined(separator: ", ")
        }
        let behaviour = configuration.behaviour
        return switch endpoint {
        // The login page posts its form.
        case .authorize where !behaviour.keepsAccounts, .token where behaviour.takesQueryAlone:
            method == .get || method == .post ? nil : "GET, POST"
        case .userInfo: method == .get || method == .post ? nil : "GET, POST"
        case .authorize, .metadata, .keys, .assetLinks, .appleAssociation: method == .get ? nil : "GET"
        case .token, .challenge, .deviceAuthorization, .revoke, .createAccount, .sendPassword, .login, .logout,
            .pushedAuthorization:
            method == .post ? nil : "POST"
        }
    }

    private func respond(to request: Request, at endpoint: Endpoint) async -> Response {
        let translated = configuration.translation?.translated(request, at: endpoint)
        let received = translated?.received ?? ReceivedParameters(request)
        let (number, fault) = begin(request, at: endpoint, received: received)
        let response: Response
        do {
            if let fault {
                if fault.delay > .zero { try await clock.sleep(for: fault.delay) }
                let normal =
                    fault.processesRequest
                    ? process(
                        request, number: number, at: endpoint, received: received, translated, defect: fault.defect)
                    : nil
                if fault.answerDelay > .zero { try await clock.sleep(for: fault.answerDelay) }
                response = fault.disturb(normal)
            } else {
                response = process(request, number: number, at: endpoint, received: received, translated)
            }
        } catch {
            // The client closed the connection during the delay, so no response can be sent.
            response = .aborted
        }
        state.withLock { $0.log.finish(number, with: response, now: now($0)) }
        return response
    }

    private func begin(_ request: Request, at endpoint: Endpoint, received: ReceivedParameters) -> (Int, Fault?) {
        state.withLock { state in
            let number = state.log.begin(request, endpoint: endpoint, received: received, now: now(state))
            let grant = state.log.grant(number)
            guard let index = state.faults.firstIndex(where: { $0.applies(to: endpoint, grant: grant) }) else {
                guard var random = state.random, random.faults.applies(to: endpoint, grant: grant) else {
                    return (number, nil)
                }
                let fault = random.faults.draw(using: &random.generator)
                state.random = random
                if let fault { state.log.disturb(number, fault.mode) }
                return (number, fault)
            }
            let fault = state.faults[index]
            state.faults[index].times -= 1
            if state.faults[index].times == 0 { state.faults.remove(at: index) }
            state.log.disturb(number, fault.mode)
            return (number, fault)
        }
    }

    private func process(
        _ request: Request, number: Int, at endpoint: Endpoint, received: ReceivedParameters,
        _ translated: TranslatedRequest?, defect: (token: SignedToken, defect: TokenDefect)? = nil
    ) -> Response {
        state.withLock { state in
            let time = now(state)
            state.issuer.minter.defect = defect
            defer { state.issuer.minter.defect = nil }
            if let translated {
                let result = ProfileEndpoints.respond(translated, at: endpoint, issuer: &state.issuer, now: time)
                state.log.note(number, error: result.error, refresh: result.refresh)
                return result.response
            }
            let result = Self.answer(request, at: endpoint, received: received, issuer: &state.issuer, now: time)
            state.log.note(number, error: result.error, refresh: result.refresh)
            return result.response
        }
    }
    private static func answer(
        _ request: Request, at endpoint: Endpoint, received: ReceivedParameters, issuer: inout TokenIssuer, now: Int64
    ) -> EndpointResult {
        let own: EndpointResult? =
            switch issuer.configuration.behaviour.flow {
            case .accounts:
                AccountEndpoints.respond(request, at: endpoint, received: received, issuer: &issuer, now: now)
            case .apps:
                AuthgearEndpoints.respond(request, at: endpoint, received: received, issuer: &issuer, now: now)
            case nil: nil
            }
        if let own { return own }
        return switch endpoint {
        case .authorize: AuthorizationEndpoint.respond(request, received: received, issuer: &issuer, now: now)
        case .token: ClientEndpoints.token(request, received: received, issuer: &issuer, now: now)
        case .deviceAuthorization:
            ClientEndpoints.deviceAuthorization(request, received: received, issuer: &issuer, now: now)
        case .revoke: ClientEndpoints.revoke(request, received: received, issuer: &issuer, now: now)
        case .pushedAuthorization:
            PushedAuthorizationEndpoint.respond(request, received: received, issuer: &issuer, now: now)
        case .metadata: MetadataEndpoint.respond(issuer)
        case .keys: MetadataEndpoint.keys(&issuer)
        // The flows have these.
        case .challenge, .userInfo, .assetLinks, .appleAssociation, .createAccount, .sendPassword, .login, .logout:
            EndpointResult(.problem(.notFound, "There is no such path."))
        }
    }
}
