package import CredentialStore
import Cryptography
import ExternalText
import JSON
package import OAuth
import Reactor
import Synchronization
import Waiting

/// The journals of all replicas, as their owners have registered them in the shared store.
///
/// After the store has lost commits, a journal may have a newer refresh token than every other place. While its owner does not
/// run, another replica would present an older one, which many providers punish with the end of the session. So after a loss
/// each replica says in its registration that what its journal has is in the store again, and until all have said so, or for the
/// time that the operator has set, no replica presents a refresh token.
///
/// Safe to use from any task.
package final class JournalRegistry: Sendable {
    private struct State {
        /// The identity of this process's own journal; nil where it has none.
        var own: String?
        /// The last loss after which everything was stored again; nil before that is known of one.
        var settled: Int64?
        /// What the registration says, and when it was written; nil before the first one.
        var registered: (epoch: Int64, at: MonotonicInstant)?
        var remembered: StoreLineage?
        var found: (journals: [RegisteredJournal], epoch: Int64, at: MonotonicInstant)?
        var reported: [RegisteredJournal] = []
    }

    /// How often a registration is written again while nothing happens.
    static let heartbeat: Duration = .seconds(60)
    /// For how long a list of journals is good.
    private static let freshness: Duration = .milliseconds(250)
    /// There are fewer replicas.
    private static let most = 1000

    private let losses: StoreLosses
    private let memory: RecentCommits
    private let vault: Vault
    private let journal: Journal?
    private let time: any Time
    private let log: Log
    private let state = Mutex(State())
    /// The registered journals. Many renewals may wait for them at once.
    private let list: CoalescedCall<Result<[RegisteredJournal], StoreError>>

    init(
        _ losses: StoreLosses, memory: RecentCommits, vault: Vault, journal: Journal?, time: any Time, log: Log
    ) {
        (self.losses, self.memory, self.vault, self.journal) = (losses, memory, vault, journal)
        (self.time, self.log) = (time, log)
        list = CoalescedCall {
            do throws(StoreError) {
                let records = try await vault.list(.journal, tenant: .broker, limit: Self.most)
                return .success(records.compactMap { RegisteredJournal($0) })
            } catch {
                return .failure(error)
            }
        }
    }

    /// Reads what an earlier process has written to the journal. To be called before `StoreLosses` compares.
    func takeUp() async throws(StoreError) {
        guard let journal else { return }
        let own = try await journal.lineage()
        state.withLock { $0.own = own }
        if let seen = try await journal.rememberedStore() { losses.remember(seen.lineage, seen: seen.at) }
    }

    // MARK: Waiting

    /// The journals that are to be waited for now, and for how long at most; nil where there is none.
    func awaited() async throws(StoreError) -> (journals: [RegisteredJournal], rest: Duration)? {
        guard memory.isEnabled, let loss = try await losses.current() else { return nil }
        let journals = try await unsettled(after: loss)
        let now = time.monotonic
        return journals.isEmpty || loss.end <= now ? nil : (journals, now.duration(to: loss.end))
    }

    private func unsettled(after loss: StoreLosses.Loss) async throws(StoreError) -> [RegisteredJournal] {
        let now = time.monotonic
        let (known, own) = state.withLock { state in
            let known = state.found.flatMap {
                $0.epoch == loss.epoch && $0.at.advanced(by: Self.freshness) > now ? $0.journals : nil
            }
            return (known, state.own)
        }
        if let known { return known }
        let oldest = loss.noticed.advanced(by: .zero - span)
        guard let listed = await list.value() else { throw .unavailable }
        let journals = try listed.get().filter { $0.id != own && $0.epoch != loss.epoch && $0.seen > oldest }
        state.withLock { $0.found = (journals, loss.epoch, now) }
        return journals
    }

    /// A journal whose owner has not registered for longer has nothing any more that the store may lack.
    private var span: Duration { memory.span + Self.heartbeat * 2 }

    /// Tells in the log which journals are waited for, and what has become of the wait.
    func report() async throws(StoreError) {
        let awaited = try await awaited()
        let journals = awaited?.journals ?? []
        let before = state.withLock { state in
            defer { state.reported = journals }
            return state.reported
        }
        for journal in journals where !before.contains(journal) {
            log.warning("journal_awaited", journal.logFields + [.duration(awaited?.rest ?? .zero)])
        }
        if before.isEmpty { return }
        let isOver = try await losses.current() == nil
        for journal in before where !journals.contains(journal) {
            if isOver {
                log.error("journal_not_taken_up", journal.logFields)
            } else {
                log.info("journal_taken_up", journal.logFields)
            }
        }
    }

    /// How many journals were waited for when that was last looked at.
    package var awaitedCount: Int { state.withLock { $0.reported.count } }

    // MARK: Registering

    /// What the journal had when that loss was known is in the store, as far as the store lacked it.
    func settle(_ epoch: Int64) { state.withLock { $0.settled = epoch } }

    /// Registers this process's journal, where that is due: with the last loss that is settled. Before that the journal is told what
    /// the store looks like, so that the registration says nothing that the journal does not have. To be called every second.
    /// - Parameter lineage: what the store looks like; nil for a store that does not tell.
    func register(seen lineage: StoreLineage?) async throws(StoreError) {
        await remember(lineage)
        let (own, registered, settled) = state.withLock { ($0.own, $0.registered, $0.settled) }
        guard memory.isEnabled, let journal, let own, let epoch = settled else { return }
        let now = time.monotonic
        if let registered, registered.epoch == epoch, registered.at.advanced(by: Self.heartbeat) > now { return }
        let entry = RegisteredJournal(id: own, host: journal.host, seen: time.now, epoch: epoch)
        let stored = try await vault.version(of: entry.recordID)
        let record = entry.record(version: (stored ?? 0) + 1, expires: time.now.advanced(by: span))
        do throws(StoreError) {
            try await vault.commit([stored.map { .replace(record, version: $0) } ?? .insert(record)])
            state.withLock { $0.registered = (epoch, now) }
        } catch .conflict {
            // An operator has removed it just now, or the store has lost commits. The next call writes it.
        }
    }

    /// Removes the registration where the journal has nothing that the store could lack. To be called at the end.
    func leave(isStored: Bool) async throws(StoreError) {
        guard let own = state.withLock({ $0.registered == nil ? nil : $0.own }), isStored, !memory.hasCredentials else {
            return
        }
        let id = RegisteredJournal.recordID(own)
        guard let version = try await vault.version(of: id) else { return }
        do throws(StoreError) {
            try await vault.commit([.remove(id, version: version)])
        } catch .conflict {
            // An operator was faster.
        }
    }

    /// Writes into the journal what the store looks like, if that is news and no loss is under repair, so that the next process
    /// notices where the store has gone back. What the store loses of the time since the last call is not noticed.
    private func remember(_ lineage: StoreLineage?) async {
        let epoch = losses.epoch
        guard memory.isEnabled, let journal, let lineage,
            state.withLock({ $0.remembered != lineage && $0.settled == epoch })
        else { return }
        do throws(StoreError) {
            try await journal.remember(lineage, at: time.now)
            state.withLock { $0.remembered = lineage }
        } catch {
            log.warning("journal_failed", [.store(error)])
        }
    }
}

