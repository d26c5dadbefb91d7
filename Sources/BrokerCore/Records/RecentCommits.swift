import Containers
import CredentialStore
import Cryptography
import OAuth
import Reactor
import Synchronization

/// Keeps a copy of what this process stored and removed in the last 15 minutes, sealed under a key of its own.
///
/// A failover to a standby that is behind loses the newest commits. The refresh token that the database has then was used already,
/// so the copy here is the only one that works; an API key that was deleted would open everything again. `StoreRecovery` stores
/// again what is here and not in the store.
///
/// In memory, and partly in the journal where there is one (`isJournalled`). If only this process writes to the store, the store
/// loses no commits while it is open, and nothing is kept.
///
/// Bounded. The kinds of records are in five shares: credentials have one of 100,000 records and 64 MiB, sessions of apps, logins
/// with codes, settings, and biometric keys one of 8192 records and 32 MiB each. So the memory has 192 MiB at most, and what apps and
/// strangers make pushes out no credentials and no settings. In a full share the oldest record gives way.
final class RecentCommits: Sendable {
    struct Limits: Sendable {
        /// For how long a commit is kept; zero keeps none.
        var span: Duration
        /// How many credentials are kept, and the memory that they may take, in bytes by an estimate.
        var entries = 100_000
        var bytes = 64 << 20
        /// The same for each other share.
        var otherEntries = 8192
        var otherBytes = 32 << 20
        /// How many records are remembered that are to be removed from the journal. The next process finds the others there.
        var leaving = 200_000
    }

    /// What is known of a record, without its content.
    struct Known: Sendable {
        let id: RecordID
        /// The version under which the record was stored; of a removed record, the last one that it had.
        let version: Int64
        /// Whether this process has removed the record.
        var isRemoved = false
        /// Whether another process has changed the record since, so that that process has it, too.
        var isSuperseded = false
        /// Whether an earlier process made the commit: this one has read of it in the journal, and may have missed what other
        /// processes made of the record meanwhile.
        var isTakenUp = false
    }

    /// Records that push out each other.
    fileprivate enum Share: Int, CaseIterable {
        case credentials, sessions, logins, settings, biometricKeys

        /// Nil for a kind of which nothing is kept.
        init?(_ kind: RecordKind) {
            switch kind {
            case .credentials: self = .credentials
            case .session: self = .sessions
            case .login, .device, .code: self = .logins
            case .tenant, .apiKey, .client, .provider: self = .settings
            // Apps make them, and operators do not.
            case .biometricKey: self = .biometricKeys
            default: return nil
            }
        }
    }

    fileprivate enum Content {
        /// Sealed under the process's own key.
        case stored(StoredRecord)
        case removed
        /// Another process wrote that version, and has it.
        case elsewhere
    }

    fileprivate struct Entry {
        var known: Known
        let content: Content
        /// When it was committed, by the time of day and by the monotonic clock.
        let stored: Timestamp
        let since: MonotonicInstant
        /// The digest of the record's token, and of the tokens that it has replaced.
        var own: [UInt8]?
        var replaced: [[UInt8]] = []
        /// Whether it is a login or a logout.
        var isAct = false
        /// Where the journal has it, or what was made of the record before; nil where the journal has nothing.
        var place: RecentCommit.Place?

        var hasContent: Bool { if case .stored = content { true } else { false } }

        var bytes: Int {
            let digests = (own == nil ? 0 : 1) + replaced.count
            let sealed = if case .stored(let record) = content { record.sealed.count } else { 0 }
            return RecentCommits.overhead + known.id.key.utf8.count + sealed + 64 * digests
        }
    }

    fileprivate struct Table {
        var entries: BoundedTable<RecordID, Entry>
        var bytes = 0
        let limit: Int
    }

    fileprivate struct State {
        /// In the order of the shares.
        var tables: [Table]
        /// What is to be removed from the journal, each up to that version.
        var leaving: BoundedTable<RecordID, Int64>
        /// The digests of the tokens that a commit under way replaces.
        var replacing: [RecentCommit.Place: [[UInt8]]] = [:]
        /// How many writes to the journal are under way.
        var writing = 0
        /// Seals what is kept. Nil until something is.
        var own: Vault?

        subscript(share: Share) -> Table {
            get { tables[share.rawValue] }
            _modify { yield &tables[share.rawValue] }
        }
    }

