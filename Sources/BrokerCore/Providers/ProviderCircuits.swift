internal import Containers
package import OAuth
internal import Reactor
internal import Synchronization
internal import Waiting

/// The circuits of the clients at their token endpoints (`ProviderCircuit`), of this process. They need no store.
///
/// Safe to use from any task. Keeps no circuit whose last call was answered.
package final class ProviderCircuits: Sendable {
    /// One tenant's client at a token endpoint: what one tenant's proxy, pins or header fields do to its calls says nothing about
    /// another tenant's.
    package struct Key: Hashable, Sendable {
        package let tenant: TenantName
        let client: ProviderPauses.Key

        package init(_ tenant: TenantName, _ client: ClientConfiguration, at server: AuthorizationServer) {
            self.tenant = tenant
            self.client = ProviderPauses.Key(client, at: server)
        }

        var name: Name { Name(tenant: tenant, digest: client.digest) }
    }

    /// The name of a circuit in the store, which has neither its client identifier nor its address.
    struct Name: Hashable, Sendable {
        let tenant: TenantName
        let digest: String
    }

    /// What the store is to know of a circuit.
    enum Change: Sendable, Equatable {
        case opened(ProviderCircuit.Failure)
        /// The circuit has been open for a while since the last change.
        case stillOpen
        /// The provider has answered after the circuit was open here, or at a replica of which the store has told.
        case answered
    }

    /// What an admitted call has to do with the circuit.
    enum Admission: Sendable {
        case free
        /// The call is a trial. It is made, or given back.
        case trial
        case refused(BrokerError)
    }

    /// How many circuits are open.
    package struct Count: Sendable, Equatable {
        package var open = 0
        package var halfOpen = 0

        package init() {}
    }

    private struct Entry {
        var circuit = ProviderCircuit()
        let preset: ProviderPreset
        /// When a change was last told.
        var told: MonotonicInstant?
    }

    private struct State {
        var entries = BoundedTable<Key, Entry>(capacity: ProviderCircuits.most)
        /// The circuits of which the store may have an outage: the next answer is a change.
        var watched = BoundedTable<Name, Void>(capacity: ProviderCircuits.most)
        var tell: (@Sendable (Key, Change) -> Void)?
    }

    /// A circuit that is forgotten, of the one that has not been called for the longest time, is closed.
    private static let most = 16_384
    /// How often a circuit that is open is told again.
    static let reminder: Duration = .seconds(900)

    private let time: any Time
    private let log: Log
    private let metrics: Metrics
    private let state = Mutex(State())
    /// Signalled when a circuit closes.
    let recoveries = KeyedSignal<Key>()

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

    /// Subscribes to changes. Replaces an earlier subscriber, which must not suspend.
    func onChange(_ tell: @escaping @Sendable (Key, Change) -> Void) { state.withLock { $0.tell = tell } }

    // MARK: Before a call

    /// What callers get while the circuit is open and no trial is due; nil where a call may be tried.
    func refusal(_ key: Key) -> BrokerError? {
        let now = time.monotonic
        return state.withLock { $0.entries[key]?.circuit.refusal(at: now) }.map { BrokerError(sparing: $0) }
    }

    /// What callers get whose call has failed while the circuit is open; nil while it is closed.
    func outage(_ key: Key) -> BrokerError? {
        state.withLock { $0.entries[key]?.circuit }.flatMap { $0.isOpen ? BrokerError(sparing: $0.failure) : nil }
    }

    func admit(_ key: Key) -> Admission {
        let now = time.monotonic
        let jitter: Duration = .milliseconds(Int64.random(in: 0...ProviderCircuit.jitter.milliseconds))
        let admission = state.withLock { $0.entries[key]?.circuit.admit(at: now, jitter: jitter) } ?? .free
        switch admission {
        case .free: return .free
        case .trial: return .trial
        case .refused(let failure): return .refused(BrokerError(sparing: failure))
        }
    }

    /// The trial of that circuit was not made.
    func giveBack(_ key: Key) {
        let now = time.monotonic
        state.withLock { $0.entries[key]?.circuit.giveBack(at: now) }
    }

    /// A call was not made because the circuit is open.
    func countSpared(_ preset: ProviderPreset) { metrics.callSpared(provider: preset.name) }

    // MARK: After a call

    /// Notes a call that the provider has not answered.
    func fail(_ failure: ProviderCircuit.Failure, _ key: Key, at server: AuthorizationServer) {
        let now = time.monotonic
        let (change, tell) = state.withLock { state -> (Change?, (@Sendable (Key, Change) -> Void)?) in
            var entry = state.entries[key] ?? Entry(preset: server.preset)
            var change: Change?
            if entry.circuit.fail(failure, at: now) {
                change = .opened(failure)
                state.watched.setNewest((), forKey: key.name)
            } else if let told = entry.told, told.advanced(by: Self.reminder) <= now {
                change = .stillOpen
            }
            if change != nil { entry.told = now }
            state.entries.setNewest(entry, forKey: key)
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
    func succeed(_ key: Key) {
        let (entry, isWatched, tell) = state.withLock {
            state -> (Entry?, Bool, (@Sendable (Key, Change) -> Void)?) in
            let entry = state.entries.removeValue(forKey: key)
            let isWatched = state.watched.count > 0 && state.watched.removeValue(forKey: key.name) != nil
            return (entry, isWatched, state.tell)
        }
        if let entry { close(key, entry) }
        if isWatched { tell?(key, .answered) }
    }

    /// Closes the circuits of a tenant that was configured anew, which may have ended what kept the provider from answering.
    func reset(_ tenant: TenantName) {
        let removed = state.withLock { state in
            let removed = state.entries.all.filter { $0.key.tenant == tenant }
            for (key, _) in removed { state.entries[key] = nil }
            return removed
        }
        for (key, entry) in removed { close(key, entry) }
    }

    private func close(_ key: Key, _ entry: Entry) {
        guard let opened = entry.circuit.opened else { return }
        log.info(
            "provider_circuit_closed",
            Self.fields(key, entry.preset) + [.duration(opened.duration(to: time.monotonic))])
        recoveries.signal(key)
    }

    private static func fields(_ key: Key, _ preset: ProviderPreset) -> [LogField] {
        [.tenant(key.tenant), .provider(preset)]
    }

    // MARK: What the store has

    /// The store may have an outage of that circuit.
    func watch(_ name: Name) { state.withLock { _ = $0.watched.setNewest((), forKey: name) } }

    /// The store has none any more.
    func endWatch(_ name: Name) { state.withLock { _ = $0.watched.removeValue(forKey: name) } }

    // MARK: For the metrics

    /// How many circuits are open at each of `ProviderPreset.inUse`, in that order.
    package var counts: [(provider: String, count: Count)] {
        var counts = ProviderPreset.inUse.map { (provider: $0, count: Count()) }
        state.withLock { state in
            for (_, entry) in state.entries.all where entry.circuit.isOpen && entry.preset.number < counts.count {
                if entry.circuit.isTrying {
                    counts[entry.preset.number].count.halfOpen += 1
                } else {
                    counts[entry.preset.number].count.open += 1
                }
            }
        }
        return counts
    }

    /// How many circuits are kept, open ones among them.
    package var count: Int { state.withLock { $0.entries.count } }
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
