import Cryptography
package import OAuth

/// A record store whose contents are sealed and opened with a keyring.
///
/// May be used from any task and by many tasks at once. A record that does not open is reported as
/// `StoreError.damaged`, with the record's identity in the text.
package final class Vault: Sendable {
    let store: any RecordStore
    private let current: CurrentKeyring
    let sealer: Sealer
    /// Writes entries for the changes that this vault commits; nil when changes are not audited.
    private let audit: Audit?
    /// Called with the changes of each commit that took place; nil for no call.
    private let committed: (@Sendable ([VaultChange]) async -> Void)?
    /// Told after each call of the store whether the store has answered; nil for no call.
    private let answered: Observer?

    /// Told what was asked of the store, and whether the store has answered. May be called from any task.
    package typealias Observer = @Sendable (_ access: StoreAccess, _ isAnswered: Bool) -> Void

    /// The audit of changes.
    private struct Audit: Sendable {
        let log: AuditLog
        /// What the log is to tell of the changes of a commit; nothing for changes of no interest.
        let entries: @Sendable ([VaultChange]) -> [AuditEntry]
    }

    /// The keys that it uses now; see `adopt`.
    package var keyring: Keyring { current.keyring }

    package init(store: any RecordStore, keyring: Keyring) {
        self.store = store
        current = CurrentKeyring(keyring)
        sealer = Sealer(current)
        audit = nil
        committed = nil
        answered = nil
    }

    /// The same vault, which tells `answered` after each call of the store whether the store has answered.
    package func observed(by answered: @escaping Observer) -> Vault {
        Vault(store: store, current, sealer: sealer, audit: audit, committed, answered)
    }

    /// The same vault, which tells of the changes of each of its commits once they took place. The commit returns after that.
    /// It does not tell of a commit that only turned out to have been carried out earlier: its records may have moved on.
    package func telling(_ committed: @escaping @Sendable ([VaultChange]) async -> Void) -> Vault {
        Vault(store: store, current, sealer: sealer, audit: audit, committed, answered)
    }

    /// The same vault, which writes an entry into the log for each change that `entries` tells of, in the commit of the
    /// change. A change whose entry cannot be written is not made.
    package func audited(
        by log: AuditLog, _ entries: @escaping @Sendable ([VaultChange]) -> [AuditEntry]
    ) -> Vault {
        Vault(store: store, current, sealer: sealer, audit: Audit(log: log, entries: entries), committed, answered)
    }

    /// A vault with a new key that only this process has, for what it keeps sealed in its memory: that opens for as long as the
    /// process runs, whichever master keys are retired meanwhile. What it would write into the store could be opened by no
    /// other process.
    /// - Throws: `unavailable` without randomness; a retry may help.
    package func withOwnKey() throws(StoreError) -> Vault {
        Vault(store: store, keyring: try sealing { () throws(CryptographyError) in try Keyring.ofProcess() })
    }

    /// A vault over the same store that uses other keys, and neither audits nor tells of its commits.
    func with(_ keyring: Keyring) -> Vault {
        let current = CurrentKeyring(keyring)
        return Vault(store: store, current, sealer: Sealer(current), audit: nil, nil, answered)
    }

    private init(
        store: any RecordStore, _ current: CurrentKeyring, sealer: Sealer, audit: Audit?,
        _ committed: (@Sendable ([VaultChange]) async -> Void)?, _ answered: Observer?
    ) {
        self.store = store
        self.current = current
        self.sealer = sealer
        self.audit = audit
        self.committed = committed
        self.answered = answered
    }

    /// Makes a call of the store, and tells the observer whether the store has answered. A call that failed while its task was
    /// cancelled tells nothing of the store.
    func asking<Answer>(
        _ access: StoreAccess, _ call: @autoclosure () async throws(StoreError) -> Answer
    ) async throws(StoreError) -> Answer {
        do throws(StoreError) {
            let answer = try await call()
            answered?(access, true)
            return answer
        } catch {
            if error != .unavailable {
                answered?(access, true)
            } else if !Task.isCancelled {
                answered?(access, false)
            }
            throw error
        }
    }

    /// Uses other keys from now on, and with this vault all those that were made of it. They must be keys that `unlock` takes;
    /// what is sealed meanwhile is sealed under the one or the other first key.
    func replaceKeys(_ keyring: Keyring) { sealer.replaceKeys(keyring) }

    /// See `RecordStore`.
    package var revalidateAfter: Duration? { store.revalidateAfter }

    /// The record, or nil.
    package func read(_ id: RecordID) async throws(StoreError) -> OpenRecord? {
        guard let stored = try await asking(.read, await store.read(id)) else { return nil }
        guard stored.id == id else { throw .damaged("the store gave another record for \(id.text)") }
        return try open(stored)
    }

    /// The record, and the versions of `others`, without opening these; see `RecordStore`.
    package func read(_ id: RecordID, with others: [RecordID]) async throws(StoreError) -> (
        record: OpenRecord, versions: [Int64?]
    )? {
        guard let (stored, versions) = try await asking(.read, await store.read(id, with: others)) else { return nil }
        guard stored.id == id, versions.count == others.count else {
            throw .damaged("the store gave another record for \(id.text)")
        }
        return (try open(stored), versions)
    }

    /// The record of the kind with this look-up digest, or nil.
    package func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> OpenRecord? {
        guard let stored = try await asking(.read, await store.find(kind, lookup: lookup)) else { return nil }
        guard stored.id.kind == kind, let found = stored.lookup, ConstantTime.equal(found, lookup) else {
            throw .damaged("the store gave a record with another look-up digest: \(stored.id.text)")
        }
        return try open(stored)
    }

    /// The versions of the records, in their order, without opening them; see `RecordStore`.
    package func versions(of ids: [RecordID]) async throws(StoreError) -> [Int64?] {
        let versions = try await asking(.read, await store.versions(of: ids))
        guard versions.count == ids.count else { throw .damaged("the store gave versions of other records") }
        return versions
    }

    /// Up to `limit` records in the order of their tenant and key, those after `after` (exclusive) only.
    /// - Parameter tenant: nil for the records of every tenant.
    package func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID? = nil, limit: Int
    ) async throws(StoreError) -> [OpenRecord] {
        var records: [OpenRecord] = []
        for stored in try await listSealed(kind, tenant: tenant, after: after, limit: limit) {
            records.append(try open(stored))
        }
        return records
    }

    /// Like `list`, without opening the records. A caller that opens them one by one, by `open`, can skip those that do
    /// not open.
    package func listSealed(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID? = nil, limit: Int
    ) async throws(StoreError) -> [StoredRecord] {
        try await asking(.read, await store.list(kind, tenant: tenant, after: after, limit: limit))
    }

    /// The record without opening it; nil when there is none.
    package func readSealed(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
        try await asking(.read, await store.read(id))
    }

    /// Makes all the changes, or none and throws `.conflict`. No two changes name the same record.
    ///
    /// After `.unavailable` it is unknown whether the changes were made. A caller that would ask again prepares the commit: a
    /// second call of this function is another commit.
    package func commit(_ changes: [VaultChange]) async throws(StoreError) {
        try await commit(prepare(changes))
    }

    /// Seals the changes for a commit that may be sent more than once, and makes the entries of the audit log for them. No two
    /// changes name the same record.
    /// - Throws: `unavailable` without randomness; a retry may help.
    package func prepare(_ changes: [VaultChange]) throws(StoreError) -> PreparedCommit {
        let sealed = try changes.map { change throws(StoreError) in
            try change.map { record throws(StoreError) in
                try seal(record)
            } entry: { entry throws(StoreError) in
                try seal(entry)
            }
        }
        return PreparedCommit(changes, sealed: sealed, telling: audit?.entries(changes) ?? [])
    }

    /// Makes all the changes of a commit, or none and throws `.conflict`.
    ///
    /// After `.unavailable` it is unknown whether they were made, and the caller may call this again with the same commit. The
    /// changes are made once: the second call returns when the store shows what the first one has written. It throws
    /// `.conflict` if a record is no longer what a change named and the store does not show that this commit changed it. For
    /// example, the commit replaced a record without appending an entry, and another writer has replaced that record since.
    /// Two things can be made twice, since nothing refuses them: entries alone, if the store carries a call out so late that the
    /// next one has already looked for its entry; and an insertion without an entry, if the record was removed meanwhile.
    ///
    /// Each try writes a block of its own into the audit log, in the commit of the changes. So the audit log tells of the
    /// changes exactly once, like the store.
    @discardableResult
    package func commit(_ commit: PreparedCommit) async throws(StoreError) -> PreparedCommit.Arrival {
        let wasSent = commit.noteSending()
        if wasSent, try await isCarriedOut(commit) { return .earlier }
        do throws(StoreError) {
            if let audit, !commit.entries.isEmpty {
                try await audit.log.commit(commit.sealed, commit.entries)
            } else {
                try await asking(.write, await store.commit(commit.sealed))
            }
        } catch {
            // An earlier try may have arrived while this one was on its way.
            guard error == .conflict, wasSent, try await isCarriedOut(commit) else { throw error }
            return .earlier
        }
        commit.noteCarriedOut()
        await committed?(commit.changes)
        return .now
    }

    /// Whether the store shows that it has carried out a commit that was sent. False also where that can be shown no more: see
    /// `commit`.
    package func isCarriedOut(_ commit: PreparedCommit) async throws(StoreError) -> Bool {
        if commit.wasCarriedOut { return true }
        guard try await asking(.read, await store.outcome(of: commit.sealed)) == .carriedOut else { return false }
        commit.noteCarriedOut()
        return true
    }

    /// Removes up to `limit` records that expire before `now`. Returns how many were removed.
    package func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        try await asking(.write, await store.removeExpired(before: now, limit: limit))
    }

    /// Up to `limit` records whose due mark is before `now`, the earliest first.
    ///
    /// A record that does not open is returned without its content. An error instead would stop the caller at the same
    /// record every time, before the records behind it.
    package func due(_ kind: RecordKind, before now: Timestamp, limit: Int) async throws(StoreError) -> [DueRecord] {
        try await asking(.read, await store.due(kind, before: now, limit: limit)).map { stored in
            let record: OpenRecord?
            do throws(StoreError) {
                record = try open(stored)
            } catch {
                record = nil
            }
            return DueRecord(id: stored.id, version: stored.version, mark: stored.due, record: record)
        }
    }

    /// Moves the due mark of a record, or removes it.
    /// - Parameters:
    ///   - mark: the mark that it must have; nil for any.
    ///   - next: the new mark; nil for none.
    /// - Returns: false where another replica was faster, or the record was replaced or removed.
    @discardableResult
    package func moveMark(
        of id: RecordID, _ version: Int64, from mark: Timestamp?, to next: Timestamp?
    ) async throws(StoreError) -> Bool {
        do throws(StoreError) {
            try await commit([.settleDue(id, version: version, due: mark, next: next)])
            return true
        } catch .conflict {
            return false
        }
    }

    /// Up to `limit` leases that a replica should take over, those first that expired first; see `RecordStore`.
    package func lapsed(_ kind: RecordKind, limit: Int) async throws(StoreError) -> [LapsedLease] {
        try await asking(.read, await store.lapsed(kind, limit: limit))
    }

    /// See `RecordStore`.
    package func clock() async throws(StoreError) -> Timestamp? { try await asking(.read, await store.clock()) }

    /// See `RecordStore`.
    package func watch(_ notify: @escaping @Sendable (StoreNotification) -> Void) { store.watch(notify) }

    /// See `RecordStore`.
    package func lineage() async throws(StoreError) -> StoreLineage? {
        try await asking(.read, await store.lineage())
    }

    package func resumeLog() async throws(StoreError) { try await asking(.read, await store.resumeLog()) }

    /// The earliest due mark of the kind; nil when no record has one.
    package func nextDue(_ kind: RecordKind) async throws(StoreError) -> Timestamp? {
        try await asking(.read, await store.nextDue(kind))
    }

    /// How many records of the tenant have a due mark after `now`; see `RecordStore`.
    package func countDue(
        _ kind: RecordKind, tenant: TenantName, after now: Timestamp, limit: Int
    ) async throws(StoreError) -> Int {
        try await asking(.read, await store.countDue(kind, tenant: tenant, after: now, limit: limit))
    }

    /// Up to `limit` entries of the log, in its order, those after `sequence` (exclusive) only; see `RecordStore`.
    ///
    /// An entry that does not open is returned without its content, so that the entries behind it can be read.
    /// - Parameter tenant: nil for the entries of all tenants.
    package func entries(
        after sequence: Int64, tenant: TenantName? = nil, limit: Int
    ) async throws(StoreError) -> [VaultLogEntry] {
        try await asking(.read, await store.entries(after: sequence, tenant: tenant, limit: limit)).map(open)
    }

    /// The next page of the log behind `sequence` for a reader of one tenant: the entries found, the last sequence that
    /// was read, and whether there may be more.
    ///
    /// A store with one writer has no index by tenant and runs one call at a time. To fill a page with entries of a
    /// quiet tenant it would read the whole log, while every commit waits. So it is asked for the entries of all
    /// tenants, a page at a time, and the entries of the others are dropped here.
    /// - Parameter tenant: nil for the entries of all tenants.
    package func page(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) async throws(StoreError) -> (entries: [VaultLogEntry], last: Int64, isFull: Bool) {
        let isIndexed = store.revalidateAfter != nil
        let page = try await asking(
            .read, await store.entries(after: sequence, tenant: isIndexed ? tenant : nil, limit: limit))
        let wanted = page.filter { placed in tenant.map { $0 == placed.entry.tenant } ?? true }
        return (wanted.map(open), page.last?.sequence ?? sequence, page.count == limit)
    }

    func open(_ placed: PlacedLogEntry) -> VaultLogEntry {
        if placed.entry.isMarker {
            return VaultLogEntry(sequence: placed.sequence, entry: placed.entry.with(content: SecretBytes([])))
        }
        let content: SecretBytes?
        do throws(SealError) {
            content = try sealer.open(placed.entry).content
        } catch {
            content = nil
        }
        return VaultLogEntry(sequence: placed.sequence, entry: placed.entry.with(content: content))
    }

    /// The bounds of the log; see `RecordStore`.
    package func logBounds() async throws(StoreError) -> LogBounds {
        try await asking(.read, await store.logBounds())
    }

    /// Removes up to `limit` entries of the log that are too old or too many; see `RecordStore`. Returns how many were
    /// removed.
    package func trimLog(before time: Timestamp, keeping count: Int, limit: Int) async throws(StoreError) -> Int {
        try await asking(.write, await store.trimLog(before: time, keeping: count, limit: limit))
    }

    /// Checks that the store can be reached and written to.
    package func check() async throws(StoreError) { try await asking(.write, await store.check()) }

    /// Closes the store. No other call may follow.
    package func close() async { await store.close() }

    package func seal(_ record: OpenRecord) throws(StoreError) -> StoredRecord {
        try sealing { () throws(CryptographyError) in try sealer.seal(record) }
    }

    func seal(_ entry: OpenLogEntry) throws(StoreError) -> StoredLogEntry {
        try sealing { () throws(CryptographyError) in try sealer.seal(entry) }
    }

    private func sealing<R>(_ body: () throws(CryptographyError) -> R) throws(StoreError) -> R {
        do throws(CryptographyError) {
            return try body()
        } catch {
            // No randomness, or content of 2 GiB. Nothing was written, and retrying later may help.
            throw .unavailable
        }
    }

    package func open(_ record: StoredRecord) throws(StoreError) -> OpenRecord {
        do {
            return try sealer.open(record)
        } catch {
            let reason =
                switch error {
                case .unknownFormat: "has a format that this version does not know"
                case .unknownKey(let identity): "is sealed under a key that is not configured (\(identity))"
                case .broken: "does not open: it was altered, moved or replaced by an earlier version"
                }
            throw .damaged("\(record.id.text) \(reason)")
        }
    }
}

extension Vault {
    /// The version of the record, or nil when there is none. The record is not opened, so that one which does not open
    /// any more can be replaced or removed.
    package func version(of id: RecordID) async throws(StoreError) -> Int64? {
        try await readSealed(id)?.version
    }
}
