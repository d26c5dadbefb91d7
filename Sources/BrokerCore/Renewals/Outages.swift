import CredentialStore
import OAuth
import Reactor
import Synchronization
import Waiting

/// Tells listeners of outages of providers, once for all replicas: `provider.degraded` when the first replica's circuit opens,
/// `provider.recovered` when the first replica gets an answer. The circuits do not depend on it. Where the store is away, the
/// events come late, or not at all if an outage ends meanwhile.
///
/// A record in the store says that an outage was told, so that a replica that dies leaves none open: the next replica that
/// gets an answer tells its end. A replica knows of records by the store's notices, and by a search when it starts.
package final class Outages: BackgroundJob {
    private struct State {
        /// The last change of each circuit that the store does not know yet.
        var pending: [ProviderClient.OfTenant: ProviderHealths.Change] = [:]
        var worker: Task<Void, Never>?
        var isEnding = false
    }

    /// How often a change is tried while the store is away; after that it is dropped.
    private static let tries = 6
    /// How many circuits' changes may wait for the store. Further ones are not told.
    private static let mostPending = 1000
    /// How many records are looked for at the start.
    private static let mostRecords = 10_000

    private let records: CredentialsRecords
    private let health: ProviderHealths
    package let time: any Time
    private let log: Log
    private let state = Mutex(State())
    private let ending = KeyedSignal<Int>()

    init(records: CredentialsRecords, health: ProviderHealths) {
        self.records = records
        self.health = health
        (time, log) = (records.time, records.log)
        health.onChange { [weak self] key, change in self?.note(change, of: key) }
        records.bus.onChange(of: .outage) { [health] id, version in
            let name = ProviderClient.Name(tenant: id.tenant, digest: id.key)
            if version == nil { health.endWatch(name) } else { health.watch(name) }
        }
        records.bus.onRemoval { [health] tenant in health.reset(tenant) }
    }

    /// Finds the records that replicas have left which have ended. Once the store has answered, there is nothing left to do.
    package func work() async -> NextTime {
        do throws(StoreError) {
            for name in try await records.outages(limit: Self.mostRecords) { health.watch(name) }
            return .never
        } catch {
            log.storeFailed(error)
            return .after(JobInterval.outages)
        }
    }

    /// Suspends until the changes so far are told or dropped.
    package func settle() async {
        while let worker = state.withLock({ $0.worker }) { await worker.value }
    }

    /// Tells the changes so far if the store takes them at once, and no later ones.
    package func finish() async {
        state.withLock { $0.isEnding = true }
        ending.close()
        await settle()
    }

    private func note(_ change: ProviderHealths.Change, of key: ProviderClient.OfTenant) {
        state.withLock { state in
            guard !state.isEnding, state.pending.count < Self.mostPending || state.pending[key] != nil else { return }
            // An outage that is not told yet is told with the next reminder at the latest.
            if change == .stillOpen, state.pending[key] != nil { return }
            state.pending[key] = change
            if state.worker == nil { state.worker = Task { await self.work() } }
        }
    }

    private func work() async {
        var tries = 0
        while let (key, change) = next() {
            do throws(StoreError) {
                try await tell(change, of: key)
                tries = 0
            } catch {
                if error == .unavailable { records.noteFailure() }
                tries += 1
                if tries >= Self.tries || ending.isClosed {
                    drop(change, key)
                    log.warning("event_not_stored", [.tenant(key.tenant), .store(error)])
                } else {
                    state.withLock { state in
                        if state.pending[key] == nil { state.pending[key] = change }
                    }
                    let (time, pause) = (time, CredentialsRecords.pause(beforeTry: tries))
                    await ending.wait(for: 0, since: ending.ticket(0)) { try? await time.sleep(for: pause) }
                }
            }
        }
    }

    /// The next change to tell; nil ends the worker.
    private func next() -> (ProviderClient.OfTenant, ProviderHealths.Change)? {
        state.withLock { state in
            guard let next = state.pending.first else {
                state.worker = nil
                return nil
            }
            state.pending[next.key] = nil
            return (next.key, next.value)
        }
    }

    /// The next answer tells the end of an outage that could not be told now.
    private func drop(_ change: ProviderHealths.Change, _ key: ProviderClient.OfTenant) {
        if change == .answered { health.watch(key.name) }
    }

    private func tell(_ change: ProviderHealths.Change, of key: ProviderClient.OfTenant) async throws(StoreError) {
        do throws(StoreError) {
            switch change {
            case .opened(let failure): try await tellOutage(failure, of: key)
            case .stillOpen: try await prolong(key)
            case .answered: try await tellEnd(of: key)
            }
        } catch .conflict {
            // Another replica has told it, or the tenant was removed.
        }
    }

    private func tellOutage(
        _ failure: ProviderCircuit.Failure, of key: ProviderClient.OfTenant
    ) async throws(StoreError) {
        guard try await isPresentClient(key) else { return }
        let (stored, now) = (try await records.outage(key.name), time.now)
        if let outage = stored?.outage, outage.until > now { return }
        let event = BrokerEvent.providerDegraded(
            key.tenant, BrokerError(sparing: failure), by: .outage,
            retryAt: now.advanced(by: ProviderCircuit.firstPause), at: now)
        let outage = ProviderOutage(since: now, until: now.advanced(by: ProviderOutage.life))
        try await records.commit(
            [
                .require(RecordID(.tenant, key.tenant)),
                records.change(of: outage, key.name, over: stored?.version),
                BrokerEvent.entry([event], of: key.tenant, key: "", at: now),
            ], of: key.tenant)
    }

    /// Keeps the record of an outage that lasts.
    private func prolong(_ key: ProviderClient.OfTenant) async throws(StoreError) {
        guard let stored = try await records.outage(key.name), var outage = stored.outage else { return }
        let now = time.now
        if now.duration(to: outage.until) > ProviderOutage.rest { return }
        outage.until = now.advanced(by: ProviderOutage.life)
        try await records.commit([records.change(of: outage, key.name, over: stored.version)])
    }

    private func tellEnd(of key: ProviderClient.OfTenant) async throws(StoreError) {
        guard let stored = try await records.outage(key.name) else { return }
        let now = time.now
        let event = BrokerEvent.providerRecovered(key.tenant, since: stored.outage?.since, at: now)
        try await records.commit(
            [
                .require(RecordID(.tenant, key.tenant)),
                records.changeRemovingOutage(key.name, version: stored.version),
                BrokerEvent.entry([event], of: key.tenant, key: "", at: now),
            ], of: key.tenant)
    }

    /// Whether the circuit is that of the tenant's present client. Calls of an earlier one concern few users.
    private func isPresentClient(_ key: ProviderClient.OfTenant) async throws(StoreError) -> Bool {
        do throws(BrokerError) {
            return try await records.tenants.tenant(key.tenant)?.terms.client.clientID == key.client.clientID
        } catch {
            if error.code == .storageUnavailable { throw .unavailable }
            return false
        }
    }
}