/// What a replica has registered of its journal.
package struct RegisteredJournal: Sendable, Equatable {
    /// The journal's identity, which stays for as long as its directory.
    package let id: String
    /// Where its owner ran last.
    package let host: String
    /// When its owner last wrote this.
    package let seen: Timestamp
    /// The last loss of the store after which its owner has stored again what it had.
    let epoch: Int64

    package static func == (left: RegisteredJournal, right: RegisteredJournal) -> Bool { left.id == right.id }

    package static func recordID(_ id: String) -> RecordID { RecordID(.journal, .broker, key: id) }
    var recordID: RecordID { Self.recordID(id) }

    init(id: String, host: String, seen: Timestamp, epoch: Int64) {
        (self.id, self.host, self.seen, self.epoch) = (id, host, seen, epoch)
    }

    /// Nil where this build cannot read the record.
    package init?(_ record: OpenRecord) {
        guard let json = try? JSONValue(parsing: record.content.revealedBytes), let seen = json["seen"]?.integer,
            let epoch = json["epoch"]?.integer
        else { return nil }
        self.init(
            id: record.id.key, host: json["host"]?.string?.text ?? "-", seen: Timestamp(milliseconds: seen),
            epoch: epoch)
    }

    func record(version: Int64, expires: Timestamp) -> OpenRecord {
        let content = JSONWriter.object { json in
            json.member("host", host)
            json.member("seen", seen.milliseconds)
            json.member("epoch", epoch)
        }
        return OpenRecord(id: recordID, version: version, content: SecretBytes(content), expires: expires)
    }

    var logFields: [LogField] { [.journal(id), .host(host)] }
}
