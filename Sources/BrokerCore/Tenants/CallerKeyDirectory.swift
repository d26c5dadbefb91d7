package import CredentialStore
package import Cryptography
internal import ExternalText
internal import JSON
package import OAuth
package import Reactor

/// The API keys. Only digests are kept: a key is 256 random bits, so its plain SHA-256 gives nothing away.
package final class CallerKeyDirectory: Sendable {
    private let vault: Vault
    private let time: any Time
    private let cache: RevalidatingCache<SHA256.Words, CallerKey>
    private static let onlyVersion: Int64 = 1
    /// For how long a key is taken for valid after the store, or its change feed, was last known to have it, while the
    /// store cannot be asked. A key that was revoked meanwhile, on another replica, is good for no longer.
    package static let longestBelief: Duration = .seconds(30)
    private static let longestBeliefInNanoseconds = longestBelief.nanoseconds
    private let bus: EventBus

    package init(vault: Vault, bus: EventBus, time: any Time) {
        self.vault = vault
        self.time = time
        self.bus = bus
        cache = RevalidatingCache(bytes: 32 << 20, trust: bus.trust) { _, key in
            Footprint.text(key.id) + Footprint.text(key.tenant.description)
                + Footprint.text(key.name) + Footprint.bytes(key.permissions.count)
                + (key.storageKeys.map { Footprint.texts($0.map(\.description)) } ?? 0)
        } version: { _ in
            Self.onlyVersion
        } hash: {
            // Only digests of keys that this service has made are in the cache, and those are random.
            Int(truncatingIfNeeded: $0.first)
        }
        bus.onChange(of: .apiKey) { [cache] id, version in
            // A key is written once: news of it with its version is news of a key that nobody here has asked for yet.
            if version == Self.onlyVersion { return }
            cache.removeAll { _, key in key.tenant == id.tenant && key.id == id.key }
        }
        bus.onRemoval { [cache] tenant in cache.removeAll { _, key in key.tenant == tenant } }
    }

    /// The cache, with the records that its entries were read from: no two keys ever have the same identifier.
    package var renewable: RenewableCache {
        RenewableCache(cache) { _, key in RecordID(.apiKey, key.tenant, key: key.id) }
    }

    /// What is kept in memory.
    package var statistics: CacheStatistics { cache.statistics }

    /// The key with this digest, expired or not. Does not suspend while the cached one may be believed.
    package func key(digest: SHA256.Words) async throws(BrokerError) -> CallerKey? {
        if let key = inMemory(digest: digest, now: time.monotonic) { return key }
        let ticket = cache.ticket(digest, now: time.monotonic)
        do throws(StoreError) {
            // The digest is the index of a look-up, not a secret that is compared: how long the look-up takes says
            // nothing about a key whose digest cannot be steered.
            guard let record = try await vault.find(.apiKey, lookup: digest.bytes) else {
                cache.fill(digest, nil, ticket)
                return nil
            }
            let key = try decode(record)
            cache.fill(digest, key, ticket)
            return key
        } catch {
            // Looked at after the store has failed, which can take a while.
            if error == .unavailable,
                let known = cache.any(digest, within: Self.longestBelief, now: time.monotonic)
            {
                return known
            }
            throw BrokerError(error)
        }
    }

    /// Makes a key. The secret is in the result and nowhere else.
    package func create(
        tenant: TenantName, name: String, permissions: [Permission], storageKeys: [StorageKey]?,
        expiresIn: Duration?
    ) async throws(BrokerError) -> (key: CallerKey, secret: String) {
        let secret: String
        let id: String
        do {
            secret = "tb_" + Base64URL.encode(try SecureRandom.bytes(32))
            id = Hex.encode(try SecureRandom.bytes(12))
        } catch {
            throw BrokerError(.internalError, "The system's random source failed.")
        }
        let now = time.now
        let key = CallerKey(
            id: id, tenant: tenant, name: name, permissions: permissions, storageKeys: storageKeys, created: now,
            expires: expiresIn.map { now.advanced(by: $0) })
        let digest = SHA256.words(secret.utf8.span)
        let ticket = cache.ticket(digest, now: time.monotonic)
        do throws(StoreError) {
            try await vault.commit([
                .require(RecordID(.tenant, tenant)),
                .insert(
                    OpenRecord(
                        id: RecordID(.apiKey, tenant, key: id), version: Self.onlyVersion,
                        content: SecretBytes(encode(key)),
                        lookup: digest.bytes, expires: key.expires)),
            ])
        } catch .conflict {
            throw BrokerError(.notFound, "There is no tenant of that name.")
        } catch {
            throw BrokerError(error)
        }
        cache.put(digest, key, ticket)
        return (key, secret)
    }

    /// The key with this digest, expired or not, where the one in memory may be believed: for `longestBelief` at most after
    /// the store or its feed was last known to have it, however long other things are believed.
    package func inMemory(digest: SHA256.Words, now: MonotonicInstant) -> CallerKey? {
        guard let holding = cache.holding(digest, now: now) else { return nil }
        let vouched = bus.trust.lastVouched(for: holding.checked)
        return vouched.advanced(byNanoseconds: Self.longestBeliefInNanoseconds) > now ? holding.value : nil
    }

    package func list(tenant: TenantName, after: String?, limit: Int) async throws(BrokerError) -> [CallerKey] {
        do throws(StoreError) {
            let records = try await vault.list(
                .apiKey, tenant: tenant, after: after.map { RecordID(.apiKey, tenant, key: $0) }, limit: limit)
            let size = records.reduce(0) { $0 + $1.content.count }
            return try await InputReading.run(bytes: size) { () throws(StoreError) in
                var keys: [CallerKey] = []
                for record in records { keys.append(try self.decode(record)) }
                return keys
            }
        } catch {
            throw BrokerError(error)
        }
    }

    package func key(tenant: TenantName, id: String) async throws(BrokerError) -> CallerKey? {
        do throws(StoreError) {
            return try await vault.read(RecordID(.apiKey, tenant, key: id)).map(decode)
        } catch {
            throw BrokerError(error)
        }
    }

    /// Returns whether there was such a key.
    package func delete(tenant: TenantName, id: String) async throws(BrokerError) -> Bool {
        let recordID = RecordID(.apiKey, tenant, key: id)
        // Also where it was gone already or the deletion's answer was lost: from now on the store is asked, for event
        // streams that the key has opened as well.
        defer { bus.announce(recordID, version: nil) }
        do throws(StoreError) {
            return try await retryingConflicts { () async throws(StoreError) in
                guard let record = try await self.vault.read(recordID) else { return false }
                try await self.vault.commit([.remove(recordID, version: record.version)])
                return true
            }
        } catch {
            throw BrokerError(error)
        }
    }

    private func encode(_ key: CallerKey) -> [UInt8] {
        JSONWriter.object { json in
            json.member("name", key.name)
            json.member("permissions", key.permissions.map(\.rawValue))
            if let storageKeys = key.storageKeys { json.member("storage_keys", storageKeys.map(\.description)) }
            json.member("created", key.created.milliseconds)
            json.memberIfPresent("expires", key.expires?.milliseconds)
        }
    }

    private func decode(_ record: OpenRecord) throws(StoreError) -> CallerKey {
        guard let json = try? JSONValue(parsing: record.content.revealedBytes),
            let name = json["name"]?.string?.text,
            let permissions = json["permissions"]?.array?.compactMap({ $0.string.flatMap { Permission($0) } }),
            let created = json["created"]?.integer
        else { throw .damaged("API key \(record.id.key) of tenant \(record.id.tenant)") }
        return CallerKey(
            id: record.id.key, tenant: record.id.tenant, name: name, permissions: permissions,
            storageKeys: json["storage_keys"]?.array?.compactMap { $0.string.flatMap { StorageKey($0) } },
            created: Timestamp(milliseconds: created),
            expires: json["expires"]?.integer.map(Timestamp.init(milliseconds:)))
    }
}
