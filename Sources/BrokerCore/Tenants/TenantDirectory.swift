internal import Containers
package import CredentialStore
internal import Cryptography
package import OAuth
package import Reactor
internal import Synchronization

/// A tenant as it stood when it was read. Immutable; replaced whole. An object, so that whoever passes it on counts one
/// reference and not one for each of its parts.
package final class Tenant: Cacheable, Equatable {
    package let name: TenantName
    package let version: Int64
    package let configuration: TenantConfiguration
    /// What the configuration allows a query. Kept, because every read looks at it.
    package let terms: CredentialsPolicy.Terms
    /// The place of the configuration's preset in `ProviderPreset.all`.
    package let presetNumber: Int
    /// Hashes of the tenant's credentials.
    let hashing: CredentialsID.Hashing

    package init(name: TenantName, version: Int64, configuration: TenantConfiguration) {
        self.name = name
        self.version = version
        self.configuration = configuration
        hashing = CredentialsID.Hashing(name)
        presetNumber = ProviderPreset.all.firstIndex { $0.name == configuration.preset.name } ?? 0
        terms = CredentialsPolicy.Terms(
            client: configuration.client.fingerprint,
            canObtainClientCredentials: configuration.obtainsClientCredentials,
            canUpgrade: configuration.preset.upgradeGrant != nil, leadTime: configuration.effectiveRefreshLeadTime,
            providers: configuration.acceptedProviders)
    }

    /// What the object takes of memory without what its fields refer to.
    fileprivate static let footprint = Footprint.allocation(
        16 + MemoryLayout<(TenantName, Int64, TenantConfiguration, CredentialsPolicy.Terms)>.size)

    package static func == (left: Tenant, right: Tenant) -> Bool {
        left.name == right.name && left.version == right.version && left.configuration == right.configuration
    }
}