    /// The kinds of records that are kept.
    static let kinds: [RecordKind] = RecordKind.allCases.filter { Share($0) != nil }
    /// As many replaced tokens as another replica may still have stored again.
    private static let replacedLimit = 8
    /// The memory that an entry takes beside its content, key and digests, about, in bytes.
    private static let overhead = 400
    /// For how long a commit waits for the journal, whose disk may hang. Caches and other replicas hear of the commit after that.
    private static let journalLimit: Duration = .seconds(1)
    /// How many writes to the journal may be under way: callers stop waiting for those of a disk that hangs.
    private static let mostWrites = 10_000

    private let limits: Limits
    private let vault: Vault
    private let journal: Journal?
    private let time: any Time
    private let log: Log
    private let state: Mutex<State>

    /// - Parameter vault: that of the broker's store.
    init(_ limits: Limits, vault: Vault, journal: Journal?, time: any Time, log: Log) {
        var limits = limits
        if vault.revalidateAfter == nil { limits.span = .zero }
        self.limits = limits
        self.vault = vault
        self.journal = journal
        self.time = time
        self.log = log
        state = Mutex(
            State(
                tables: Share.allCases.map { share in
                    share == .credentials
                        ? Table(entries: BoundedTable(capacity: limits.entries), limit: limits.bytes)
                        : Table(entries: BoundedTable(capacity: limits.otherEntries), limit: limits.otherBytes)
                }, leaving: BoundedTable(capacity: limits.leaving)))
    }

    var isEnabled: Bool { limits.span > .zero }
    var span: Duration { limits.span }

    // MARK: Keeping

    /// This process has committed the changes. Returns once that is in the journal, too, as far as it belongs there, or after a
    /// second: the write then goes on.
    func note(_ changes: [VaultChange]) async {
        guard isEnabled else { return }
        let (wall, now) = (time.now, time.monotonic)
        var kept: [(commit: RecentCommit, place: RecentCommit.Place)] = []
        for change in changes {
            let commit: RecentCommit
            var isInsertion = false
            switch change {
            case .insert(let record): (commit, isInsertion) = (RecentCommit(storing: record, at: wall), true)
            case .replace(let record, _, _): commit = RecentCommit(storing: record, at: wall)
            case .remove(let id, let version): commit = RecentCommit(removing: id, version: version, at: wall)
            case .removeAll(let tenant):
                forget(tenant)
                continue
            default: continue
            }
            let isJournalled = journal != nil && Self.isJournalled(commit, isInsertion: isInsertion)
            do throws(StoreError) {
                let entered = try enter(commit, isInsertion: isInsertion, at: now) { isJournalled ? $0.place : nil }
                if let entered, let place = entered.place { kept.append((entered.commit, place)) }
            } catch {
                log.warning("store_failed", Self.fields(commit.id) + [.store(error)])
            }
        }
        await write(kept)
    }

    /// Whether the journal has it for the next process. Not what was made of tenants and operators' profiles: an operator who
    /// restores the database to get a tenant back starts all processes anew, and none of them may remove the tenant again.
    private static func isJournalled(_ commit: RecentCommit, isInsertion: Bool) -> Bool {
        switch commit.id.kind {
        case .credentials, .apiKey, .client, .biometricKey: true
        // Of a session that goes on, the app's refresh token shows by itself that it is later than what the store has.
        case .session: isInsertion || commit.record == nil
        default: false
        }
    }

    private func write(_ commits: [(commit: RecentCommit, place: RecentCommit.Place)]) async {
        guard let journal, !commits.isEmpty else { return }
        do throws(StoreError) {
            let isFree = state.withLock { state in
                if state.writing == Self.mostWrites { return false }
                state.writing += 1
                return true
            }
            guard isFree else { throw .unavailable }
            try await time.within(Self.journalLimit) { () async throws(StoreError) in
                defer { self.state.withLock { $0.writing -= 1 } }
                try await journal.keep(commits.map { $0.commit.kept(in: $0.place) })
            }
        } catch {
            // The store has it. Only the next process could not store it again.
            log.warning("journal_failed", Self.fields(commits[0].commit.id) + [.store(error)])
        }
    }

    private static func fields(_ id: RecordID) -> [LogField] {
        guard id.kind == .credentials, let id = CredentialsID(id) else { return [.tenant(id.tenant)] }
        return LogField.credentials(id)
    }

