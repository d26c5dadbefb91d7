import Containers
package import CredentialStore
import Cryptography
package import OAuth
package import Reactor
import Synchronization

/// A tenant as it was when it was read. Immutable. An object, so that passing it on counts one reference, and not one for each
/// part.
package final class Tenant: RecordValue, Equatable {
    package let name: TenantName
    package let version: Int64
    package let configuration: TenantConfiguration
    /// What the configuration means for `CredentialsPolicy`. Made once, since every read needs it.
    package let terms: CredentialsPolicy.Terms
    /// Hashes the identities of the tenant's credentials.
    let hashing: CredentialsID.Hashing

    package init(name: TenantName, version: Int64, configuration: TenantConfiguration) {
        self.name = name
        self.version = version
        self.configuration = configuration
        hashing = CredentialsID.Hashing(name)
        var terms = CredentialsPolicy.Terms(
            client: configuration.client.fingerprint,
            canObtainClientCredentials: configuration.obtainsClientCredentials,
            canUpgrade: configuration.preset.upgradeGrant != nil,
            canCreateAccounts: configuration.preset.accounts != nil,
            hasLowerLevels: configuration.preset.levels.contains(.basic),
            leadTime: configuration.effectiveRefreshLeadTime,
            renewsLate: configuration.effectiveAccessTokenAfterRefresh == .ends,
            providers: configuration.acceptedProviders)
        terms.earlierClients = configuration.earlierClients
        terms.refusesEarlyRefresh = configuration.refusesEarlyRefresh ?? configuration.preset.refusesEarlyRefresh
        self.terms = terms
    }

    var record: OpenRecord {
        OpenRecord(id: RecordID(.tenant, name), version: version, content: SecretBytes(configuration.encoded))
    }

    /// The memory of the object itself, in bytes.
    fileprivate static let memorySize = MemorySize.allocation(
        16 + MemoryLayout<(TenantName, Int64, TenantConfiguration, CredentialsPolicy.Terms)>.size)

    package static func == (left: Tenant, right: Tenant) -> Bool {
        left.name == right.name && left.version == right.version && left.configuration == right.configuration
    }
}

