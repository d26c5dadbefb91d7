import Containers
import CredentialStore
package import OAuth

/// Keys of several tenants.
extension CallerKeyDirectory {
    /// For how many records the store is asked at once whether they are there.
    private static let batch = 5000

    /// A key of several tenants as it is used in that tenant; nil where it is not valid there. Does not suspend while a valid
    /// entry is in the cache.
    /// - Parameter key: as its secret, or its identity, was found.
    package func key(_ key: CallerKey, in tenant: TenantName) async throws(BrokerError) -> CallerKey? {
        guard let tenants = key.tenants, tenants.contains(tenant) else { return nil }
        let share = try await find(
            Place(digest: key.shareDigest(in: tenant), share: .apiKey(key.id, of: tenant)))
        guard let share, share.tenants != nil else { return nil }
        // An earlier secret ends before the key does.
        return key.secret.isEarlier ? share.with(key.secret, expires: key.expires, version: share.version) : share
    }

    /// Whether a key of several tenants is valid in any of them. Does not suspend where one of its shares is in the cache.
    package func hasTenants(_ key: CallerKey) async throws(BrokerError) -> Bool {
        let now = time.monotonic
        for tenant in key.tenants ?? [] where inMemory(digest: key.shareDigest(in: tenant), now: now) != nil {
            return true
        }
        do throws(StoreError) {
            return try await vault.versions(of: key.shareIDs).contains { $0 != nil }
        } catch {
            throw BrokerError(error)
        }
    }

    /// The keys as they are now: those of several tenants with the tenants in which they are valid. Of these keys, those are left
    /// out whose secrets are gone.
    func current(_ keys: [CallerKey]) async throws(StoreError) -> [CallerKey] {
        let ids = keys.filter { $0.tenants != nil }.flatMap { [.apiKey($0.id, of: .broker)] + $0.shareIDs }
        if ids.isEmpty { return keys }
        var present: [RecordID: Int64] = [:]
        for batch in ids.inBatches(of: Self.batch) {
            let batch = Array(batch)
            for case (let id, let version?) in zip(batch, try await vault.versions(of: batch)) { present[id] = version }
        }
        let secrets = present.filter { $0.key.tenant == .broker }.map { (id: $0.key, version: $0.value) }
        let putBack = try await tombstones.putBack(among: secrets)
        var current: [CallerKey] = []
        for key in keys {
            guard let tenants = key.tenants else {
                current.append(key)
                continue
            }
            let secret = RecordID.apiKey(key.id, of: .broker)
            let valid = tenants.filter { present[.apiKey(key.id, of: $0)] != nil }
            guard !valid.isEmpty, present[secret] != nil, !putBack.contains(secret) else { continue }
            current.append(key.with(tenants: valid))
        }
        return current
    }

    /// The shares of a key that exist, with their versions.
    func shares(of key: CallerKey) async throws(StoreError) -> [(tenant: TenantName, version: Int64)] {
        guard let tenants = key.tenants else { return [] }
        return zip(tenants, try await vault.versions(of: key.shareIDs)).compactMap { tenant, version in
            version.map { (tenant, $0) }
        }
    }

    /// Removes a key of several tenants all of whose tenants were removed: its identity can be that of another key then. No
    /// request reaches such a key, since each names one of its tenants.
    /// - Returns: whether there is no such key any more; false for a key that has a tenant.
    func removeAbandoned(_ key: CallerKey) async throws(StoreError) -> Bool {
        guard key.tenants != nil, try await shares(of: key).isEmpty else { return false }
        let ids = Array(key.recordsOfSeveralTenants.prefix(2))
        defer { bus.announce(ids[0], version: nil) }
        var removals: [VaultChange] = []
        for case (let id, let version?) in zip(ids, try await vault.versions(of: ids)) {
            removals.append(.remove(id, version: version))
        }
        if removals.isEmpty { return true }
        try await vault.commit(removals + tombstones.changes(ending: ids.map { ($0, .max) }))
        return true
    }
}