    /// Makes a commit that stores credentials in place of others.
    /// - Parameters:
    ///   - digests: of the tokens that the record replaces, the latest one last.
    ///   - version: the record's.
    func replacing<R>(
        _ digests: [[UInt8]], of id: RecordID, by version: Int64, _ commit: () async throws(StoreError) -> R
    ) async throws(StoreError) -> R {
        let place = RecentCommit.Place(id: id, version: version)
        state.withLock { $0.replacing[place] = digests }
        defer { state.withLock { $0.replacing[place] = nil } }
        return try await commit()
    }

    /// - Parameters:
    ///   - isInsertion: whether there was no such record before.
    ///   - place: where the journal has the commit, or is to have it at least in that version; nil for nowhere.
    /// - Returns: the commit with all that is known of it, and its place in the journal; nil where something newer is known, or
    ///   nothing is kept of its kind.
    /// - Throws: where it cannot be sealed. It is not kept then.
    private func enter(
        _ commit: RecentCommit, isInsertion: Bool, isTakenUp: Bool = false, at now: MonotonicInstant,
        _ place: (RecentCommit) -> RecentCommit.Place?
    ) throws(StoreError) -> (commit: RecentCommit, place: RecentCommit.Place?)? {
        guard let share = Share(commit.id.kind) else { return nil }
        if commit.record == nil, share == .logins || share == .credentials {
            // Such a record is gone soon, or goes with its tenant.
            state.withLock { $0.remove(commit.id, share) }
            return nil
        }
        let content: Content =
            try commit.record.map { record throws(StoreError) in .stored(try ownVault().seal(record)) } ?? .removed
        let credentials =
            share == .credentials
            ? commit.record.flatMap { CredentialRecord(decoding: $0.content.revealedBytes) } : nil
        return state.withLock { state in
            var commit = commit
            let before = state[share].entries[commit.id]
            if share == .sessions, commit.record == nil {
                // A session has ended for good, whatever else is known of it.
                commit.version = max(commit.version, before?.known.version ?? 0)
            } else if let before, Self.isLate(commit, isInsertion: isInsertion, after: before.known) {
                return nil
            }
            if share == .credentials {
                commit.replaced = state.lineage(of: commit, credentials?.tokenDigest, after: before)
            }
            var entry = Entry(
                known: Known(
                    id: commit.id, version: commit.version, isRemoved: commit.record == nil, isTakenUp: isTakenUp),
                content: content, stored: commit.stored, since: now, own: credentials?.tokenDigest,
                replaced: commit.replaced, isAct: credentials?.isAct ?? false)
            entry.place = place(commit)
            if !isTakenUp, share != .credentials { entry.place = entry.place.map { state.newest($0, after: before) } }
            state.set(entry, share)
            state.shrink(share, to: limits.span, at: now)
            return (commit, entry.place)
        }
    }

    /// Whether a commit came before what is known: two commits may be noted in another order than they were made in.
    private static func isLate(_ commit: RecentCommit, isInsertion: Bool, after known: Known) -> Bool {
        guard known.isRemoved, commit.record != nil else { return commit.version < known.version }
        if known.id.kind == .session { return true }
        // A record that is made anew may have a lower version than the one that was removed, by another replica's clock.
        return isInsertion ? commit.version == known.version : commit.version <= known.version
    }

    private func ownVault() throws(StoreError) -> Vault {
        try state.withLock { state throws(StoreError) in
            if let own = state.own { return own }
            let own = try vault.withOwnKey()
            state.own = own
            return own
        }
    }

    /// Reads what an earlier process has written to the journal. Has removed from there what is too old or not the newest; what
    /// cannot be sealed now stays there for the next process.
    /// - Throws: where the journal cannot be read.
    func takeUp() async throws(StoreError) {
        guard let journal else { return }
        let (now, wall) = (time.monotonic, time.now)
        for (commit, place) in try await journal.recent().sorted(by: { $0.commit.stored < $1.commit.stored }) {
            let age = max(.zero, commit.stored.duration(to: wall))
            do throws(StoreError) {
                let since = now.advanced(by: .zero - age)
                if isEnabled, age < limits.span,
                    try enter(commit, isInsertion: false, isTakenUp: true, at: since, { _ in place }) != nil
                {
                    continue
                }
                state.withLock { $0.leaving[place.id] = place.version }
            } catch {
                log.warning("store_failed", Self.fields(commit.id) + [.store(error)])
            }
        }
    }

