import Containers
import OAuth
import Reactor
import Synchronization
import Waiting

/// Whether providers may be asked now: what this process knows of its clients, each part for those whom it concerns
/// (`ProviderHealth`). A refusal of the client concerns one configuration of one tenant, a pause all tenants that have the
/// client, a circuit one tenant. Needs no store; `ClientFaults` and `Outages` share what other replicas are to know.
///
/// Safe to use from any task. Keeps no circuit whose last call was answered.
package final class ProviderHealths: Sendable {
    /// Whose call a question is about.
    struct Subject: Sendable {
        let tenant: TenantName
        /// The version of the tenant, which changes when the tenant is configured anew.
        let configuration: Int64
        let identity: ClientIdentity
        /// What is asked for; nil for a request that is no token request.
        let grant: TokenRequest.Grant?
        /// Where; nil if that is not known, and then neither pause nor circuit is.
        var circuit: ProviderClient.OfTenant?
        /// For whom; nil for a call that belongs to no stored credentials.
        var user: CredentialsID?

        init(_ tenant: Tenant, _ identity: ClientIdentity, _ grant: TokenRequest.Grant?) {
            (self.tenant, configuration) = (tenant.name, tenant.version)
            (self.identity, self.grant) = (identity, grant)
        }

        init(
            _ tenant: Tenant, _ use: ClientUse, at circuit: ProviderClient.OfTenant? = nil,
            for user: CredentialsID? = nil
        ) {
            self.init(tenant, use.client, use.grant)
            (self.circuit, self.user) = (circuit, user)
        }
    }

    /// What the provider refuses to which client.
    struct FaultKey: Hashable {
        let tenant: TenantName
        let client: ClientIdentity
        let scope: ClientRefusalScope
    }

    /// What the store is to know of a circuit.
    enum Change: Sendable, Equatable {
        case opened(ProviderCircuit.Failure)
        /// The circuit has been open for a while since the last change.
        case stillOpen
        /// The provider has answered after the circuit was open here, or at a replica of which the store has told.
        case answered
    }

    /// How many circuits are open.
    package struct Count: Sendable, Equatable {
        package var open = 0
        package var halfOpen = 0

        package init() {}
    }

    private struct Fault {
        let configuration: Int64
        var state: ProviderHealth.Fault
    }

    private struct Circuit {
        var state = ProviderCircuit()
        let preset: ProviderPreset
        /// When a change was last told.
        var told: MonotonicInstant?
    }

    /// Each table keeps the newest of its kind. For a fault or a pause that is forgotten the provider is asked once more than
    /// needed; a circuit that is forgotten, of the one that has not been called for the longest time, is closed.
    private struct State {
        var faults = BoundedTable<FaultKey, Fault>(capacity: ProviderHealths.most)
        var pauses = BoundedTable<ProviderClient, ProviderHealth.Pause>(capacity: ProviderHealths.most)
        var users = BoundedTable<ProviderClient.User, MonotonicInstant>(capacity: ProviderHealths.most)
        var circuits = BoundedTable<ProviderClient.OfTenant, Circuit>(capacity: ProviderHealths.most)
        /// The circuits of which the store may have an outage: the next answer is a change.
        var watched = BoundedTable<ProviderClient.Name, Void>(capacity: ProviderHealths.most)
        var tell: (@Sendable (ProviderClient.OfTenant, Change) -> Void)?

        /// What is known of a client, in one value.
        func health(_ subject: Subject) -> ProviderHealth {
            var health = ProviderHealth()
            health.fault = fault(.client, subject)
            health.grantFault = subject.grant.flatMap { fault(.grant($0), subject) }
            if let circuit = subject.circuit {
                health.pause = pauses[circuit.client]
                health.userPause = users[ProviderClient.User(subject.user, of: circuit.client)]
                health.circuit = circuits[circuit]?.state ?? ProviderCircuit()
            }
            return health
        }

        private func fault(_ scope: ClientRefusalScope, _ subject: Subject) -> ProviderHealth.Fault? {
            let key = FaultKey(tenant: subject.tenant, client: subject.identity, scope: scope)
            return faults[key].flatMap { $0.configuration == subject.configuration ? $0.state : nil }
        }

        /// Keeps what an admission has changed: faults and circuit.
        mutating func keep(_ health: ProviderHealth, _ subject: Subject) {
            keep(health.fault, .client, subject)
            if let grant = subject.grant { keep(health.grantFault, .grant(grant), subject) }
            if let circuit = subject.circuit { circuits[circuit]?.state = health.circuit }
        }

        private mutating func keep(
            _ fault: ProviderHealth.Fault?, _ scope: ClientRefusalScope, _ subject: Subject
        ) {
            let key = FaultKey(tenant: subject.tenant, client: subject.identity, scope: scope)
            guard faults[key]?.configuration == subject.configuration else { return }
            faults[key] = fault.map { Fault(configuration: subject.configuration, state: $0) }
        }
    }

    private static let most = 16_384
    /// How often a circuit that is open is told again.
    static let reminder: Duration = .seconds(900)

    private let time: any Time
    private let log: Log
    private let metrics: Metrics
    private let state = Mutex(State())
    /// Signalled when a circuit closes.
    let recoveries = KeyedSignal<ProviderClient.OfTenant>()

    package init(time: any Time, metrics: Metrics, log: Log) {
        self.time = time
        self.metrics = metrics
        self.log = log
        metrics.showEach(.providerCircuit) { [weak self] in
            self?.counts.flatMap { provider, count in
                [("open", count.open), ("half_open", count.halfOpen)].map { state, value in
                    (#"provider="\#(provider)",state="\#(state)""#, value)
                }
            }
        }
    }

    /// Subscribes to changes of circuits. Replaces an earlier subscriber, which must not suspend.
    func onChange(_ tell: @escaping @Sendable (ProviderClient.OfTenant, Change) -> Void) {
        state.withLock { $0.tell = tell }
    }

    // MARK: Before a call

    /// Why a call would not be made now; nil if it would be.
    func refusal(_ subject: Subject, _ aspects: ProviderHealth.Aspects) -> ProviderHealth.Refusal? {
        let now = time.monotonic
        return state.withLock { $0.health(subject) }.refusal(aspects, at: now)
    }

    /// Asks for a call. A trial of the circuit is made, or given back.
    func admit(_ subject: Subject, _ aspects: ProviderHealth.Aspects) -> ProviderHealth.Admission {
        let now = time.monotonic
        let jitter: Duration = .milliseconds(Int64.random(in: 0...ProviderCircuit.jitter.milliseconds))
        return state.withLock { state in
            var health = state.health(subject)
            let admission = health.admit(aspects, at: now, jitter: jitter)
            if case .no = admission { return admission }
            state.keep(health, subject)
            return admission
        }
    }

    /// The trial of that circuit was not made.
    func giveBack(_ circuit: ProviderClient.OfTenant) {
        let now = time.monotonic
        state.withLock { $0.circuits[circuit]?.state.giveBack(at: now) }
    }

    /// What callers get because of a refusal.
    func error(_ refusal: ProviderHealth.Refusal) -> BrokerError {
        let clocks = time.clocks
        let remaining = clocks.monotonic.duration(to: refusal.until)
        var error: BrokerError
        switch refusal.reason {
        case .clientRefused(let fault): error = fault.refusal(for: remaining)
        case .providerAskedToWait: error = TokenEndpoint.paused(for: remaining, at: clocks.now)
        case .circuitOpen(let failure): error = BrokerError(sparing: failure)
        }
        error.withheld = refusal.code
        return error
    }

    /// A call was not made because the circuit is open.
    func countSpared(_ preset: ProviderPreset) { metrics.callSpared(provider: preset.name) }

    // MARK: Pauses

    /// The provider has asked that user's client to wait.
    package func pause(_ user: ProviderClient.User, for duration: Duration) {
        change(user) { $0.askedToWait(user.id, for: duration, at: $1) }
    }

    /// The provider has failed, and has named a time that concerns all users.
    func pauseAll(_ client: ProviderClient, for duration: Duration) {
        change(ProviderClient.User(nil, of: client)) { $0.askedAllToWait(for: duration, at: $1) }
    }

    /// The provider did not answer a call of that user, and has named a time.
    func pauseAlone(_ user: ProviderClient.User, for duration: Duration) {
        if user.id == nil { return }
        change(user) { $0.askedUserToWait(for: duration, at: $1) }
    }

    private func change(
        _ user: ProviderClient.User, _ change: (inout ProviderHealth, MonotonicInstant) -> Void
    ) {
        let now = time.monotonic
        state.withLock { state in
            var health = ProviderHealth()
            (health.pause, health.userPause) = (state.pauses[user.client], state.users[user])
            let before = health
            change(&health, now)
            if let pause = health.pause, pause != before.pause { state.pauses.setNewest(pause, forKey: user.client) }
            if let end = health.userPause, end != before.userPause { state.users.setNewest(end, forKey: user) }
        }
    }

    /// Ends the pauses of that client and of its users, if there are any.
    package func lift(_ client: ProviderClient) {
        state.withLock { state in
            state.pauses[client] = nil
            for (user, _) in state.users.all where user.client == client { state.users[user] = nil }
        }
    }

    /// Ends the pause of that user, if there is one.
    func lift(_ user: ProviderClient.User) { state.withLock { $0.users[user] = nil } }

    /// The pause of that user; nil for none. Removes a pause that has ended.
    package func refusal(_ user: ProviderClient.User) -> ProviderHealth.Refusal? {
        let now = time.monotonic
        return state.withLock { state in
            if state.pauses[user.client]?.isOver(at: now) == true { state.pauses[user.client] = nil }
            if let end = state.users[user], end <= now { state.users[user] = nil }
            var health = ProviderHealth()
            (health.pause, health.userPause) = (state.pauses[user.client], state.users[user])
            return health.refusal(.pause, at: now)
        }
    }

    // MARK: Refusals of the client

    /// The provider does not accept the client.
    /// - Returns: the fault as it was known before; nil for a new one.
    func refused(_ error: BrokerError, _ key: FaultKey, _ configuration: Int64) -> ProviderHealth.Fault? {
        let clocks = time.clocks
        return state.withLock { state in
            let known = state.faults[key].flatMap { $0.configuration == configuration ? $0.state : nil }
            let fault = ProviderHealth.Fault(error, after: known, at: clocks)
            state.faults.setNewest(Fault(configuration: configuration, state: fault), forKey: key)
            return known.flatMap { $0.isKnown(at: clocks.monotonic) ? $0 : nil }
        }
    }

    /// The provider accepts the client.
    /// - Returns: whether there was a fault.
    func accepted(_ key: FaultKey) -> Bool { state.withLock { $0.faults.removeValue(forKey: key) != nil } }

    /// A fault that counts; nil for none.
    func fault(_ key: FaultKey, _ configuration: Int64) -> ProviderHealth.Fault? {
        let now = time.monotonic
        return state.withLock { $0.faults[key] }.flatMap {
            $0.configuration == configuration && $0.state.isKnown(at: now) ? $0.state : nil
        }
    }

    /// Changes a fault, if there is one.
    func changeFault(_ key: FaultKey, _ change: (inout ProviderHealth.Fault) -> Void) {
        state.withLock { state in
            guard var fault = state.faults[key] else { return }
            change(&fault.state)
            state.faults[key] = fault
        }
    }

    // MARK: Circuits

    /// What callers get whose call has failed while the circuit is open; nil while it is closed.
    func outage(_ circuit: ProviderClient.OfTenant) -> BrokerError? {
        state.withLock { $0.circuits[circuit]?.state }.flatMap { $0.isOpen ? BrokerError(sparing: $0.failure) : nil }
    }

    /// Notes a call that the provider has not answered.
    func fail(
        _ failure: ProviderCircuit.Failure, _ key: ProviderClient.OfTenant, at server: AuthorizationServer
    ) {
        let now = time.monotonic
        let (change, tell) = state.withLock {
            state -> (Change?, (@Sendable (ProviderClient.OfTenant, Change) -> Void)?) in
            var circuit = state.circuits[key] ?? Circuit(preset: server.preset)
            var change: Change?
            if circuit.state.fail(failure, at: now) {
                change = .opened(failure)
                state.watched.setNewest((), forKey: key.name)
            } else if let told = circuit.told, told.advanced(by: Self.reminder) <= now {
                change = .stillOpen
            }
            if change != nil { circuit.told = now }
            state.circuits.setNewest(circuit, forKey: key)
            return (change, state.tell)
        }
        guard let change else { return }
        if change == .opened(failure) {
            log.error(
                "provider_circuit_opened",
                Self.fields(key, server.preset) + [
                    .endpoint(server.tokenEndpoint), .count(ProviderCircuit.threshold),
                    .code(BrokerError(sparing: failure).code),
                ])
        }
        tell?(key, change)
    }

    /// Notes a call that the provider has answered.
    func succeed(_ key: ProviderClient.OfTenant) {
        let (circuit, isWatched, tell) = state.withLock {
            state -> (Circuit?, Bool, (@Sendable (ProviderClient.OfTenant, Change) -> Void)?) in
            let circuit = state.circuits.removeValue(forKey: key)
            let isWatched = state.watched.count > 0 && state.watched.removeValue(forKey: key.name) != nil
            return (circuit, isWatched, state.tell)
        }
        if let circuit { close(key, circuit) }
        if isWatched { tell?(key, .answered) }
    }

    /// Closes the circuits of a tenant that was configured anew, which may have ended what kept the provider from answering.
    func reset(_ tenant: TenantName) {
        let removed = state.withLock { state in
            let removed = state.circuits.all.filter { $0.key.tenant == tenant }
            for (key, _) in removed { state.circuits[key] = nil }
            return removed
        }
        for (key, circuit) in removed { close(key, circuit) }
    }

    private func close(_ key: ProviderClient.OfTenant, _ circuit: Circuit) {
        guard let opened = circuit.state.opened else { return }
        log.info(
            "provider_circuit_closed",
            Self.fields(key, circuit.preset) + [.duration(opened.duration(to: time.monotonic))])
        recoveries.signal(key)
    }

    private static func fields(_ key: ProviderClient.OfTenant, _ preset: ProviderPreset) -> [LogField] {
        [.tenant(key.tenant), .provider(preset)]
    }

    /// The store may have an outage of that circuit.
    func watch(_ name: ProviderClient.Name) { state.withLock { _ = $0.watched.setNewest((), forKey: name) } }

    /// The store has none any more.
    func endWatch(_ name: ProviderClient.Name) { state.withLock { _ = $0.watched.removeValue(forKey: name) } }

    /// How many circuits are open at each of `ProviderPreset.inUse`, in that order.
    package var counts: [(provider: String, count: Count)] {
        var counts = ProviderPreset.inUse.map { (provider: $0, count: Count()) }
        state.withLock { state in
            for (_, circuit) in state.circuits.all
            where circuit.state.isOpen && circuit.preset.number < counts.count {
                if circuit.state.isTrying {
                    counts[circuit.preset.number].count.halfOpen += 1
                } else {
                    counts[circuit.preset.number].count.open += 1
                }
            }
        }
        return counts
    }
}

extension ProviderHealth.Refusal {
    var code: Withheld.Code {
        switch reason {
        case .clientRefused: .clientRefused
        case .providerAskedToWait: .providerAskedToWait
        case .circuitOpen: .circuitOpen
        }
    }
}

extension BrokerError {
    /// What callers get while a provider is spared. They may ask again after a second, since no pause is much longer.
    init(sparing failure: ProviderCircuit.Failure) {
        self.init(
            failure == .serverError ? .retryableError : .networkError,
            "The provider has left the last calls without an answer, so that it is called once in a second only. What is "
                + "stored was left as it is.", retryAfter: 1)
    }
}
