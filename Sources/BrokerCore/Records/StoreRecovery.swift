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
final class StoreRecovery: Sendable {
    private static let interval: Duration = .seconds(1)
    private static let pauseAfterFailure: Duration = .milliseconds(250)
    /// How often the store is asked during the hold, and how long before the end of the hold it is asked last.
    private static let holdInterval: Duration = .milliseconds(500)

    private let vault: Vault
    private let records: CredentialsRecords
    private let time: any Time
    private let log: Log

    private var rollback: StoreRollback { records.rollback }
    private var memory: GrantMemory { records.memory }

    /// In the order in which they are stored again.
    private let others: [any RestoredRecords]

    init(
        vault: Vault, records: CredentialsRecords, others: [any RestoredRecords], time: any Time, log: Log
    ) {
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
            try await memory.takeUp()
            var isAny = memory.count > 0
            for records in others where try await records.takeUp() { isAny = true }
            if isAny { rollback.askForSweep() }
        } catch {
            log.error("journal_failed", [.store(error)])
            throw BrokerError(error)
        }
        do throws(StoreError) {
            try await compareLineage()
        } catch {
            // Connections report what happens from now on. What happened before the start is checked again later.
            rollback.askForSweep()
            log.storeFailed(error)
        }
    }

    /// Works until its task is cancelled. Returns at once where no other process writes to the store. To be called once at
    /// most.
    func run() async {
        guard memory.isEnabled else { return }
        while !Task.isCancelled {
            let ticket = rollback.wakeUps.ticket(0)
            let pause = await check()
            await rollback.wakeUps.wait(for: 0, since: ticket) { [time] in
                if let pause { try? await time.sleep(for: pause) } else { await Self.untilCancelled() }
            }
        }
    }

    /// Tries once more to store again what the store has lost. To be called after `run` has returned, from a task that is not
    /// cancelled.
    func finish() async {
        guard rollback.takeSweep() else { return }
        do throws(StoreError) {
            _ = try await records.reconcileAll()
            try await restoreOthers(isLastTime: true)
        } catch {
            log.storeFailed(error)
        }
    }

    private static func untilCancelled() async {
        // Cancellation ends the loop: nothing is ever sent.
        let (stream, continuation) = AsyncStream.makeStream(of: Never.self)
        for await _ in stream {}
        continuation.finish()
    }

    /// Asks the store for its lineage, and reconciles what has to be.
    /// - Returns: when to ask again; nil for a store that has no lineage, and after a loss of which only a signal comes.
    func check() async -> Duration? {
        do throws(StoreError) {
            let hasLineage = try await lineage() != nil
            for id in rollback.takeRechecks() { _ = try await records.readWithLease(id) }
            if rollback.takeSweep() { try await recover() }
            return hasLineage ? Self.interval : nil
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
            try await compareLineage()
            let isHeld = rollback.remainingHold != nil
            // Credentials first: refresh tokens are presented again once the hold is over.
            var lost = try await records.reconcileAll()
            try await restoreOthers(isLastTime: !isHeld)
            if isHeld {
                // Another replica may store records again meanwhile that are older than this replica's.
                while let rest = rollback.remainingHold, rest > Self.holdInterval {
                    try? await time.sleep(for: min(Self.holdInterval, rest - Self.holdInterval))
                    if Task.isCancelled { throw .unavailable }
                    _ = try await lineage()
                }
                lost = try await records.reconcileAll()
                try await restoreOthers(isLastTime: true)
            }
            report(lost)
        } catch {
            rollback.askForSweep()
            throw error
        }
    }

    private func restoreOthers(isLastTime: Bool) async throws(StoreError) {
        for records in others { try await records.restoreLost(isLastTime: isLastTime) }
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

    // MARK: For processes that start later

    private static let lineageID = RecordID(.lineage, .broker, key: "current")

    /// Compares the store's present lineage with the one that is written in its records, and writes the present one there. So
    /// a process that has just started learns of a failover that happened before.
    private func compareLineage() async throws(StoreError) {
        guard let present = try await vault.lineage() else { return }
        let record = try await vault.read(Self.lineageID)
        let noted = record.flatMap { NotedLineage($0.content.revealedBytes) }
        if let noted, noted.isSame(as: present) {
            let age = max(.zero, noted.noticed.duration(to: time.now))
            if noted.follows, age < memory.span { rollback.note(noticed: age) }
            return
        }
        if record != nil {
            rollback.note()
            // Before other processes find the present lineage written, and number events.
            try await vault.resumeLog()
        }
        let new = NotedLineage(
            system: present.system, timeline: present.timeline, noticed: time.now, follows: record != nil)
        let open = OpenRecord(
            id: Self.lineageID, version: (record?.version ?? 0) + 1, content: SecretBytes(new.encoded))
        do throws(StoreError) {
            try await vault.commit([record.map { .replace(open, version: $0.version) } ?? .insert(open)])
        } catch .conflict {
            // Another replica has written it.
        }
    }
}

/// The lineage of a store, as it is written in the store itself.
private struct NotedLineage {
    let system: Int64
    let timeline: Int64
    /// When a replica first saw it.
    let noticed: Timestamp
    /// Whether the store had another lineage before.
    let follows: Bool

    init(system: Int64, timeline: Int64, noticed: Timestamp, follows: Bool) {
        self.system = system
        self.timeline = timeline
        self.noticed = noticed
        self.follows = follows
    }

    init?(_ bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes), let system = json["system"]?.integer,
            let timeline = json["timeline"]?.integer, let noticed = json["noticed"]?.integer,
            let follows = json["follows"]?.bool
        else { return nil }
        self.init(
            system: system, timeline: timeline, noticed: Timestamp(milliseconds: noticed), follows: follows)
    }

    var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("system", system)
            json.member("timeline", timeline)
            json.member("noticed", noticed.milliseconds)
            json.member("follows", follows)
        }
    }

    func isSame(as lineage: StoreLineage) -> Bool { system == lineage.system && timeline == lineage.timeline }
}