    // MARK: Dropping

    /// Has other processes' changes, which the bus announces, replace what is known.
    func follow(_ bus: EventBus, _ rollback: StoreRollback) {
        bus.onRemoval { self.forget($0) }
        for kind in Self.kinds {
            bus.onChange(of: kind) { id, version in
                if let version { return self.changed(id, version, rollback) }
                // After a loss of commits, a record that is not there may be one that was lost. A setting is stored again within
                // the hold: after that it was removed.
                let mayBeLost =
                    switch Share(kind) {
                    case .settings, .biometricKeys: rollback.remainingHold != nil
                    default: rollback.isRecent
                    }
                // Credentials are not removed, but with their tenant.
                if kind != .credentials, !mayBeLost { self.forget(id) }
            }
        }
    }

    private func changed(_ id: RecordID, _ version: Int64, _ rollback: StoreRollback) {
        if id.kind == .credentials {
            guard let id = CredentialsID(id), version > self.version(id) else { return }
            // Just after the store has lost commits, a higher version may be that of an older grant.
            if CredentialsRecords.mayComeAfter(id, self, rollback) { return rollback.recheck(id) }
        }
        supersede(id, by: version)
    }

    /// Another process has changed the record, or has probably done so.
    func supersede(_ id: RecordID, by version: Int64) {
        guard isEnabled, let share = Share(id.kind) else { return }
        let now = time.monotonic
        let wall = time.now
        state.withLock { state in
            let before = state[share].entries[id]
            if let before, before.known.version >= version { return }
            switch share {
            case .credentials:
                // What that process has stored is remembered by its version: if the store has an older one, it is waited for.
                state.set(
                    Entry(known: Known(id: id, version: version), content: .elsewhere, stored: wall, since: now), share)
                state.shrink(share, to: limits.span, at: now)
            case .sessions: state[share].supersede(id)
            case .logins, .settings, .biometricKeys: state.remove(id, share)
            }
        }
    }

    /// Another process has removed the record, and the store has not lost it. That this process has removed it is remembered.
    func forget(_ id: RecordID) {
        guard let share = Share(id.kind) else { return }
        state.withLock { state in
            if state[share].entries[id]?.known.isRemoved == false { state.remove(id, share) }
        }
    }

    /// The tenant was removed. That this process has removed it is remembered, and sessions that it has ended: the store may lose
    /// the tenant's removal.
    func forget(_ tenant: TenantName) {
        state.withLock { state in
            for share in Share.allCases where share != .sessions {
                for (id, entry) in state[share].entries.all where id.tenant == tenant {
                    if id.kind != .tenant || !entry.known.isRemoved { state.remove(id, share) }
                }
            }
        }
    }

    /// Drops what was committed before the span, in the journal as well.
    func expire() async {
        let now = time.monotonic
        let leaving = state.withLock { state in
            for share in Share.allCases { state.shrink(share, to: limits.span, at: now) }
            return Dictionary(uniqueKeysWithValues: state.leaving.all.map { ($0.key, $0.value) })
        }
        guard let journal, !leaving.isEmpty else { return }
        do throws(StoreError) {
            try await journal.remove(leaving)
            state.withLock { state in
                for (id, version) in leaving where state.leaving[id] == version { state.leaving[id] = nil }
            }
        } catch {
            // `Housekeeping` tries again.
            if error != .conflict { log.warning("journal_failed", [.store(error)]) }
        }
    }

    // MARK: Looking up

    /// What is known of records of these kinds, in the order in which they were committed.
    func known(_ kinds: [RecordKind]) -> [Known] {
        state.withLock { state in
            let shares = Share.allCases.filter { share in kinds.contains { Share($0) == share } }
            return shares.flatMap { state[$0].entries.all }.map(\.value.known).filter {
                kinds.contains($0.id.kind)
            }
        }
    }

    /// What is known of these records, in their order, without those of which nothing is known.
    func known(_ ids: [RecordID]) -> [Known] {
        state.withLock { state in
            ids.compactMap { id in Share(id.kind).flatMap { state[$0].entries[id]?.known } }
        }
    }

