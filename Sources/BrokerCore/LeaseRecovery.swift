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
        var worker: Task<Void, Never>?
        var failures: [CredentialsID: Failure] = [:]
    }

    /// How often a shared store is looked at.
    private static let interval: Duration = .seconds(1)
    /// How often one is whose other processes are all dead: what this process could not give back itself.
    private static let idleInterval: Duration = .seconds(10)
    private static let batch = 1000
    private static let atOnce = 16

    private let vault: Vault
    private let credentials: CredentialsProvider
    private let time: any Time
    private let log: Log
    private let state = Mutex(State())

    init(vault: Vault, credentials: CredentialsProvider, time: any Time, log: Log) {
        self.vault = vault
        self.credentials = credentials
        self.time = time
        self.log = log
    }

    /// Begins to look, until `stop`.
    func start() {
        let interval = vault.revalidateAfter == nil ? Self.idleInterval : Self.interval
        let worker = Task {
            while !Task.isCancelled {
                await recoverAll()
                // Replicas that were started together come to look at different times.
                let jitter = Duration.milliseconds(Int64.random(in: 0...interval.milliseconds / 4))
                do {
                    try await time.sleep(for: interval + jitter)
                } catch {
                    return
                }
            }
        }
        state.withLock { $0.worker = worker }
    }

    /// Begins nothing more.
    func stop() {
        state.withLock { $0.worker }?.cancel()
    }

    /// Suspends until the work is over. Only after `stop`.
    func idle() async {
        await state.withLock { $0.worker }?.value
    }

    /// Sees to everything that has run out by now.
    func recoverAll() async {
        do throws(StoreError) {
            var last: [CredentialsID] = []
            while !Task.isCancelled {
                let lapsed = try await vault.lapsed(.credentials, limit: Self.batch)
                let now = time.monotonic
                // The attempt decides which of them have to wait for their holder's turn.
                let ids = lapsed.compactMap { lease in
                    StorageKey(lease.id.key).map { CredentialsID(tenant: lease.id.tenant, storageKey: $0) }
                }
                let due = state.withLock { state in
                    if lapsed.isEmpty { state.failures = [:] }
                    return ids.filter { id in state.failures[id].map { $0.until <= now } ?? true }
                }
                // Nothing has come of the last round: the rest is for the next look.
                if due == last { return }
                last = due
                await recover(due)
                // A full page may hide others behind those that are being left alone.
                if lapsed.count < Self.batch || due.isEmpty { return }
            }
        } catch {
            if error == .unavailable { credentials.noteStoreFailure() }
            log.storeFailed(error)
        }
    }

    private func recover(_ ids: [CredentialsID]) async {
        await withTaskGroup(of: Void.self) { group in
            for (index, id) in ids.enumerated() {
                if index >= Self.atOnce { await group.next() }
                if Task.isCancelled { return }
                group.addTask { await self.recover(id) }
            }
        }
    }

    private func recover(_ id: CredentialsID) async {
        do throws(BrokerError) {
            try await credentials.recover(id)
            state.withLock { $0.failures[id] = nil }
        } catch {
            log.warning("lease_not_recovered", LogField.credentials(id) + [.code(error.code)])
            let now = time.monotonic
            state.withLock { state in
                // Whoever is forgotten is tried once more than needed.
                if state.failures.count >= 10_000 { state.failures = [:] }
                let count = (state.failures[id]?.count ?? 0) + 1
                // 1, 2, 4, ... 64 seconds.
                state.failures[id] = Failure(count: count, until: now.advanced(by: .seconds(1 << min(count - 1, 6))))
            }
        }
    }
}