/// The tenants: read from a cache while its entry is valid, and written to store and cache.
package final class TenantDirectory: Sendable {
    private let vault: Vault
    private let time: any Time
    private let tenants: CachedRecords<TenantName, Tenant>
    private let versions = VersionSource()
    /// The tenants whose change the store has reported and that were not read since.
    private let changed = Mutex(BoundedTable<TenantName, Void>(capacity: mostChanged))
    private let onPut: @Sendable (Tenant) -> Void

    /// More tenants than are usually changed between two reads of them.
    private static let mostChanged = 4096

    /// - Parameter onPut: called when this replica has written a tenant's configuration, or has read one that another replica
    ///   has written. May be called more than once for one write. Must not suspend.
    package init(
        vault: Vault, bus: EventBus, time: any Time, onPut: @escaping @Sendable (Tenant) -> Void = { _ in }
    ) {
        self.vault = vault
        self.time = time
        self.onPut = onPut
        let cache = RevalidatingCache<TenantName, Tenant>(bytes: 32 << 20, validity: bus.cacheValidity) {
            name, tenant in
            // The configuration's values, and what is derived from them, take about twice the length of its encoded form.
            MemorySize.text(name.description) + Tenant.memorySize + 2 * tenant.configuration.encoded.count
        } version: {
            $0.version
        } hash: {
            CredentialsID.Hashing($0).tenantHash
        }
        tenants = CachedRecords(cache, vault: vault, time: time)
        bus.onChange(of: .tenant) { [self] id, version in
            // This replica's own writes are reported, too.
            if let version, tenants.known(id.tenant)?.version != version { noteChange(of: id.tenant) }
            cache.invalidate(id.tenant, olderThan: version)
        }
        bus.onRemoval { tenant in cache.remove(tenant) }
    }

    /// The cache, for `CacheRevalidation`.
    var revalidatedCache: AnyRevalidatingCache {
        AnyRevalidatingCache(tenants.cache, shownAs: "tenants") { name, _ in RecordID(.tenant, name) }
    }

    /// The tenant, or nil. Does not suspend while a valid entry is in the cache.
    package func tenant(_ name: TenantName) async throws(BrokerError) -> Tenant? {
        if let tenant = tenants.valid(name) { return tenant }
        do throws(StoreError) {
            return try await reread(name)
        } catch {
            // While the store does not answer, a known tenant is still accepted.
            if error == .unavailable, let known = tenants.known(name) { return known }
            throw BrokerError(error)
        }
    }

    /// The tenant of an API key, if the cache has a valid entry.
    package func inMemory(of key: CallerKey, now: MonotonicInstant) -> Tenant? {
        tenants.cache.holding(key.tenant, key.tenantHash, now: now)?.value
    }

    /// The tenant as it was last read, valid or not; nil where it is not cached.
    func inMemory(_ name: TenantName) -> Tenant? { tenants.known(name) }

    /// Whether the cache has a tenant of that name, valid or not.
    package func isKnown(_ name: TenantName) -> Bool { inMemory(name) != nil }

    /// The tenant, read from the store.
    package func currentTenant(_ name: TenantName) async throws(BrokerError) -> Tenant? {
        do throws(StoreError) {
            return try await reread(name)
        } catch {
            throw BrokerError(error)
        }
    }

    private func reread(_ name: TenantName) async throws(StoreError) -> Tenant? {
        let known = tenants.known(name)
        let isChanged = changed.withLock { $0.removeValue(forKey: name) != nil }
        let tenant: Tenant?
        do throws(StoreError) {
            tenant = try await tenants.current(name) { () async throws(StoreError) in
                try await self.vault.read(RecordID(.tenant, name)).map(self.decode)
            }
        } catch {
            if isChanged { noteChange(of: name) }
            throw error
        }
        if let tenant, isChanged || known.map({ $0.version < tenant.version }) ?? false { onPut(tenant) }
        return tenant
    }

    private func noteChange(of name: TenantName) {
        changed.withLock { _ = $0.setNewest((), forKey: name) }
    }

    /// A tenant that was written.
    package struct Written: Sendable {
        package let tenant: Tenant
        /// What was replaced; nil for a new tenant, and for a configuration that this build cannot read.
        package let previous: TenantConfiguration?
        package let isNew: Bool
    }

    /// How a tenant is written. An object, since it is passed through asynchronous calls.
    package final class Change: Sendable {
        /// Whether the tenant may be written that has this version now; nil where there is none.
        let isWanted: @Sendable (Int64?) -> Bool
        /// Makes the configuration from the one that it replaces; nil where there is none that this build can read.
        let make: @Sendable (TenantConfiguration?) -> Result<TenantConfiguration, BrokerError>

        package init(
            isWanted: @escaping @Sendable (Int64?) -> Bool = { _ in true },
            _ make: @escaping @Sendable (TenantConfiguration?) -> Result<TenantConfiguration, BrokerError>
        ) {
            self.isWanted = isWanted
            self.make = make
        }
    }

    /// Replaces the whole configuration.
    package func put(
        _ name: TenantName, _ configuration: TenantConfiguration
    ) async throws(BrokerError) -> Written {
        try await put(name, Change { _ in .success(configuration) })
    }

    /// Replaces the whole configuration by what the change makes of it; that may be asked more than once.
    /// - Throws: `precondition_failed` for a tenant that is not wanted, and the change's error.
    package func put(_ name: TenantName, _ change: Change) async throws(BrokerError) -> Written {
        var previous: TenantConfiguration?
        let (tenant, replaced) = try await tenants.update(name, at: RecordID(.tenant, name)) { current in
            guard change.isWanted(current?.version) else {
                return .failure(
                    BrokerError(
                        .preconditionFailed,
                        current == nil
                            ? "There is no tenant with this name."
                            : change.isWanted(nil) ? Self.present : Self.changed))
            }
            previous = current.flatMap { TenantConfiguration(decoding: $0.content.revealedBytes) }
            return change.make(previous).map { configuration in
                Tenant(
                    name: name, version: self.versions.next(after: current?.version ?? 0, at: self.time.now),
                    configuration: configuration)
            }
        }
        _ = changed.withLock { $0.removeValue(forKey: name) }
        onPut(tenant)
        return Written(tenant: tenant, previous: previous, isNew: replaced == nil)
    }

    private static let changed = "The tenant was changed meanwhile: read it again, and send its new ETag."
    private static let present = "There is a tenant with this name, which If-None-Match forbids."

    /// Removes the tenant with everything under it. Returns the version that its record had, also of one that cannot be opened; nil
    /// where there was none.
    /// - Parameter isWanted: whether the tenant may be removed that has this version now; nil for any.
    /// - Throws: `precondition_failed` for one that may not.
    package func delete(
        _ name: TenantName, isWanted: (@Sendable (Int64?) -> Bool)? = nil
    ) async throws(BrokerError) -> Int64? {
        let id = RecordID(.tenant, name)
        let removed: Result<Int64?, BrokerError>
        do throws(StoreError) {
            removed = try await tenants.remove(name) { () async throws(StoreError) in
                let version = try await self.vault.version(of: id)
                var changes: [VaultChange] = [.removeAll(name)]
                if let isWanted {
                    guard let version else { return .success(nil) }
                    if !isWanted(version) { return .failure(BrokerError(.preconditionFailed, Self.changed)) }
                    // A conflict where it is changed meanwhile.
                    changes.insert(.remove(id, version: version), at: 0)
                }
                try await self.vault.commit(changes)
                return .success(version)
            }
        } catch {
            throw BrokerError(error)
        }
        return try removed.get()
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

    private func decode(_ record: OpenRecord) throws(StoreError) -> Tenant {
        guard let configuration = TenantConfiguration(decoding: record.content.revealedBytes) else {
            throw .damaged("the configuration of tenant \(record.id.tenant) cannot be read by this version")
        }
        return Tenant(name: record.id.tenant, version: record.version, configuration: configuration)
    }
}