    /// What this process stored or removed; nil where it did neither, or where another process has written since.
    func commit(_ id: RecordID) throws(StoreError) -> RecentCommit? {
        guard let share = Share(id.kind) else { return nil }
        let (entry, own) = state.withLock { ($0[share].entries[id], $0.own) }
        guard let entry else { return nil }
        switch entry.content {
        case .stored(let record):
            guard let own else { return nil }
            return RecentCommit(storing: try own.open(record), replacing: entry.replaced, at: entry.stored)
        case .removed: return RecentCommit(removing: id, version: entry.known.version, at: entry.stored)
        case .elsewhere: return nil
        }
    }

    /// Whether nothing is known of any record.
    var isEmpty: Bool { state.withLock { state in state.tables.allSatisfy { $0.entries.count == 0 } } }
    /// Of how many credentials something is known.
    var countOfCredentials: Int { state.withLock { $0[.credentials].entries.count } }

    /// The newest version of these credentials that is known; 0 for none.
    func version(_ id: CredentialsID) -> Int64 { entry(id)?.known.version ?? 0 }

    /// Whether this process could store any credentials again.
    var hasCredentials: Bool {
        state.withLock { $0[.credentials].entries.all.contains { $0.value.hasContent } }
    }

    /// Whether this process could store these credentials again.
    func hasContent(_ id: CredentialsID) -> Bool { entry(id)?.hasContent ?? false }

    /// Whether that record was made by a login or a logout.
    func hasAct(_ id: CredentialsID) -> Bool { entry(id)?.isAct ?? false }

    private func entry(_ id: CredentialsID) -> Entry? {
        guard isEnabled else { return nil }
        let id = CredentialsRecords.recordID(id)
        return state.withLock { $0[.credentials].entries[id] }
    }
}

extension RecentCommits.Table {
    fileprivate mutating func supersede(_ id: RecordID) {
        guard var entry = entries[id], !entry.known.isRemoved else { return }
        entry.known.isSuperseded = true
        entries[id] = entry
    }
}

extension RecentCommits.State {
    /// The digests of the tokens that credentials have replaced, the latest ones last.
    /// - Parameter own: that of the credentials.
    fileprivate func lineage(
        of commit: RecentCommit, _ own: [UInt8]?, after before: RecentCommits.Entry?
    ) -> [[UInt8]] {
        let known = before.map { $0.hasContent ? $0.replaced + ($0.own.map { [$0] } ?? []) : [] } ?? []
        let told = replacing[RecentCommit.Place(id: commit.id, version: commit.version)] ?? []
        var digests: [[UInt8]] = []
        for digest in known + commit.replaced + told where digest != own {
            digests.removeAll { $0 == digest }
            digests.append(digest)
        }
        return digests.suffix(RecentCommits.replacedLimit)
    }

    /// The place in a version above that which the journal may have there: a record that is made anew may have a lower version
    /// than the one that was removed, and comes after it.
    fileprivate func newest(_ place: RecentCommit.Place, after before: RecentCommits.Entry?) -> RecentCommit.Place {
        let present = before?.place.flatMap { $0.id == place.id ? $0.version : nil } ?? leaving[place.id] ?? 0
        return RecentCommit.Place(id: place.id, version: max(place.version, present + 1))
    }

    fileprivate mutating func set(_ entry: RecentCommits.Entry, _ share: RecentCommits.Share) {
        var entry = entry
        let before = self[share].entries[entry.known.id]
        if case .elsewhere = entry.content {
            leave(before)
        } else if let new = entry.place {
            if let old = before?.place, old.id != new.id { leave(before) }
            leaving[new.id] = nil
        } else {
            entry.place = before?.place
        }
        self[share].bytes += entry.bytes - (before?.bytes ?? 0)
        if let removed = self[share].entries.setNewest(entry, forKey: entry.known.id) {
            self[share].bytes -= removed.value.bytes
            leave(removed.value)
        }
    }

    private mutating func leave(_ entry: RecentCommits.Entry?) {
        if let place = entry?.place { leaving[place.id] = place.version }
    }

    fileprivate mutating func remove(_ id: RecordID, _ share: RecentCommits.Share) {
        guard let entry = self[share].entries.removeValue(forKey: id) else { return }
        self[share].bytes -= entry.bytes
        leave(entry)
    }

    /// Drops the oldest entries, as far as span and memory ask for it.
    fileprivate mutating func shrink(_ share: RecentCommits.Share, to span: Duration, at now: MonotonicInstant) {
        while let oldest = self[share].entries.oldest,
            oldest.value.since.advanced(by: span) <= now || self[share].bytes > self[share].limit
        {
            remove(oldest.key, share)
        }
    }
}
