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

    /// Makes all the changes, or none and throws `.conflict`. No two changes name the same record.
    ///
    /// `.unavailable` leaves open whether the changes were made. They can be committed again: where they were made, the
    /// repetition is a conflict, and reading the records tells whose the winning change was.
    package func commit(_ changes: [VaultChange]) async throws(StoreError) {
        var sealed: [RecordChange] = []
        for change in changes {
            switch change {
            case .insert(let record): sealed.append(.insert(try seal(record)))
            case .replace(let record, let version): sealed.append(.replace(try seal(record), version: version))
            case .remove(let id, let version): sealed.append(.remove(id, version: version))
            case .require(let id): sealed.append(.require(id))
            case .removeAll(let tenant): sealed.append(.removeAll(tenant))
            }
        }
        try await store.commit(sealed)
    }

    /// Removes up to `limit` records whose expiry is before `now`. Returns how many went.
    package func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        try await store.removeExpired(before: now, limit: limit)
    }

    /// Shows that the store can be reached and written to.
    package func check() async throws(StoreError) { try await store.check() }

    /// Closes the store. No other call may follow.
    package func close() async { await store.close() }

    func seal(_ record: OpenRecord) throws(StoreError) -> StoredRecord {
        do {
            return try sealer.seal(record)
        } catch {
            // No randomness, or content that no store takes: nothing was written, and that is all the caller can use.
            throw .unavailable
        }
    }

    func open(_ record: StoredRecord) throws(StoreError) -> OpenRecord {
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
