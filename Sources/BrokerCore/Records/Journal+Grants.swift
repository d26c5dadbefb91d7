internal import Containers
internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import JSON
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

    private static var storeID: RecordID { RecordID(.lineage, .broker, key: "store") }

    /// Writes what the shared store looks like now, so that the next process notices where it has gone back.
    func remember(_ lineage: StoreLineage, at now: Timestamp) async throws(StoreError) {
        let content = JSONWriter.object { json in
            json.member("system", lineage.system)
            json.member("timeline", lineage.timeline)
            json.member("position", lineage.position)
            json.member("seen", now.milliseconds)
        }
        try await retryingConflicts { () async throws(StoreError) in
            let present = try await self.vault.version(of: Self.storeID)
            let record = OpenRecord(id: Self.storeID, version: (present ?? 0) + 1, content: SecretBytes(content))
            try await self.vault.commit([present.map { .replace(record, version: $0) } ?? .insert(record)])
        }
    }

    /// What an earlier process has seen of the shared store last; nil where none has written that.
    func rememberedStore() async throws(StoreError) -> (lineage: StoreLineage, at: Timestamp)? {
        guard let record = try await vault.read(Self.storeID),
            let json = try? JSONValue(parsing: record.content.revealedBytes), let system = json["system"]?.integer,
            let timeline = json["timeline"]?.integer, let position = json["position"]?.integer,
            let seen = json["seen"]?.integer
        else { return nil }
        return (
            StoreLineage(system: system, timeline: timeline, position: position), Timestamp(milliseconds: seen)
        )
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
