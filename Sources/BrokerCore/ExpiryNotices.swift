package import CredentialStore
internal import Cryptography
internal import OAuth
internal import Reactor
internal import Synchronization

/// Tells listeners of tokens that are about to expire: once for each token, whichever replica does it, and after a
/// restart what fell due meanwhile.
///
/// Every record of credentials bears the time of its notice as a mark, written in the same commit. The notice goes into
/// the log in the commit that takes the mark away, so that of several who try one succeeds, and a crash in between has
/// either done both or nothing.
package final class ExpiryNotices: Sendable {
    private struct State {
        /// When the worker looks again; nil while it does not wait.
        var next: Timestamp?
        var worker: Task<Void, Never>?
    }

    private static let batch = 100
    /// How often the store is asked at least: the marks that other replicas write are not announced here.
    private static let interval: Duration = .seconds(5)

    private let vault: Vault
    private let bus: EventBus
    private let time: any Time
    private let log: Log
    private let state = Mutex(State())
    private let wakeUps = Signals<Int>()

    package init(vault: Vault, bus: EventBus, time: any Time, log: Log) {
        self.vault = vault
        self.bus = bus
        self.time = time
        self.log = log
        bus.onDue { [weak self] due in self?.expect(due) }
    }

    /// Begins to tell, until `stop`.
    package func start() {
        let worker = Task {
            while !Task.isCancelled {
                // What is marked from here on is looked for at once, or heard of.
                let ticket = wakeUps.ticket(0)
                let pause = await tellAllDue()
                state.withLock { $0.next = time.now.advanced(by: pause) }
                await wakeUps.wait(for: 0, since: ticket) { _ = try? await self.time.sleep(for: pause) }
                state.withLock { $0.next = nil }
            }
        }
        state.withLock { $0.worker = worker }
    }

    /// Begins nothing more.
    package func stop() {
        state.withLock { $0.worker }?.cancel()
    }

    /// Suspends until the work is over. Only after `stop`.
    package func idle() async {
        await state.withLock { $0.worker }?.value
    }

    /// A mark was written in this process.
    private func expect(_ due: Timestamp) {
        // The next look is never further away than that.
        if due > time.now.advanced(by: Self.interval) { return }
        let isEarlier = state.withLock { state in
            // Nobody waits: either nobody works, or whoever does is looking and may have looked past this one.
            guard let next = state.next else { return state.worker != nil }
            return due < next
        }
        if isEarlier { wakeUps.signal(0) }
    }

    /// Tells everything that is due now, the earliest first. Returns how long there is nothing more to do.
    package func tellAllDue() async -> Duration {
        do throws(StoreError) {
            while !Task.isCancelled {
                let due = try await vault.due(.credentials, before: time.now, limit: Self.batch)
                for record in due {
                    // Each is a commit, and a store that is slow would keep whoever stops the process for all of them.
                    if Task.isCancelled { break }
                    try await tell(record)
                }
                if due.count < Self.batch { break }
            }
            guard let next = try await vault.nextDue(.credentials) else { return Self.interval }
            // A mark is due when its time has passed.
            return max(.milliseconds(1), min(Self.interval, time.now.duration(to: next) + .milliseconds(1)))
        } catch {
            log.warning("store_failed", [.store(error)])
            return Self.interval
        }
    }

    private func tell(_ due: DueRecord) async throws(StoreError) {
        let now = time.now
        guard let storageKey = StorageKey(due.id.key) else {
            return try await settle(due, telling: [])
        }
        let id = CredentialsID(tenant: due.id.tenant, storageKey: storageKey)
        guard let record = due.record, let content = CredentialRecord(decoding: record.content.revealedBytes) else {
            log.error("credentials_unreadable", LogField.credentials(id) + [.version(due.version)])
            return try await settle(due, telling: [])
        }
        guard let held = content.held else { return try await settle(due, telling: []) }
        try await settle(
            due, telling: [BrokerEvent.entry([.expiring(id, held, version: due.version, at: now)], of: id, at: now)])
    }

    private func settle(_ due: DueRecord, telling events: [VaultChange]) async throws(StoreError) {
        do throws(StoreError) {
            try await vault.commit([.settleDue(due.id, version: due.version)] + events)
        } catch .conflict {
            // Another replica has told of it, or the credentials were renewed.
            return
        }
        if !events.isEmpty { bus.announce(due.id.tenant) }
    }
}
