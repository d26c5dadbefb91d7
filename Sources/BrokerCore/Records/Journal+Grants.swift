internal import CredentialStore
internal import OAuth

/// What was stored lately, in case the store loses the commits; see `GrantMemory`.
extension Journal {
    /// Writes the grant, in place of an older one of the same credentials. It is durable when this returns.
    func write(_ grant: RecentGrant) async throws(StoreError) {
        let id = RecentGrant.recordID(grant.id)
        try await retryingConflicts { () async throws(StoreError) in
            let present = try await self.vault.version(of: id)
            if let present, present >= grant.version { return }
            try await self.vault.commit([present.map { .replace(grant.open, version: $0) } ?? .insert(grant.open)])
        }
    }

    /// Removes these grants, each if it still has that version.
    /// - Throws: `.conflict` where one of them was replaced just now.
    func remove(_ grants: [CredentialsID: Int64]) async throws(StoreError) {
        var rest = grants.map { (id: RecentGrant.recordID($0.key), version: $0.value) }[...]
        while !rest.isEmpty {
            let batch = Array(rest.prefix(Self.batch))
            rest = rest.dropFirst(batch.count)
            let versions = try await vault.versions(of: batch.map(\.id))
            let removals = zip(batch, versions).compactMap { grant, version -> VaultChange? in
                version == grant.version ? .remove(grant.id, version: grant.version) : nil
            }
            if !removals.isEmpty { try await vault.commit(removals) }
        }
    }

    private static var batch: Int { 200 }

    /// All grants. A record that this build cannot read is left where it is.
    func grants() async throws(StoreError) -> [RecentGrant] {
        let limit = 500
        var grants: [RecentGrant] = []
        var last: RecordID?
        while true {
            let page = try await vault.list(.granted, tenant: nil, after: last, limit: limit)
            grants += page.compactMap { RecentGrant($0) }
            if page.count < limit { return grants }
            last = page.last?.id
        }
    }
}
