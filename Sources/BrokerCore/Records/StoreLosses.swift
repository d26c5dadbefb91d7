import CredentialStore
import Cryptography
import ExternalText
import JSON
import OAuth
import Reactor
import Synchronization

/// Which loss of commits was the last one of the store, as its replicas have written into it. So a process that has just started
/// learns of a failover that happened before, and all replicas have one name for it.
///
/// Whether the store has gone back is compared with what it says of itself, with what this process has noticed, and with what an
/// earlier process has written into the journal: a cluster can go back to a server whose records know of no failover.
final class StoreLosses: Sendable {
    /// A loss that may still be under repair.
    struct Loss: Sendable, Equatable {
        /// The same for all replicas.
        let epoch: Int64
        let noticed: Timestamp
        /// When this process stops to wait for journals.
        let end: MonotonicInstant
    }

    private struct State {
        var noted: NotedLineage?
        /// How many losses this process had noticed when it last compared.
        var compared = 0
        /// What the journal says that an earlier process has seen, and when.
        var remembered: (lineage: StoreLineage, seen: Timestamp)?
        var end = MonotonicInstant(nanoseconds: .min / 2)
    }

    static let recordID = RecordID(.lineage, .broker, key: "current")
    private static let tries = 8
    /// Within this time after it has noticed a loss, a process expects to find another lineage in the store.
    private static let repair: Duration = .seconds(30)
    /// The replicas notice one loss within this time, by clocks that differ.
    private static let simultaneity: Duration = .seconds(5)

    private let vault: Vault
    private let rollback: StoreRollback
    private let span: Duration
    private let wait: Duration
    private let time: any Time
    private let state = Mutex(State())

    /// - Parameters:
    ///   - span: for how long what was stored is remembered.
    ///   - wait: for how long after a loss journals are waited for.
    init(vault: Vault, rollback: StoreRollback, span: Duration, wait: Duration, time: any Time) {
        self.vault = vault
        self.rollback = rollback
        self.span = span
        self.wait = wait
        self.time = time
    }

    /// To be called before the first comparison.
    func remember(_ lineage: StoreLineage, seen: Timestamp) { state.withLock { $0.remembered = (lineage, seen) } }

    /// A comparison has failed: the next question makes another one.
    func comparisonFailed() { state.withLock { $0.compared = -1 } }

    /// The name of the last loss, or of the store's beginning; nil where nothing was compared yet, or the store has no lineage.
    var epoch: Int64? { state.withLock { $0.noted?.noticed.milliseconds } }

    /// The loss after which journals may still have to be waited for; nil where there is none. Compares where this process has
    /// noticed a loss since it compared last.
    func current() async throws(StoreError) -> Loss? {
        let count = rollback.noticed.count
        if state.withLock({ $0.compared != count }) { _ = try await compare() }
        let now = time.monotonic
        return state.withLock { state in
            guard let noted = state.noted, noted.follows, state.end > now else { return nil }
            return Loss(epoch: noted.noticed.milliseconds, noticed: noted.noticed, end: state.end)
        }
    }

    /// Compares the store's present lineage with the one that is written in its records, and writes the present one there.
    /// - Returns: the present lineage; nil for a store that has none.
    @discardableResult
    func compare() async throws(StoreError) -> StoreLineage? {
        var (count, own) = rollback.noticed
        guard let present = try await vault.lineage() else {
            state.withLock { $0.compared = count }
            return nil
        }
        // The query may have shown that the store has gone back.
        (count, own) = rollback.noticed
        let remembered = state.withLock { $0.remembered }
        for _ in 0..<Self.tries {
            let record = try await vault.read(Self.recordID)
            let noted = record.flatMap { NotedLineage($0.content.revealedBytes) }
            if let noted, noted.isSame(as: present), !Self.isUnknown(own, remembered, to: noted, present) {
                adopt(noted, count)
                return present
            }
            if record != nil {
                // Else this process has noticed the same loss by itself.
                let isKnown = own.map { $0.advanced(by: Self.repair) > time.now } ?? false
                if !isKnown, rollback.note() { count += 1 }
                // Before other processes find the present lineage written, and number events.
                try await vault.resumeLog()
            }
            let new = NotedLineage(
                system: present.system, timeline: present.timeline, noticed: time.now, follows: record != nil)
            let open = OpenRecord(
                id: Self.recordID, version: (record?.version ?? 0) + 1, content: SecretBytes(new.encoded))
            do throws(StoreError) {
                try await vault.commit([record.map { .replace(open, version: $0.version) } ?? .insert(open)])
                adopt(new, count)
                return present
            } catch .conflict {
                // Another replica has written it.
                continue
            }
        }
        throw .conflict
    }

    /// Whether a loss that this process knows of came after the one that is noted.
    /// - Parameter own: when this process noticed a loss by itself; nil where it did not.
    private static func isUnknown(
        _ own: Timestamp?, _ remembered: (lineage: StoreLineage, seen: Timestamp)?, to noted: NotedLineage,
        _ present: StoreLineage
    ) -> Bool {
        if let own, noted.noticed < own.advanced(by: .zero - simultaneity) { return true }
        guard let remembered, !remembered.lineage.isContinued(by: present) else { return false }
        return noted.noticed < remembered.seen
    }

    private func adopt(_ noted: NotedLineage, _ count: Int) {
        let age = max(.zero, noted.noticed.duration(to: time.now))
        let now = time.monotonic
        state.withLock { state in
            state.remembered = nil
            state.compared = count
            if state.noted?.noticed == noted.noticed { return }
            // Once: the time since then comes out a little different each time, and would look like another loss. Before the loss has
            // its name, so that nothing that was stored again before counts for it.
            if noted.follows, age < span { rollback.note(noticed: age) }
            state.noted = noted
            state.end = now.advanced(by: noted.follows ? wait - age : .zero)
        }
    }
}

/// The lineage of a store, as it is written in the store itself.
private struct NotedLineage {
    let system: Int64
    let timeline: Int64
    /// When a replica first saw it, or noticed that the store had gone back within it.
    let noticed: Timestamp
    /// Whether the store had another lineage before, or has gone back.
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
