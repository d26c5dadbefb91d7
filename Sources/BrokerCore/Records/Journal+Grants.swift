internal import CredentialStore
internal import OAuth

/// What was stored of late, for a store that goes back; see `GrantMemory`.
extension Journal {
    /// Keeps it durably, in place of what was kept of the same credentials before.
    func keep(_ grant: KeptGrant) async throws(StoreError) {
        let id = KeptGrant.recordID(grant.id)
        try await retryingConflicts { () async throws(StoreError) in
            let standing = try await self.vault.version(of: id)
            if let standing, standing >= grant.version { return }
            try await self.vault.commit([standing.map { .replace(grant.open, version: $0) } ?? .insert(grant.open)])
        }
    }

    /// Lets go of these, where they have those versions still.
    /// - Throws: `.conflict` where one was replaced just now.
    func forget(_ grants: [CredentialsID: Int64]) async throws(StoreError) {
        var rest = grants.map { (id: KeptGrant.recordID($0.key), version: $0.value) }[...]
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

    /// Everything that is kept. An entry that this build cannot read is left where it is.
    func grants() async throws(StoreError) -> [KeptGrant] {
        let limit = 500
        var grants: [KeptGrant] = []
        var last: RecordID?
        while true {
            let page = try await vault.list(.granted, tenant: nil, after: last, limit: limit)
            grants += page.compactMap { KeptGrant($0) }
            if page.count < limit { return grants }
            last = page.last?.id
        }
    }
}
