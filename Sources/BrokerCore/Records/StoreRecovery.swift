internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import JSON
internal import OAuth
internal import Reactor
internal import Waiting

/// Notices that the shared store has gone back, and has everything stored again that this process knows and the store does
/// not.
///
/// It asks the store once a second, twice a second just after it has gone back, and four times a second while it does not
/// answer: a pooler can lead to another server without a new connection, and after a failover nobody may call.
final class StoreRecovery: Sendable {
    private static let interval: Duration = .seconds(1)
    private static let pauseAfterFailure: Duration = .milliseconds(250)
    /// How often the store is asked during the hold, and what is left of the hold for the last look.
    private static let holdInterval: Duration = .milliseconds(500)

    private let vault: Vault
    private let records: CredentialsRecords
    private let time: any Time
    private let log: Log

    private var rollback: StoreRollback { records.rollback }
    private var memory: GrantMemory { records.memory }

    init(vault: Vault, records: CredentialsRecords, time: any Time, log: Log) {
        self.vault = vault
        self.records = records
        self.time = time
        self.log = log
    }

    /// Takes up what an earlier process kept, and finds out whether the store has gone back since a process looked last. To
    /// be done before anybody is served.
    /// - Throws: where the journal cannot be read.
    func takeUp() async throws(BrokerError) {
        guard memory.isEnabled else { return }
        do throws(StoreError) {
            try await memory.takeUp()
        } catch {
            log.error("journal_failed", [.store(error)])
            throw BrokerError(error)
        }
        if memory.count > 0 { rollback.askForSweep() }
        do throws(StoreError) {
            try await compareLineage()
        } catch {
            // Connections tell of what happens from now on. What happened before the start is looked for again.
            rollback.askForSweep()
            log.storeFailed(error)
        }
    }

    /// Works until its task is cancelled; at once over where no other process writes to the store. Once at most.
    func run() async {
        guard memory.isEnabled else { return }
        while !Task.isCancelled {
            let ticket = rollback.wakeUps.ticket(0)
            let pause = await look()
            await rollback.wakeUps.wait(for: 0, since: ticket) { [time] in
                if let pause { try? await time.sleep(for: pause) } else { await Self.untilCancelled() }
            }
        }
    }

    /// Tries once more to store again what is known and was not stored again yet. To be called after `run` has ended, from
    /// a task that is not cancelled.
    func finish() async {
        guard rollback.takeSweep() else { return }
        do throws(StoreError) {
            _ = try await records.mendAll()
        } catch {
            log.storeFailed(error)
        }
    }

    private static func untilCancelled() async {
        // What ends it is the cancellation: nothing is ever sent.
        let (stream, continuation) = AsyncStream.makeStream(of: Never.self)
        for await _ in stream {}
        continuation.finish()
    }

    /// Does what there is to do.
    /// - Returns: after what time there may be something again; nil where a signal tells of it, since the store does not say
    ///   when asked that it has gone back.
    func look() async -> Duration? {
        do throws(StoreError) {
            let tells = try await lineage() != nil
            for id in rollback.takeRechecks() { _ = try await records.standing(id) }
            if rollback.takeSweep() { try await recover() }
            return tells ? Self.interval : nil
        } catch {
            // What was taken out to be looked at may not have been.
            if rollback.isRecent { rollback.askForSweep() }
            if error == .unavailable { records.noteFailure() }
            log.storeFailed(error)
            return Self.pauseAfterFailure
        }
    }

    /// - Throws: `.unavailable` also where the store has the hold go by without a word.
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
            var lost = try await records.mendAll()
            if rollback.remainingHold != nil {
                // Another replica may put back what it has, which comes before what this one has.
                while let rest = rollback.remainingHold, rest > Self.holdInterval {
                    try? await time.sleep(for: min(Self.holdInterval, rest - Self.holdInterval))
                    if Task.isCancelled { throw .unavailable }
                    _ = try await lineage()
                }
                lost = try await records.mendAll()
            }
            tell(lost)
        } catch {
            rollback.askForSweep()
            throw error
        }
    }

    private func tell(_ lost: Int) {
        let counts = rollback.counts
        // After a start with a journal there may have been nothing.
        guard rollback.isRecent || counts != StoreRollback.Counts() else { return }
        let fields: [LogField] = [
            .kept(memory.count), .restored(counts.restored), .endedAgain(counts.ended), .lost(lost),
        ]
        if lost > 0 { log.error("store_went_back", fields) } else { log.warning("store_went_back", fields) }
    }

    // MARK: For processes that start later

    private static let lineageID = RecordID(.lineage, .broker, key: "current")

    /// Holds the store's lineage against the one that stands in it, which went back with it, and writes down the present
    /// one. So a process that has no memory of its own, because it has just started, knows of a failover before it.
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
            // Before other processes find the present lineage noted, and assign sequences.
            try await vault.resumeLog()
        }
        let new = NotedLineage(
            system: present.system, timeline: present.timeline, noticed: time.now, follows: record != nil)
        let open = OpenRecord(
            id: Self.lineageID, version: (record?.version ?? 0) + 1, content: SecretBytes(new.encoded))
        do throws(StoreError) {
            try await vault.commit([record.map { .replace(open, version: $0.version) } ?? .insert(open)])
        } catch .conflict {
            // Another replica has noticed it as well.
        }
    }
}

/// The lineage of a store as it is written down in the store itself.
private struct NotedLineage {
    let system: Int64
    let timeline: Int64
    /// When a replica first saw it.
    let noticed: Timestamp
    /// Whether another one was before it.
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
