internal import Containers
internal import CredentialStore
internal import OAuth

/// What was stored lately, in case the store loses the commits; see `GrantMemory`.
extension Journal {
    /// Writes the grant, in place of an older one of the same credentials. It is durable when this returns.
    func write(_ grant: RecentGrant) async throws(StoreError) { try await keep(grant.open) }

    /// Writes a record, in place of one with a lower version. It is durable when this returns.
    func keep(_ record: OpenRecord) async throws(StoreError) {
        try await retryingConflicts { () async throws(StoreError) in
            let present = try await self.vault.version(of: record.id)
            if let present, present >= record.version { return }
            try await self.vault.commit([present.map { .replace(record, version: $0) } ?? .insert(record)])
        }
    }

    /// Removes these grants, each if it still has that version.
    /// - Throws: `.conflict` where one of them was replaced just now.
    func remove(_ grants: [CredentialsID: Int64]) async throws(StoreError) {
        try await remove(grants.map { (id: RecentGrant.recordID($0.key), version: $0.value) })
    }

    /// Removes these records, each if it still has that version.
    /// - Throws: `.conflict` where one of them was replaced just now.
    func remove(_ records: [(id: RecordID, version: Int64)]) async throws(StoreError) {
        for batch in records.inBatches(of: Self.batch) {
            let versions = try await vault.versions(of: batch.map(\.id))
            let removals = zip(batch, versions).compactMap { record, version -> VaultChange? in
                version == record.version ? .remove(record.id, version: record.version) : nil
            }
            if !removals.isEmpty { try await vault.commit(removals) }
        }
    }

    private static var batch: Int { 200 }

    /// All grants. A record that this build cannot read is left where it is.
    func grants() async throws(StoreError) -> [RecentGrant] { try await kept(.granted) { RecentGrant($0) } }

    /// All records of a kind that `read` can read. The others are left where they are.
    func kept<Kept>(_ kind: RecordKind, _ read: (OpenRecord) -> Kept?) async throws(StoreError) -> [Kept] {
        let limit = 500
        var kept: [Kept] = []
        var last: RecordID?
        while true {
            let page = try await vault.list(kind, tenant: nil, after: last, limit: limit)
            kept += page.compactMap(read)
            if page.count < limit { return kept }
            last = page.last?.id
        }
    }
}
