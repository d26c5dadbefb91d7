internal import Cryptography
package import OAuth

/// A record store whose content can be read, by way of a keyring.
///
/// Has no state of its own: safe to use from any task and by many at once. A record that does not open is
/// `StoreError.damaged`, with the record's identity in the text.
package final class Vault: Sendable {
    let store: any RecordStore
    let keyring: Keyring
    let sealer: Sealer

    package init(store: any RecordStore, keyring: Keyring) {
        self.store = store
        self.keyring = keyring
        sealer = Sealer(keyring: keyring)
    }

    /// The same vault, with a store before its own.
    package func behind(_ make: (any RecordStore) -> any RecordStore) -> Vault {
        Vault(store: make(store), keyring: keyring, sealer: sealer)
    }

    private init(store: any RecordStore, keyring: Keyring, sealer: Sealer) {
        self.store = store
        self.keyring = keyring
        self.sealer = sealer
    }

    /// See `RecordStore`.
    package var revalidateAfter: Duration? { store.revalidateAfter }

    /// The record, or nil.
    package func read(_ id: RecordID) async throws(StoreError) -> OpenRecord? {
        guard let stored = try await store.read(id) else { return nil }
        guard stored.id == id else { throw .damaged("the store gave another record for \(id.text)") }
        return try open(stored)
    }

    /// The record of that kind with that look-up digest, or nil.
    package func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> OpenRecord? {
        guard let stored = try await store.find(kind, lookup: lookup) else { return nil }
        guard stored.id.kind == kind, let found = stored.lookup, ConstantTime.equal(found, lookup) else {
            throw .damaged("the store gave a record with another look-up digest: \(stored.id.text)")
        }
        return try open(stored)
    }

    /// The version of each of these records, in their order, nil for none, without opening them; see `RecordStore`.
    package func versions(of ids: [RecordID]) async throws(StoreError) -> [Int64?] {
        let versions = try await store.versions(of: ids)
        guard versions.count == ids.count else { throw .damaged("the store gave versions of other records") }
        return versions
    }

    /// Up to `limit` records in the order of their tenant and key, those after `after` (exclusive) only.
    /// - Parameter tenant: nil for the records of every tenant.
    package func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID? = nil, limit: Int
    ) async throws(StoreError) -> [OpenRecord] {
        var records: [OpenRecord] = []
        for stored in try await store.list(kind, tenant: tenant, after: after, limit: limit) {
            records.append(try open(stored))
        }
        return records
    }

    /// The same without opening them, for who can do without those that do not open; see `open`.
    package func listSealed(
        _ kind: RecordKind, tenant: TenantName, after: RecordID? = nil, limit: Int
    ) async throws(StoreError) -> [StoredRecord] {
        try await store.list(kind, tenant: tenant, after: after, limit: limit)
    }

    /// The record without opening it, or nil.
    package func readSealed(_ id: RecordID) async throws(StoreError) -> StoredRecord? { try await store.read(id) }

    /// Makes all the changes, or none and throws `.conflict`. No two changes name the same record.
    ///
    /// `.unavailable` leaves open whether the changes were made. They can be committed again: where they were made, the
    /// repetition is a conflict, and reading the records tells whose the winning change was. Entries alone are never in
    /// conflict: committed again, they may stand in the log twice.
    package func commit(_ changes: [VaultChange]) async throws(StoreError) {
        var sealed: [RecordChange] = []
        for change in changes {
            switch change {
            case .insert(let record): sealed.append(.insert(try seal(record)))
            case .replace(let record, let version, let holder):
                sealed.append(.replace(try seal(record), version: version, fencedFor: holder))
            case .remove(let id, let version): sealed.append(.remove(id, version: version))
            case .require(let id): sealed.append(.require(id))
            case .removeAll(let tenant): sealed.append(.removeAll(tenant))
            case .settleDue(let id, let version, let due, let next):
                sealed.append(.settleDue(id, version: version, due: due, next: next))
            case .claim(let id, let version, let claim): sealed.append(.claim(id, version: version, claim))
            case .release(let id, let version, let holder, let release):
                sealed.append(.release(id, version: version, holder: holder, release))
            case .append(let entry): sealed.append(.append(try seal(entry)))
            }
        }
        try await store.commit(sealed)
    }

    /// Removes up to `limit` records whose expiry is before `now`. Returns how many went.
    package func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        try await store.removeExpired(before: now, limit: limit)
    }

    /// Up to `limit` records whose due mark is before `now`, the earliest first.
    ///
    /// A record that does not open comes without its content, and the reading goes on: whoever works through what is due
    /// would meet it first every time, and never come to those behind it.
    package func due(_ kind: RecordKind, before now: Timestamp, limit: Int) async throws(StoreError) -> [DueRecord] {
        try await store.due(kind, before: now, limit: limit).map { stored in
            let record: OpenRecord?
            do throws(StoreError) {
                record = try open(stored)
            } catch {
                record = nil
            }
            return DueRecord(id: stored.id, version: stored.version, mark: stored.due, record: record)
        }
    }

    /// Up to `limit` records whose lease a replica is to see to, those first that ran out first; see `RecordStore`.
    package func lapsed(_ kind: RecordKind, limit: Int) async throws(StoreError) -> [LapsedLease] {
        try await store.lapsed(kind, limit: limit)
    }

    /// See `RecordStore`.
    package func clock() async throws(StoreError) -> Timestamp? { try await store.clock() }

    /// See `RecordStore`.
    package func watch(_ hear: @escaping @Sendable (StoreNews) -> Void) { store.watch(hear) }

    /// See `RecordStore`.
    package func lineage() async throws(StoreError) -> StoreLineage? { try await store.lineage() }

    /// The earliest due mark of the kind's records; nil when none has one.
    package func nextDue(_ kind: RecordKind) async throws(StoreError) -> Timestamp? {
        try await store.nextDue(kind)
    }

    /// How many records of the tenant have a due mark after `now`; see `RecordStore`.
    package func countDue(
        _ kind: RecordKind, tenant: TenantName, after now: Timestamp, limit: Int
    ) async throws(StoreError) -> Int {
        try await store.countDue(kind, tenant: tenant, after: now, limit: limit)
    }

    /// Up to `limit` entries of the log, in its order, those after `sequence` (exclusive) only; see `RecordStore`.
    ///
    /// An entry that does not open comes without its content, and the reading goes on: those behind it are as good as
    /// ever.
    /// - Parameter tenant: nil for the entries of every tenant.
    package func entries(
        after sequence: Int64, tenant: TenantName? = nil, limit: Int
    ) async throws(StoreError) -> [VaultLogEntry] {
        try await store.entries(after: sequence, tenant: tenant, limit: limit).map(open)
    }

    /// What of the log lies behind `sequence` for a reader of one tenant: the entries found, up to where was looked, and
    /// whether there may be more.
    ///
    /// A store with one writer does one call after the other and has no index of tenants: to find the entries of a quiet
    /// one it would look through all that the others have, while every commit waits. It is asked for everybody's, then,
    /// a page at a time, of which the others' are passed over.
    /// - Parameter tenant: nil for the entries of every tenant.
    package func page(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) async throws(StoreError) -> (entries: [VaultLogEntry], last: Int64, isFull: Bool) {
        let isIndexed = store.revalidateAfter != nil
        let page = try await store.entries(after: sequence, tenant: isIndexed ? tenant : nil, limit: limit)
        let wanted = page.filter { placed in tenant.map { $0 == placed.entry.tenant } ?? true }
        return (wanted.map(open), page.last?.sequence ?? sequence, page.count == limit)
    }

    private func open(_ placed: PlacedLogEntry) -> VaultLogEntry {
        let content: SecretBytes?
        do throws(SealError) {
            content = try sealer.open(placed.entry).content
        } catch {
            content = nil
        }
        return VaultLogEntry(
            sequence: placed.sequence, tenant: placed.entry.tenant, key: placed.entry.key,
            version: placed.entry.version, time: placed.entry.time, content: content)
    }

    /// How far the log reaches; see `RecordStore`.
    package func logBounds() async throws(StoreError) -> LogBounds { try await store.logBounds() }

    /// Removes up to `limit` entries from the old end of the log; see `RecordStore`. Returns how many went.
    package func trimLog(before time: Timestamp, keeping count: Int, limit: Int) async throws(StoreError) -> Int {
        try await store.trimLog(before: time, keeping: count, limit: limit)
    }

    /// Shows that the store can be reached and written to.
    package func check() async throws(StoreError) { try await store.check() }

    /// Closes the store. No other call may follow.
    package func close() async { await store.close() }

    package func seal(_ record: OpenRecord) throws(StoreError) -> StoredRecord {
        try sealing { () throws(CryptographyError) in try sealer.seal(record) }
    }

    private func seal(_ entry: OpenLogEntry) throws(StoreError) -> StoredLogEntry {
        try sealing { () throws(CryptographyError) in try sealer.seal(entry) }
    }

    private func sealing<R>(_ body: () throws(CryptographyError) -> R) throws(StoreError) -> R {
        do throws(CryptographyError) {
            return try body()
        } catch {
            // No randomness, or content that no store takes: nothing was written, and that is all the caller can use.
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
                case .broken: "does not open: it was altered, moved or put back"
                }
            throw .damaged("\(record.id.text) \(reason)")
        }
    }
}

extension RecordID {
    /// For an operator's eyes.
    var text: String {
        key.isEmpty ? "the \(kind.rawValue) record of \(tenant)" : "the \(kind.rawValue) record '\(key)' of \(tenant)"
    }
}

extension Vault {
    /// The version of the record, or nil where there is none: without opening it, so that one that does not open any
    /// more can still be replaced or removed.
    package func version(of id: RecordID) async throws(StoreError) -> Int64? {
        try await store.read(id)?.version
    }
}
