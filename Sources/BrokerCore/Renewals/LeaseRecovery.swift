internal import Containers
internal import CredentialStore
internal import OAuth
internal import Reactor
internal import Synchronization

/// Sees to the leases of renewals that died at work, whichever replica's they were: providers that rotate take a spent
/// refresh token for some seconds only, and nobody knows whether it is one.
///
/// Every replica looks; the lease lets one of them do the work.
final class LeaseRecovery: Sendable {
    /// What to leave alone for a while, since seeing to it has failed without changing it.
    private struct Failure {
        var count: Int
        var until: MonotonicInstant
    }

    private struct State {
        /// Credentials whose failure is forgotten are tried once more than needed.
        var failures = BoundedTable<CredentialsID, Failure>(capacity: 10_000)
        /// What is seen to or waits for that, and what of it waits.
        var underWay: Set<CredentialsID> = []
        var waiting: [CredentialsID] = []
        var workers = 0
        /// How many of the next looks come soon after each other, whoever writes to the store.
        var hurriedLooks = 0
    }

    /// How often a shared store is looked at, and one in which something was given up just now.
    private static let interval: Duration = .milliseconds(500)
    /// How often one is whose other processes are all dead: what this process could not give back itself.
    private static let idleInterval: Duration = .seconds(10)
    /// For how many looks after something was given up: a lease is to be seen to a second after that.
    private static let hurry = 6
    /// How long a look may hang. A statement ends after some seconds in any case, so that few looks hang at once.
    private static let lookLimit: Duration = .seconds(1)
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

    /// Looks until its task is cancelled, and then until what it sees to is over. Once at most.
    func run() async {
        let interval = vault.revalidateAfter == nil ? Self.idleInterval : Self.interval
        let abandoned = renewer.abandoned
        await withDiscardingTaskGroup { group in
            var ticket = abandoned.ticket()
            while !Task.isCancelled {
                // One that takes long holds up none that is found meanwhile.
                if let ids = await look() { begin(ids, in: &group) }
                let isHurried = isHurried()
                var pause = isHurried ? Self.interval : interval
                // Replicas that were started together come to look at different times.
                pause += .milliseconds(Int64.random(in: 0...pause.milliseconds / 4))
                let wait = pause
                if isHurried || interval == Self.interval {
                    _ = try? await time.sleep(for: wait)
                } else {
                    let end = time.monotonic.advanced(by: wait)
                    await abandoned.wait(since: ticket) { _ = try? await self.time.sleep(for: wait) }
                    ticket = abandoned.ticket()
                    if time.monotonic < end { state.withLock { $0.hurriedLooks = Self.hurry } }
                }
            }
        }
    }

    /// Whether the next look comes soon: something was given up, is seen to, or could not be.
    private func isHurried() -> Bool {
        state.withLock { state in
            if !state.underWay.isEmpty || state.failures.count > 0 { state.hurriedLooks = Self.hurry }
            guard state.hurriedLooks > 0 else { return false }
            state.hurriedLooks -= 1
            return true
        }
    }

    /// What has run out by now, the earliest first; nil where the store does not say. What waits to be seen to, or failed a
    /// moment ago, is left out.
    private func look() async -> [CredentialsID]? {
        do throws(StoreError) {
            let lapsed = try await lapsed()
            let now = time.monotonic
            // The attempt decides which of them have to wait for their holder's turn.
            var ids = lapsed.compactMap { lease in
                StorageKey(lease.id.key).map { CredentialsID(tenant: lease.id.tenant, storageKey: $0) }
            }
            // Others wait for the end of a lease that this process could not give back.
            let unreleased = renewer.abandoned.takeUnreleased()
            ids += unreleased.subtracting(ids)
            let ready = state.withLock { state in
                if lapsed.isEmpty { state.failures.removeAll() }
                return ids.filter { id in
                    !state.underWay.contains(id) && state.failures[id].map { $0.until <= now } ?? true
                }
            }
            // Their turn comes with a later look, although their leases have not run out yet.
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
        return try await renewer.records.within(Self.lookLimit) { () async throws(StoreError) in
            try await vault.lapsed(.credentials, limit: Self.batch)
        }
    }

    private func recover(_ id: CredentialsID) async {
        do throws(BrokerError) {
            try await renewer.recover(id)
            state.withLock { $0.failures[id] = nil }
        } catch {
            log.warning("lease_not_recovered", LogField.credentials(id) + [.code(error.code)])
            let now = time.monotonic
            state.withLock { state in
                // A store that is away says nothing about these credentials, and the provider's grace may be running.
                let count = error.code == .storageUnavailable ? 1 : (state.failures[id]?.count ?? 0) + 1
                // 1, 2, 4, ... 64 seconds.
                let failure = Failure(count: count, until: now.advanced(by: .seconds(1 << min(count - 1, 6))))
                state.failures.setNewest(failure, forKey: id)
            }
        }
    }
}
