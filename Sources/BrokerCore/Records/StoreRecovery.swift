internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import JSON
internal import OAuth
internal import Reactor
internal import Waiting

/// What a process stores again, beside credentials, when the shared store has lost commits.
protocol RestoredRecords: Sendable {
    /// Reads what an earlier process has written to the journal.
    /// - Returns: whether there is anything that the store may lack.
    func takeUp() async throws(StoreError) -> Bool

    /// Stores again what the store has lost.
    /// - Parameter isLastTime: whether the other replicas have had their turn.
    func restoreLost(isLastTime: Bool) async throws(StoreError)
}

/// Notices that the shared store has lost commits, and stores everything again that this process knows and the store has lost.
///
/// It asks the store once a second, twice a second just after a loss, and four times a second while the store does not answer.
/// It asks although no caller may need the store after a failover, and although the connection may be the same: a pooler can
/// switch to another server.
final class StoreRecovery: BackgroundJob {
    private static let pauseAfterFailure: Duration = .milliseconds(250)
    /// How often the store is asked during the hold, and how long before the end of the hold it is asked last.
    private static let holdInterval: Duration = .milliseconds(500)

    private let vault: Vault
    private let records: CredentialsRecords
    let time: any Time
    private let log: Log

    var wakeUps: KeyedSignal<Int>? { rollback.wakeUps }
    private var rollback: StoreRollback { records.rollback }
    private var memory: GrantMemory { records.memory }

    /// What is stored again beside credentials, in this order.
    struct Others: Sendable {
        /// What credentials are stored under.
        let before: [any RestoredRecords]
        let after: [any RestoredRecords]

        var all: [any RestoredRecords] { before + after }
    }

    private let others: Others

    init(vault: Vault, records: CredentialsRecords, others: Others, time: any Time, log: Log) {
        self.others = others
        self.vault = vault
        self.records = records
        self.time = time
        self.log = log
    }

    /// Reads what an earlier process has written to the journal, and finds out whether the store has lost commits since a
    /// process asked last. To be called before the first caller is served.
    /// - Throws: where the journal cannot be read.
    func takeUp() async throws(BrokerError) {
        guard memory.isEnabled else { return }
        do throws(StoreError) {
            try await records.journals.takeUp()
            try await memory.takeUp()
            var isAny = memory.count > 0
            for records in others.all where try await records.takeUp() { isAny = true }
            if isAny { rollback.askForSweep() }
        } catch {
            log.error("journal_failed", [.store(error)])
            throw BrokerError(error)
        }
        do throws(StoreError) {
            try await records.losses.compare()
        } catch {
            // Connections report what happens from now on. What happened before the start is checked again later.
            records.losses.comparisonFailed()
            rollback.askForSweep()
            log.storeFailed(error)
        }
    }

    func work() async -> NextTime {
        guard memory.isEnabled else { return .never }
        return await check().map { .after($0) } ?? .woken
    }

    /// Tries once more to store again what the store has lost. To be called after `run` has returned, from a task that is not
    /// cancelled.
    func finish() async {
        do throws(StoreError) {
            if rollback.takeSweep() { _ = try await restoreAll(isLastTime: true) }
            try await records.journals.leave(isStored: isStored)
        } catch {
            log.storeFailed(error)
        }
    }

    /// Asks the store for its lineage, and reconciles what has to be.
    /// - Returns: when to ask again; nil for a store that has no lineage, and after a loss of which only a signal comes.
    func check() async -> Duration? {
        do throws(StoreError) {
            var present = try await lineage()
            let hasLineage = present != nil
            for id in rollback.takeRechecks() { _ = try await records.readWithLease(id) }
            // A loss that becomes known from here on has a name of its own.
            let epoch = records.losses.epoch
            if rollback.takeSweep() {
                try await recover()
                // The journal may know of a later one than the first by now.
                present = try await lineage()
            } else {
                settle(epoch)
            }
            // Another replica may have noticed one more loss.
            if hasLineage, rollback.isUnsettled { try await records.losses.compare() }
            try await records.journals.register(seen: present)
            try await records.journals.report()
            return hasLineage ? JobInterval.lineage : nil
        } catch {
            // Not all rechecks that were taken may have been made.
            if rollback.isRecent { rollback.askForSweep() }
            if error == .unavailable { records.noteFailure() }
            log.storeFailed(error)
            return Self.pauseAfterFailure
        }
    }

    /// - Throws: `.unavailable`, during the hold also where the store does not answer within a second.
    private func lineage() async throws(StoreError) -> StoreLineage? {
        let vault = vault
        if rollback.remainingHold == nil { return try await vault.lineage() }
        return try await records.within(StoreRollback.answerLimit) { () async throws(StoreError) in
            try await vault.lineage()
        }
    }

    private func recover() async throws(StoreError) {
        do throws(StoreError) {
            try await records.losses.compare()
            let epoch = records.losses.epoch
            let isHeld = rollback.remainingHold != nil
            var lost = try await restoreAll(isLastTime: !isHeld)
            // The others wait for this.
            settle(epoch)
            try await records.journals.register(seen: try await lineage())
            if isHeld {
                // Another replica may store records again meanwhile that are older than this replica's.
                while let rest = rollback.remainingHold, rest > Self.holdInterval {
                    try? await time.sleep(for: min(Self.holdInterval, rest - Self.holdInterval))
                    if Task.isCancelled { throw .unavailable }
                    _ = try await lineage()
                }
                lost = try await restoreAll(isLastTime: true)
            }
            report(lost)
        } catch {
            rollback.askForSweep()
            throw error
        }
    }

    /// What this process had when that loss was known is in the store again, unless something of it waits to be stored.
    private func settle(_ epoch: Int64?) {
        if let epoch, isStored { records.journals.settle(epoch) }
    }

    /// Whether nothing waits to be stored that the journal has.
    private var isStored: Bool { records.countOfUnpublished == 0 }

    /// Credentials as early as possible: refresh tokens are presented again once the hold is over.
    /// - Returns: see `CredentialsRecords.reconcileAll`.
    private func restoreAll(isLastTime: Bool) async throws(StoreError) -> Int {
        for records in others.before { try await records.restoreLost(isLastTime: isLastTime) }
        let lost = try await records.reconcileAll()
        for records in others.after { try await records.restoreLost(isLastTime: isLastTime) }
        return lost
    }

    private func report(_ lost: Int) {
        let counts = rollback.counts
        // After a start with a journal, the store may have lost nothing.
        guard rollback.isRecent || counts != StoreRollback.Counts() else { return }
        let fields: [LogField] = [
            .kept(memory.count), .restored(counts.restored), .endedAgain(counts.ended), .lost(lost),
        ]
        if lost > 0 { log.error("store_went_back", fields) } else { log.warning("store_went_back", fields) }
    }
}
