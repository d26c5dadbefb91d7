import Containers
import CredentialStore
import Cryptography
import ExternalText
import JSON
import OAuth
import Reactor
import Waiting

/// Stores records of some kinds again, beside credentials, that the shared store has lost. `StoreRecovery` walks over what this
/// process knows of them, and compares versions.
protocol RecordRestorer: Sendable {
    /// The kinds of records. Those of one stage are stored again before those of the next one.
    var stages: [[RecordKind]] { get }
    /// What the log calls it where anything was stored again.
    var event: StaticString { get }
    /// Whether the store must be known to have lost commits within the span. A process that starts with a journal does not know.
    var needsKnownLoss: Bool { get }

    /// The record that this one belongs to: what belongs together is stored again together.
    func owner(of id: RecordID) -> RecordID

    /// The records whose versions show whether the store has lost what is known.
    func witnesses(of known: RecentCommits.Known) -> [RecordID]

    /// Whether the store may have lost what is known.
    /// - Parameter versions: those of the witnesses; nil for one that is not there.
    func mayBeLost(_ known: RecentCommits.Known, _ versions: [Int64?]) -> Bool

    /// Stores again, by one commit, what of these records the store has lost.
    /// - Returns: false where it has lost nothing of them, or what it has is newer.
    /// - Throws: `.conflict` where another replica was faster, or the tenant is gone.
    func restore(_ group: [RecordID]) async throws(StoreError) -> Bool
}

extension RecordRestorer {
    func owner(of id: RecordID) -> RecordID { id }
    func witnesses(of known: RecentCommits.Known) -> [RecordID] { [known.id] }
    func mayBeLost(_ known: RecentCommits.Known, _ versions: [Int64?]) -> Bool {
        Newness.isNewer(known, than: versions[0])
    }
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
    private var memory: RecentCommits { records.memory }

    /// What is stored again beside credentials.
    struct Others: Sendable {
        /// What credentials are stored under.
        let before: [any RecordRestorer]
        let after: [any RecordRestorer]
        let events: EventRecovery
    }

    private let others: Others
    private static let batch = 200
    /// How often records are compared again that another replica changes meanwhile.
    private static let tries = 3

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
            if !memory.isEmpty { rollback.askForSweep() }
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
        return try await time.within(StoreRollback.answerLimit) { () async throws(StoreError) in
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
    /// - Parameter isLastTime: whether the other replicas have had their turn. What another replica has changed since is stored again
    ///   only then: that replica has it as it was later, unless its process has died.
    /// - Returns: see `CredentialsRecords.reconcileAll`.
    private func restoreAll(isLastTime: Bool) async throws(StoreError) -> Int {
        for restorer in others.before { try await restore(by: restorer, isLastTime) }
        let lost = try await records.reconcileAll()
        for restorer in others.after { try await restore(by: restorer, isLastTime) }
        // The events of what the replicas store again come first.
        if isLastTime { try await others.events.restoreLost() }
        return lost
    }

    private func restore(by restorer: any RecordRestorer, _ isLastTime: Bool) async throws(StoreError) {
        if restorer.needsKnownLoss, !rollback.isRecent { return }
        var count = 0
        for kinds in restorer.stages {
            let known = memory.known(kinds).filter { isLastTime || !$0.isSuperseded }
            for batch in Self.groups(known, by: restorer.owner).inBatches(of: Self.batch) {
                let lost = try await lost(Array(batch.joined()), restorer)
                let groups = batch.map { $0.map(\.id) }.filter { lost.contains(restorer.owner(of: $0[0])) }
                count += try await CredentialsRecords.count(groups, log) { group async throws(StoreError) in
                    for _ in 0..<Self.tries {
                        do throws(StoreError) {
                            return try await restorer.restore(group)
                        } catch .conflict {
                            continue
                        }
                    }
                    return false
                }
            }
        }
        if count > 0 { log.warning(restorer.event, [.restored(count)]) }
    }

    /// What belongs together, in the order of what is known.
    private static func groups(
        _ known: [RecentCommits.Known], by owner: (RecordID) -> RecordID
    ) -> [[RecentCommits.Known]] {
        var groups: [[RecentCommits.Known]] = []
        var places: [RecordID: Int] = [:]
        for known in known {
            let id = owner(known.id)
            if let place = places[id] {
                groups[place].append(known)
            } else {
                places[id] = groups.count
                groups.append([known])
            }
        }
        return groups
    }

    /// The owners of what the store may have lost.
    private func lost(
        _ known: [RecentCommits.Known], _ restorer: any RecordRestorer
    ) async throws(StoreError) -> Set<RecordID> {
        let witnesses = known.map { restorer.witnesses(of: $0) }
        var versions = try await vault.versions(of: Array(witnesses.joined()))[...]
        var lost: Set<RecordID> = []
        for (known, witnesses) in zip(known, witnesses) {
            if restorer.mayBeLost(known, Array(versions.prefix(witnesses.count))) {
                lost.insert(restorer.owner(of: known.id))
            }
            versions = versions.dropFirst(witnesses.count)
        }
        return lost
    }

    private func report(_ lost: Int) {
        let counts = rollback.counts
        // After a start with a journal, the store may have lost nothing.
        guard rollback.isRecent || counts != StoreRollback.Counts() else { return }
        let fields: [LogField] = [
            .kept(memory.countOfCredentials), .restored(counts.restored), .endedAgain(counts.ended), .lost(lost),
        ]
        if lost > 0 { log.error("store_went_back", fields) } else { log.warning("store_went_back", fields) }
    }
}
