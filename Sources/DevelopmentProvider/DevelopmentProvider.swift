internal import ExternalText
package import HTTPCodec
package import HTTPServer
internal import JSON
package import Reactor
internal import Synchronization

/// An OAuth 2.0 authorization server for development and tests, its state in memory.
///
/// It lets anyone in by name and tells its secrets' fate to anyone who asks under `/_control`: it must not stand where
/// others can reach it. Safe to use from any task; no call blocks but for a short lock.
package final class DevelopmentProvider: RequestHandler {
    private struct State: Sendable {
        var server: AuthorizationServer
        var log: RequestLog
        var faults: [Fault] = []
        var random: (faults: RandomFaults, generator: SplitMix64)?
        var offset: Int64 = 0
        var lastWait = 0
    }

    private let state: Mutex<State>
    private let time: @Sendable () -> Int64
    private let clock: any Clock<Duration>

    /// Scripted faults that wait at one time.
    static let maximumFaults = 10_000

    /// How its server is set up: it refuses what it was told to refuse, and not what a slow machine has it come to late.
    package static func serverConfiguration(address: SocketAddress, loopCount: Int? = nil) -> ServerConfiguration {
        var configuration = ServerConfiguration(address: address, loopCount: loopCount)
        configuration.turnBudget = .seconds(10)
        return configuration
    }

    /// - Parameters:
    ///   - now: milliseconds since 1970.
    ///   - clock: what the delays of faults are measured by.
    package init(
        _ configuration: ProviderConfiguration, now: @escaping @Sendable () -> Int64 = { systemTime() },
        clock: any Clock<Duration> = ContinuousClock()
    ) {
        state = Mutex(
            State(
                server: AuthorizationServer(configuration: configuration),
                log: RequestLog(capacity: configuration.capacity / 10)))
        time = now
        self.clock = clock
    }

    package static func systemTime() -> Int64 { WallClock.milliseconds }

    // MARK: Control

    /// Changes how the provider behaves from the next request on.
    package func configure(_ change: @Sendable (inout ProviderConfiguration) -> Void) {
        state.withLock { change(&$0.server.configuration) }
    }

    package var configuration: ProviderConfiguration { state.withLock { $0.server.configuration } }

    /// The provider's time: `now` of the initialiser and what `advance` added.
    package var now: Int64 { state.withLock { now($0) } }

    /// Moves the provider's time: codes and tokens expire earlier.
    package func advance(by duration: Duration) {
        state.withLock { $0.offset = $0.offset.addingReportingOverflow(duration.milliseconds).partialValue }
    }

    /// Disturbs coming requests, after the faults that were scripted before it. False when too many are waiting.
    @discardableResult
    package func script(_ fault: Fault) -> Bool {
        state.withLock { state in
            guard state.faults.count < Self.maximumFaults else { return false }
            state.faults.append(fault)
            return true
        }
    }

    /// The faults that still wait, with the times that are left of each.
    package var faults: [Fault] { state.withLock { $0.faults } }

    package func removeFaults() { state.withLock { $0.faults = [] } }

    /// Disturbs requests by lot from now on; nil ends that. A seed begins anew with each call.
    package func disturbAtRandom(_ faults: RandomFaults?) {
        state.withLock { $0.random = faults.map { ($0, SplitMix64(seed: $0.seed)) } }
    }

    package var randomFaults: RandomFaults? { state.withLock { $0.random?.faults } }

    /// The newest requests at the endpoints, as many as a tenth of the capacity, oldest first.
    package var requests: [RequestRecord] { state.withLock { $0.log.all } }

    package var counters: RequestCounters { state.withLock { $0.log.counters } }

    /// Forgets the requests and counts from zero. Sessions stay.
    package func resetRequests() {
        state.withLock { $0.log.reset(capacity: $0.server.configuration.capacity / 10) }
    }

    package var ledger: Ledger { state.withLock { $0.server.ledger() } }

    /// What the ledger says of one user.
    package func ledger(userID: Int64) -> Ledger { state.withLock { $0.server.ledger(userID: userID) } }

    package var ledgerSummary: LedgerSummary { state.withLock { $0.server.ledgerSummary() } }

    /// Opens a session for each of the users, as if they had logged in. Nil when there is no such client.
    /// - Parameter clientID: nil for the first client.
    package func openSessions(users: [String], clientID: String? = nil) -> [OpenedSession]? {
        state.withLock { state in
            let configuration = state.server.configuration
            guard let client = clientID.map({ configuration.client(WireText($0)) }) ?? configuration.clients.first
            else { return nil }
            return users.map { name in
                let user = ProviderUser(name)
                let grant = state.server.openSession(user: user, client: client, now: now(state))
                return OpenedSession(
                    user: user, accessToken: grant.accessToken, expiresIn: grant.lifetime.components.seconds,
                    refreshToken: grant.refreshToken)
            }
        }
    }

    /// Returns once `count` requests have arrived at `endpoint`, or there with `grant`, since the last reset; they may
    /// not have been answered yet.
    /// - Throws: `CancellationError` when the caller's task is cancelled.
    package func waitForRequests(_ count: Int, at endpoint: Endpoint, grant: GrantType? = nil) async throws {
        let id = state.withLock { state in
            state.lastWait += 1
            return state.lastWait
        }
        try await withTaskCancellationHandler {
            try await withCheckedThrowingContinuation { continuation in
                state.withLock { state in
                    state.log.wait(id, for: count, endpoint: endpoint, grant: grant, continuation)
                    // Checked in the lock: a cancellation before this point found no waiter to stop.
                    if Task.isCancelled { state.log.stopWaiting(id) }
                }
            }
        } onCancel: {
            state.withLock { $0.log.stopWaiting(id) }
        }
    }

    /// Ends every session of the user, and tells how many there were.
    @discardableResult
    package func revokeAll(userID: Int64) -> Int {
        state.withLock { $0.server.revokeAll(userID: userID, now: now($0)) }
    }

    /// Makes everything of that kind expire now, for one user or for all.
    package func expire(_ what: Expirable, userID: Int64? = nil) {
        state.withLock { $0.server.expire(what, userID: userID, now: now($0)) }
    }

    /// What a resource server would accept the token for; nil for none.
    package func introspect(accessToken: String) -> AccessTokenRecord? {
        state.withLock { $0.server.introspect(accessToken: accessToken, now: now($0)) }
    }

    /// What the token was issued for, also where it has expired or its family was revoked; nil for one that was never
    /// issued, or that was forgotten.
    package func record(ofAccessToken token: String) -> AccessTokenRecord? {
        state.withLock { $0.server.record(ofAccessToken: token) }
    }

    /// Forgets sessions, requests and faults. The configuration and the time stay.
    package func reset() {
        state.withLock { state in
            state.server = AuthorizationServer(configuration: state.server.configuration)
            state.log.reset(capacity: state.server.configuration.capacity / 10)
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
        // The server leaves the content out (RFC 9110 §9.3.2).
        if request.method == .head { request.method = .get }
        guard let route = Route(request.path, configuration) else { return .problem(.notFound, "Nothing is here.") }
        switch route {
        case .control(let segments):
            return ControlInterface(provider: self).respond(to: request, segments)
        case .keys:
            return request.method == .get ? MetadataEndpoint.keys() : .methodNotAllowed("GET")
        case .verification(let userCode):
            return state.withLock { state in
                VerificationEndpoint.answer(request, userCode: userCode, &state.server, now: now(state))
            }
        case .endpoint(let endpoint):
            if let allowed = Self.refusedMethod(request.method, endpoint) { return .methodNotAllowed(allowed) }
            return await respond(to: request, at: endpoint)
        }
    }

    /// The line that the executable prints when it is ready: an object with the address that it listens on, the base
    /// URL and the profile.
    package func announcement(address: String) -> String {
        let configuration = configuration
        let line = JSONWriter.object { writer in
            writer.member("address", address)
            writer.member("base_url", configuration.baseURL.description)
            writer.member("profile", configuration.profile.rawValue)
        }
        return String(decoding: line, as: UTF8.self)
    }

    package func response(toFault status: Status, detail: String) -> Response {
        .problem(status, detail)
    }

    private static func refusedMethod(_ method: Method, _ endpoint: Endpoint) -> String? {
        switch endpoint {
        case .authorize: method == .get || method == .post ? nil : "GET, POST"
        case .metadata: method == .get ? nil : "GET"
        case .token, .deviceAuthorization, .revoke: method == .post ? nil : "POST"
        }
    }

    private func respond(to request: Request, at endpoint: Endpoint) async -> Response {
        let received = ReceivedParameters(request)
        let (number, fault) = begin(request, endpoint, received)
        let response: Response
        do {
            if let fault {
                if fault.delay > .zero { try await clock.sleep(for: fault.delay) }
                let usual = fault.doesWork ? work(number, request, endpoint, received) : nil
                if fault.answerDelay > .zero { try await clock.sleep(for: fault.answerDelay) }
                response = fault.disturb(usual)
            } else {
                response = work(number, request, endpoint, received)
            }
        } catch {
            // The client went away during the delay: there is nobody to answer.
            response = .aborted
        }
        state.withLock { $0.log.finish(number, response, now: now($0)) }
        return response
    }

    private func begin(_ request: Request, _ endpoint: Endpoint, _ received: ReceivedParameters) -> (Int, Fault?) {
        state.withLock { state in
            let number = state.log.begin(request, endpoint: endpoint, received: received, now: now(state))
            let grant = state.log.grant(number)
            guard let index = state.faults.firstIndex(where: { $0.concerns(endpoint, grant: grant) }) else {
                guard var random = state.random, random.faults.concerns(endpoint, grant: grant) else {
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

    private func work(
        _ number: Int, _ request: Request, _ endpoint: Endpoint, _ received: ReceivedParameters
    ) -> Response {
        state.withLock { state in
            let time = now(state)
            let answer =
                switch endpoint {
                case .authorize: AuthorizationEndpoint.answer(request, received, &state.server, now: time)
                case .token: TokenEndpoint.token(request, received, &state.server, now: time)
                case .deviceAuthorization:
                    TokenEndpoint.deviceAuthorization(request, received, &state.server, now: time)
                case .revoke: TokenEndpoint.revoke(request, received, &state.server, now: time)
                case .metadata: MetadataEndpoint.answer(state.server.configuration)
                }
            state.log.note(number, error: answer.error, refresh: answer.refresh)
            return answer.response
        }
    }
}
