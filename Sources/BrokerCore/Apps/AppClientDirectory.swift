import CredentialStore
import Cryptography
package import ExternalText
import JSON
package import OAuth
import Reactor
import Waiting

/// The apps' registrations: read from a cache while its entry is valid, and written to store and cache.
///
/// Safe to use from any task.
package final class AppClientDirectory: Sendable {
    private let vault: Vault
    private let time: any Time
    private let bus: EventBus
    private let clients: CachedRecords<WireText, AppClient>
    private let records: CredentialsRecords

    init(records: CredentialsRecords) {
        self.records = records
        (vault, bus, time) = (records.vault, records.bus, records.time)
        let cache = RevalidatingCache<WireText, AppClient>(bytes: 8 << 20, validity: bus.cacheValidity) {
            clientID, client in
            2 * clientID.count + 2 * client.encoded.count
        } version: {
            $0.version
        }
        clients = CachedRecords(cache, vault: vault, time: time)
        bus.onChange(of: .client) { id, version in cache.invalidate(WireText(id.key), olderThan: version) }
        bus.onRemoval { tenant in cache.removeAll { _, client in client.tenant == tenant } }
    }

    /// The cache, for `CacheRevalidation`.
    var revalidatedCache: AnyRevalidatingCache {
        AnyRevalidatingCache(clients.cache) { _, client in client.recordID }
    }

    /// The client with this identifier, whatever its tenant; nil where there is none. Does not suspend while a valid entry is in
    /// the cache.
    package func client(_ clientID: WireText) async throws(BrokerError) -> AppClient? {
        guard AppClient.isID(clientID) else { return nil }
        if let client = clients.valid(clientID) { return client }
        do throws(StoreError) {
            return try await clients.current(clientID) { () async throws(StoreError) in
                try await self.vault.find(.client, lookup: AppClient.lookup(clientID.text)).map(AppClient.init)
            }
        } catch {
            // While the store does not answer, a known client is still accepted.
            if error == .unavailable, let known = clients.known(clientID) { return known }
            throw BrokerError(error)
        }
    }

    /// The client of that tenant.
    package func client(_ clientID: WireText, of tenant: TenantName) async throws(BrokerError) -> AppClient? {
        try await client(clientID).flatMap { $0.tenant == tenant ? $0 : nil }
    }

    /// Replaces the whole registration, but for a secret that the settings keep. Returns the client, and whether it is new.
    /// - Throws: `conflict` where another tenant has a client of that identifier, `not_found` where there is no such tenant.
    package func put(
        _ clientID: WireText, of tenant: TenantName, _ settings: AppClient.Settings
    ) async throws(BrokerError) -> (client: AppClient, isNew: Bool) {
        let id = AppClient.recordID(tenant, clientID.text)
        let tenantID = RecordID(.tenant, tenant)
        let (client, replaced) = try await clients.update(clientID, at: id, requiring: [tenantID]) {
            current async throws(StoreError) in
            if current == nil {
                let lookup = AppClient.lookup(clientID.text)
                if try await self.vault.find(.client, lookup: lookup) != nil { return .failure(Self.taken) }
                if try await self.vault.read(tenantID) == nil { return .failure(BrokerError.noSuchTenant) }
            }
            let earlier = try current.map { record throws(StoreError) in try AppClient(record) }
            return .success(
                AppClient(
                    tenant: tenant, clientID: clientID.text,
                    version: self.records.nextVersion(after: current?.version ?? 0),
                    created: earlier?.created ?? self.time.now, settings: settings.replacing(earlier?.settings)))
        }
        return (client, replaced == nil)
    }

    private static let taken = BrokerError(
        .conflict, "Another tenant has a client of this identifier: choose another identifier.")

    /// Removes the client. Its sessions and codes cannot be used from then on, and `SessionEndings` ends the sessions.
    /// - Returns: whether there was one.
    package func delete(_ clientID: WireText, of tenant: TenantName) async throws(BrokerError) -> Bool {
        let id = AppClient.recordID(tenant, clientID.text)
        defer { bus.announce(id, version: nil) }
        do throws(StoreError) {
            return try await retryingConflicts { () async throws(StoreError) in
                guard let record = try await self.vault.read(id) else { return false }
                let ending = PendingSessionEnding(
                    .ofClient(id.key), cause: .clientRemoved, before: self.time.now)
                try await self.vault.commit([
                    .remove(id, version: record.version),
                    ending.insertion(in: tenant, version: self.records.nextVersion(after: 0)),
                ])
                self.records.sessionEndings.signal(0)
                return true
            }
        } catch {
            throw BrokerError(error)
        }
    }

    /// Up to `limit` clients after `after`, in the order of their tenants and identifiers.
    /// - Parameter tenant: nil for the clients of all tenants.
    package func list(
        of tenant: TenantName?, after: AppClient? = nil, afterID: String? = nil, limit: Int
    ) async throws(BrokerError) -> [AppClient] {
        let place =
            after.map(\.recordID)
            ?? afterID.flatMap { key in tenant.map { AppClient.recordID($0, key) } }
        do throws(StoreError) {
            let records = try await vault.list(.client, tenant: tenant, after: place, limit: limit)
            let size = records.reduce(0) { $0 + $1.content.count }
            return try await InputReading.run(bytes: size) { () throws(StoreError) in
                var clients: [AppClient] = []
                for record in records { clients.append(try AppClient(record)) }
                return clients
            }
        } catch {
            throw BrokerError(error)
        }
    }
}
