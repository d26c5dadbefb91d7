import CredentialStore
import OAuth
import Reactor
import Renewal

/// The lease of one attempt of this process on one record: taken, extended meanwhile, given back. `end` comes last, when the
/// attempt has nothing left to store.
struct OwnLease: Sendable {
    let id: CredentialsID
    /// The record in whose row the lease stands: that of the credentials, or that of the quarantined ones.
    let record: RecordID
    /// The name under which the lease is held.
    private(set) var holder: String
    private let keeper: LeaseKeeper
    private let extended = LeaseKeeper.Extension()

    /// - Parameter name: what the holder's name ends with; default a new one.
    init(on record: RecordID, of id: CredentialsID, as name: RefreshID = RefreshID(), by keeper: LeaseKeeper) {
        self.id = id
        self.record = record
        self.keeper = keeper
        holder = keeper.holders.begin(name)
    }

    private var records: CredentialsRecords { keeper.records }

    /// When the store was last asked to extend the lease and did so; nil if it never did.
    var lastExtension: MonotonicInstant? { extended.last }

    /// A claim that extends this lease, and replaces no other holder's.
    func claim(
        by rules: RenewalRules, marksUse: Bool = false, isOpen: Bool = false, notAfter latest: Timestamp? = nil
    ) -> LeaseClaim {
        LeaseClaim(
            holder: holder, replacing: holder, for: rules.leaseSpan, marksUse: marksUse, isOpen: isOpen,
            notAfter: latest)
    }

    /// Takes or extends the lease on exactly this version, in one commit with the events.
    /// - Parameter limit: how long to wait for the store; nil for as long as its own limit.
    /// - Throws: `.conflict` if the record has changed or another holder has the lease. After any other error the store may have
    ///   carried the claim out, or may do so yet.
    func take(
        _ claim: LeaseClaim, on version: Int64, telling events: [BrokerEvent] = [], within limit: Duration? = nil
    ) async throws(StoreError) {
        try await records.commit(
            [.claim(record, version: version, claim)], events: events, of: id, within: limit)
    }

    /// Begins to extend the lease by that claim, until `endExtending`.
    /// - Returns: what `endExtending` takes.
    func beginExtending(by claim: LeaseClaim, on version: Int64, _ rules: RenewalRules) -> UInt64 {
        keeper.beginExtending(
            LeaseKeeper.Held(
                record: record, version: version, claim: claim, interval: rules.extensionInterval, extended: extended))
    }

    func endExtending(_ token: UInt64) { keeper.endExtending(token) }

    /// The change that gives the lease back.
    func release(_ version: Int64, _ release: LeaseRelease) -> VaultChange {
        .release(record, version: version, holder: holder, release)
    }

    /// Commits changes that give the lease back, with events. After a conflict the next changes are tried: another change may
    /// have taken the lease away already.
    /// - Parameters:
    ///   - tries: the changes of each try. If the first ones are empty, no lease is given back.
    ///   - limit: how long to wait for the store at each try; nil for as long as its own limit.
    /// - Throws: `.conflict` if all tries have met one.
    func giveBack(
        by tries: [[VaultChange]], telling events: [BrokerEvent] = [],
        within limit: Duration? = CredentialsRecords.statementLimit
    ) async throws(StoreError) {
        for changes in tries {
            do throws(StoreError) {
                return try await records.commit(changes, events: events, of: id, within: limit)
            } catch .conflict {
                continue
            } catch {
                if tries.first?.isEmpty == false { noteUnreleased() }
                throw error
            }
        }
        throw .conflict
    }

    /// Gives the lease back for a while, and goes on under another name: a lease is not taken again under one that has given it up.
    mutating func handOver(_ version: Int64, _ release: LeaseRelease) async throws(StoreError) {
        try await giveBack(by: [[self.release(version, release)]])
        end()
        holder = keeper.holders.begin(RefreshID())
    }

    /// The store may still have the lease, so that `LeaseRecovery` is to look at it. It looks at no quarantined credentials: their
    /// lease runs out by itself.
    func noteUnreleased() {
        if record.kind == .credentials { keeper.abandoned.noteUnreleased(id) }
    }

    /// The attempt has ended, and has nothing left to store under this lease.
    func end() { keeper.holders.end(holder) }
}