/// The tenants: written through to the store, read from memory while that may be believed.
package final class TenantDirectory: Sendable {
    private let vault: Vault
    private let time: any Time
    private let cache: RevalidatingCache<TenantName, Tenant>
    private let versions = VersionSource()
    /// The tenants that the store told a change of, and that were not read since.
    private let changed = Mutex(BoundedTable<TenantName, Void>(capacity: mostChanged))
    private let onPut: @Sendable (Tenant) -> Void

    /// Far more tenants than are changed between two reads of them.
    private static let mostChanged = 4096

    /// - Parameter onPut: called when a tenant was put, by this replica or, once it is read again, by another one. It may
    ///   be called more than once for one put, and does not suspend.
    package init(
        vault: Vault, bus: EventBus, time: any Time, onPut: @escaping @Sendable (Tenant) -> Void = { _ in }
    ) {
        self.vault = vault
        self.time = time
        self.onPut = onPut
        cache = RevalidatingCache(bytes: 32 << 20, trust: bus.trust) { name, tenant in
            // An object; a configuration's values and what was made of them, by the length of the text that they are
            // written in.
            Footprint.text(name.description) + Tenant.footprint + 2 * tenant.configuration.encoded.count
        } version: {
            $0.version
        } hash: {
            CredentialsID.Hashing($0).tenantHash
        }
        bus.onChange(of: .tenant) { [self] id, version in
            // What this replica has written itself is told of, too.
            if let version, cache.any(id.tenant)?.version != version { noteChange(of: id.tenant) }
            cache.hear(id.tenant, version: version)
        }
        bus.onRemoval { [cache] tenant in cache.remove(tenant) }
    }

    /// The cache, with the records that its entries were read from.
    var renewable: RenewableCache { RenewableCache(cache) { name, _ in RecordID(.tenant, name) } }

    /// What is kept in memory.
    package var statistics: CacheStatistics { cache.statistics }

    /// The tenant, or nil. Does not suspend while the cached one may be believed.
    package func tenant(_ name: TenantName) async throws(BrokerError) -> Tenant? {
        if let tenant = cache.fresh(name, now: time.monotonic) { return tenant }
        do throws(StoreError) {
            return try await reread(name)
        } catch {
            // A store that is away makes nobody a stranger.
            if error == .unavailable, let known = cache.any(name) { return known }
            throw BrokerError(error)
        }
    }

    /// The tenant of an API key, where the one in memory may be believed.
    package func inMemory(of key: CallerKey, now: MonotonicInstant) -> Tenant? {
        cache.holding(key.tenant, key.tenantHash, now: now)?.value
    }

    /// The tenant as it was read last, however long ago; nil where that is forgotten.
    func inMemory(_ name: TenantName) -> Tenant? { cache.any(name) }

    /// Whether a tenant of that name was read, however long ago.
    package func isKnown(_ name: TenantName) -> Bool { inMemory(name) != nil }

    /// The tenant as it stands in the store, whatever is in memory.
    package func currentTenant(_ name: TenantName) async throws(BrokerError) -> Tenant? {
        do throws(StoreError) {
            return try await reread(name)
        } catch {
            throw BrokerError(error)
        }
    }

    private func reread(_ name: TenantName) async throws(StoreError) -> Tenant? {
        let ticket = cache.ticket(name, now: time.monotonic)
        let known = cache.any(name)
        let isChanged = changed.withLock { $0.removeValue(forKey: name) != nil }
        let tenant: Tenant?
        do throws(StoreError) {
            tenant = try await read(name)
        } catch {
            if isChanged { noteChange(of: name) }
            throw error
        }
        cache.fill(name, tenant, ticket)
        if let tenant, isChanged || known.map({ $0.version < tenant.version }) ?? false { onPut(tenant) }
        return tenant
    }

    private func noteChange(of name: TenantName) {
        changed.withLock { _ = $0.setNewest((), forKey: name) }
    }

    /// Writes the configuration whole. Returns the tenant and whether it is new.
    package func put(
        _ name: TenantName, _ configuration: TenantConfiguration
    ) async throws(BrokerError) -> (tenant: Tenant, isNew: Bool) {
        do throws(StoreError) {
            return try await retryingConflicts { () async throws(StoreError) in
                let current = try await self.vault.read(RecordID(.tenant, name))
                let version =
                    current.map { self.versions.next(after: $0.version, at: self.time.now) }
                    ?? self.versions.first(at: self.time.now)
                let record = OpenRecord(
                    id: RecordID(.tenant, name), version: version, content: SecretBytes(configuration.encoded))
                let ticket = self.cache.ticket(name, now: self.time.monotonic)
                if let current {
                    try await self.vault.commit([.replace(record, version: current.version)])
                } else {
                    try await self.vault.commit([.insert(record)])
                }
                let tenant = Tenant(name: name, version: version, configuration: configuration)
                self.cache.put(name, tenant, ticket)
                _ = self.changed.withLock { $0.removeValue(forKey: name) }
                self.onPut(tenant)
                return (tenant, current == nil)
            }
        } catch {
            // The configuration may have arrived all the same.
            cache.remove(name)
            throw BrokerError(error)
        }
    }

    /// Removes the tenant with everything under it. Returns whether there was one.
    package func delete(_ name: TenantName) async throws(BrokerError) -> Bool {
        // Where the deletion's answer is lost, the tenant may be gone all the same.
        defer { cache.remove(name) }
        do throws(StoreError) {
            let existed = try await exists(name)
            try await vault.commit([.removeAll(name)])
            return existed
        } catch {
            throw BrokerError(error)
        }
    }

    /// A record that does not open exists all the same: deleting it is the way out.
    private func exists(_ name: TenantName) async throws(StoreError) -> Bool {
        do throws(StoreError) {
            return try await vault.read(RecordID(.tenant, name)) != nil
        } catch {
            if case .damaged = error { return true }
            throw error
        }
    }

    /// Up to `limit` tenants after `after`, in the order of their names.
    package func list(after: TenantName?, limit: Int) async throws(BrokerError) -> [Tenant] {
        do throws(StoreError) {
            let records = try await vault.list(
                .tenant, tenant: nil, after: after.map { RecordID(.tenant, $0) }, limit: limit)
            let size = records.reduce(0) { $0 + $1.content.count }
            return try await InputReading.run(bytes: size) { () throws(StoreError) in
                var tenants: [Tenant] = []
                for record in records { tenants.append(try self.decode(record)) }
                return tenants
            }
        } catch {
            throw BrokerError(error)
        }
    }

    private func read(_ name: TenantName) async throws(StoreError) -> Tenant? {
        guard let record = try await vault.read(RecordID(.tenant, name)) else { return nil }
        return try decode(record)
    }

    private func decode(_ record: OpenRecord) throws(StoreError) -> Tenant {
        guard let configuration = TenantConfiguration(decoding: record.content.revealedBytes) else {
            throw .damaged("the configuration of tenant \(record.id.tenant) cannot be read by this version")
        }
        return Tenant(name: record.id.tenant, version: record.version, configuration: configuration)
    }
}

/// Runs `body` again while another writer was faster. Each run must read before it writes; the first may go by what is known
/// already, where a write of anything else is a conflict.
///
/// One of any number of writers succeeds in each round, so 32 rounds are lost only by a record under siege.
package func retryingConflicts<R>(
    _ body: () async throws(StoreError) -> R
) async throws(StoreError) -> R {
    for _ in 1..<32 {
        do throws(StoreError) {
            return try await body()
        } catch .conflict {
            continue
        }
    }
    return try await body()
}
