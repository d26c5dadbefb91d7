import CredentialStore
import OAuth
import Reactor
import Synchronization

/// Finds the leases of renewals, of any replica, that have run out or were given up, and renews their credentials. The refresh
/// token may be spent, and a provider that rotates tokens accepts a spent one for a few seconds only.
///
/// Every replica searches. The lease lets one replica renew.
final class LeaseRecovery: Sendable {
    private struct State {
        /// The credentials whose recovery has begun or waits, and those of them whose recovery waits.
        var underWay: Set<CredentialsID> = []
        var waiting: [CredentialsID] = []
        var workers = 0
        /// How many of the next searches are made after `JobInterval.leases`, in a store of one writer too.
        var earlySearches = 0
    }

    /// The pause between two searches of a store that only this process writes to: for leases that it could not release.
    private static let idleInterval: Duration = .seconds(10)
    /// The number of early searches after a lease was given up, which is due a second later.
    private static let earlySearchCount = 6
    /// How long a search may take. A statement ends after a few seconds at most, so that few searches hang at once.
    private static let searchLimit: Duration = .seconds(1)
    private static let batch = 1000
    private static let atOnce = 16

    private let vault: Vault
    private let renewer: CredentialsRenewer
    private let time: any Time
    private let log: Log
    private let state = Mutex(State())

    init(vault: Vault, renewer: CredentialsRenewer, time: any Time, log: Log) {
        self.vault = vault
        self.renewer = renewer
        self.time = time
        self.log = log
    }

    /// Searches until its task is cancelled, then waits for the recoveries that have begun. To be called once at most.
    func run() async {
        let interval = vault.revalidateAfter == nil ? Self.idleInterval : JobInterval.leases
        let abandoned = renewer.abandoned
        await withDiscardingTaskGroup { group in
            var ticket = abandoned.ticket()
            while !Task.isCancelled {
                // In the group, so that a long recovery does not delay the next search.
                if let ids = await search() { begin(ids, in: &group) }
                let isEarly = isNextSearchEarly()
                var pause = isEarly ? JobInterval.leases : interval
                // Random, so that replicas that were started together do not search at the same time.
                pause += .milliseconds(Int64.random(in: 0...pause.milliseconds / 4))
                let wait = pause
                if isEarly || interval == JobInterval.leases {
                    _ = try? await time.sleep(for: wait)
                } else {
                    let end = time.monotonic.advanced(by: wait)
                    await abandoned.wait(since: ticket) { _ = try? await self.time.sleep(for: wait) }
                    ticket = abandoned.ticket()
                    if time.monotonic < end { state.withLock { $0.earlySearches = Self.earlySearchCount } }
                }
            }
        }
    }

    /// Whether the next search is made after `JobInterval.leases`: a lease was given up, or a recovery is under way or has failed.
    private func isNextSearchEarly() -> Bool {
        let hasFailed = renewer.failures.hasRecoveries
        return state.withLock { state in
            if !state.underWay.isEmpty || hasFailed { state.earlySearches = Self.earlySearchCount }
            guard state.earlySearches > 0 else { return false }
            state.earlySearches -= 1
            return true
        }
    }

    /// The credentials whose lease has run out by now, the earliest first; nil where the store does not answer. Leaves out
    /// credentials whose recovery is under way or failed a moment ago.
    private func search() async -> [CredentialsID]? {
        do throws(StoreError) {
            let lapsed = try await lapsed()
            // The renewal decides which of them still have to wait for their holder.
            var ids = lapsed.compactMap { lease in
                StorageKey(lease.id.key).map { CredentialsID(tenant: lease.id.tenant, storageKey: $0) }
            }
            // Other replicas wait for the end of a lease that this process could not release.
            let unreleased = renewer.abandoned.takeUnreleased()
            ids += unreleased.subtracting(ids)
            if lapsed.isEmpty { renewer.failures.endRecoveries() }
            let underWay = state.withLock { $0.underWay }
            let ready = ids.filter { !underWay.contains($0) && renewer.failures.current($0, .recovery) == nil }
            // For a later search, which would not find them while their leases have not run out.
            for id in unreleased.subtracting(ready) { renewer.abandoned.noteUnreleased(id) }
            return ready
        } catch {
            if error == .unavailable { renewer.records.noteFailure() }
            log.storeFailed(error)
            return nil
        }
    }

    private func begin(_ ids: [CredentialsID], in group: inout DiscardingTaskGroup) {
        let workers = state.withLock { state in
            state.underWay.formUnion(ids)
            state.waiting += ids
            let count = min(Self.atOnce - state.workers, ids.count)
            state.workers += count
            return count
        }
        for _ in 0..<workers { group.addTask { await self.work() } }
    }

    private func work() async {
        while true {
            let next = state.withLock { state -> CredentialsID? in
                if Task.isCancelled { (state.waiting, state.underWay) = ([], []) }
                guard !state.waiting.isEmpty else {
                    state.workers -= 1
                    return nil
                }
                return state.waiting.removeFirst()
            }
            guard let next else { return }
            await recover(next)
            state.withLock { _ = $0.underWay.remove(next) }
        }
    }

    private func lapsed() async throws(StoreError) -> [LapsedLease] {
        let vault = vault
        return try await time.within(Self.searchLimit) { () async throws(StoreError) in
            try await vault.lapsed(.credentials, limit: Self.batch)
        }
    }

    private func recover(_ id: CredentialsID) async {
        do throws(BrokerError) {
            try await renewer.recover(id)
            renewer.failures.endRecovery(id)
        } catch {
            log.warning("lease_not_recovered", LogField.credentials(id) + [.code(error.code)])
            // A store that does not answer says nothing about these credentials, and the provider's grace may be running.
            renewer.failures.noteRecovery(id, isFirst: error.code == .storageUnavailable)
        }
    }
}
