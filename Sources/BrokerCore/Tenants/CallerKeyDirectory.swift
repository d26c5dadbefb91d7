package import CredentialStore
package import Cryptography
import ExternalText
import JSON
package import OAuth
package import Reactor

/// The API keys. Only digests of their secrets are stored: a secret is 256 random bits, so its plain SHA-256 reveals nothing.
/// A key with an identity in place of a secret is found by the digest of that.
package final class CallerKeyDirectory: Sendable {
    let vault: Vault
    let time: any Time
    private let keys: CachedRecords<SHA256.Words, CallerKey>
    private let versions = VersionSource()
    /// For how long a cached key is accepted after the store, or its change feed, last confirmed it. So a key that was revoked
    /// at another replica is accepted no longer than this while the store does not answer.
    package static let longestLifetime: Duration = .seconds(30)
    private static let longestLifetimeInNanoseconds = longestLifetime.nanoseconds
    let bus: EventBus
    let tombstones: Tombstones

    package init(vault: Vault, tombstones: Tombstones, bus: EventBus, time: any Time) {
        self.vault = vault
        self.tombstones = tombstones
        self.time = time
        self.bus = bus
        let cache = RevalidatingCache<SHA256.Words, CallerKey>(bytes: 32 << 20, validity: bus.cacheValidity) { _, key in
            MemorySize.text(key.id) + MemorySize.text(key.tenant.description)
                + MemorySize.text(key.name) + MemorySize.bytes(key.permissions.count)
                + (key.identity.map { MemorySize.text($0.description) } ?? 0)
                + (key.storageKeys.map { MemorySize.texts($0.patterns.map(\.description)) } ?? 0)
                + (key.tenants.map { MemorySize.texts($0.map(\.description)) } ?? 0)
        } version: { key in
            key.version
        } hash: {
            // Only digests of keys that this service has made are in the cache: those of secrets are random, and operators choose
            // the identities, and the tenants of shares.
            Int(truncatingIfNeeded: $0.first)
        }
        keys = CachedRecords(cache, vault: vault, time: time)
        bus.onChange(of: .apiKey) { id, version in
            // A new key is in no cache yet.
            if version == EventBus.newKeyVersion { return }
            // A rotation changes what each secret of the key opens. What was read after it stays.
            cache.removeAll { _, key in
                key.tenant == id.tenant && WireText(key.id) == WireText(id.apiKeyID)
                    && version.map { key.version < $0 } ?? true
            }
        }
        bus.onRemoval { tenant in cache.removeAll { _, key in key.tenant == tenant } }
    }

    /// The cache, for `CacheRevalidation`. No two keys ever have the same identifier.
    package var revalidatedCache: AnyRevalidatingCache {
        AnyRevalidatingCache(keys.cache, shownAs: "api_keys") { _, key in key.secretRecordID }
    }

    /// The key with this digest, expired or not. Does not suspend while a valid entry is in the cache.
    package func key(digest: SHA256.Words) async throws(BrokerError) -> CallerKey? {
        try await find(Place(digest: digest, share: nil))
    }

    /// Where the record of a key is found.
    struct Place {
        /// By which the cache has the key, and the store its secret.
        let digest: SHA256.Words
        /// The record in one of the tenants of a key of several; nil for that of a secret, or of an identity.
        let share: RecordID?
    }

    /// What the cache has at a place, else what the store has.
    func find(_ place: Place) async throws(BrokerError) -> CallerKey? {
        let digest = place.digest
        if let key = inMemory(digest: digest, now: time.monotonic) { return key }
        do throws(StoreError) {
            return try await keys.current(digest) { () async throws(StoreError) in
                guard let record = try await self.read(place), try await !self.tombstones.isPutBack(record) else {
                    return nil
                }
                return try CallerKey(record)
            }
        } catch {
            // By the present time, since the store may have taken a while to fail.
            if error == .unavailable,
                let known = keys.cache.any(digest, within: Self.longestLifetime, now: time.monotonic)
            {
                return known
            }
            throw BrokerError(error)
        }
    }

    private func read(_ place: Place) async throws(StoreError) -> OpenRecord? {
        if let share = place.share { return try await vault.read(share) }
        // The digest is a key of an index, not a secret that is compared. A caller cannot choose a digest, so the time of the
        // look-up reveals nothing.
        return try await vault.find(.apiKey, lookup: place.digest.bytes)
    }

    /// Makes a key, with its records in all of its tenants by one commit. The result is the only place that has its secret.
    /// - Throws: `not_found` where one of the tenants does not exist, `conflict` where another key has the identity.
    package func create(_ draft: CallerKey.Draft) async throws(BrokerError) -> (key: CallerKey, secret: String?) {
        let secret = draft.identity == nil ? try Self.newSecret() : nil
        let key = CallerKey(draft, id: Hex.encode(try Self.random(12)), at: time.now)
        let digest = draft.identity?.digest ?? SHA256.words((secret ?? "").utf8.span)
        let changes =
            draft.tenants.map { VaultChange.require(RecordID(.tenant, $0)) }
            + [.insert(key.record(lookup: digest.bytes))]
            + (key.tenants ?? []).map { .insert(key.share(of: $0).record(lookup: nil)) }
        do throws(StoreError) {
            if draft.identity != nil, let other = try await vault.find(.apiKey, lookup: digest.bytes) {
                _ = try await removeAbandoned(try CallerKey(other))
            }
            let note = try await note(of: draft.identity)
            try await keys.write(digest, key) { () async throws(StoreError) in
                try await self.vault.commit(changes + note)
            }
        } catch .conflict {
            if draft.identity != nil, let other = try await self.key(digest: digest) { throw Self.taken(by: other) }
            throw BrokerError(
                .notFound,
                draft.tenants.count > 1 ? "One of the tenants does not exist." : "There is no tenant of that name.")
        } catch {
            throw BrokerError(error)
        }
        return (key, secret)
    }

    /// Gives a key another secret, by one commit. Of the secrets before, one at most is accepted for a while, with the same
    /// permissions: see `CallerKey.Rotation`. A key of several tenants gets it for all of them.
    /// - Throws: `not_found` for an unknown key, `conflict` for one that has expired or has no secret that the rotation names.
    package func rotate(
        tenant: TenantName, id: String, _ rotation: CallerKey.Rotation
    ) async throws(BrokerError) -> (key: CallerKey, secret: String) {
        let secret = try Self.newSecret()
        let digest = SHA256.words(secret.utf8.span)
        var changed = [RecordID.apiKey(id, of: tenant)]
        let outcome: Result<CallerKey, BrokerError>
        do throws(StoreError) {
            outcome = try await retryingConflicts { () async throws(StoreError) in
                guard let record = try await self.newestSecret(ofKey: id, of: tenant) else {
                    return .failure(Self.noSuchKey)
                }
                let key = try CallerKey(record)
                let earlier = try await self.vault.read(.earlierSecret(ofAPIKey: id, of: key.tenant))
                var usable = earlier
                if let earlier, try await self.tombstones.isPutBack(earlier) { usable = nil }
                let shares = try await self.shares(of: key)
                changed = [record.id] + shares.map { .apiKey(id, of: $0.tenant) }
                let now = self.time.now
                let latest = max(record.version, earlier?.version ?? 0, shares.map(\.version).max() ?? 0)
                let version = self.versions.next(after: latest, at: now)
                switch rotation.applied(to: key, try usable.map(CallerKey.init), version: version, at: now) {
                case .failure(let error): return .failure(error)
                case .success(let rotated):
                    let replaced = [record, earlier].compactMap(\.self).map { ($0.id, $0.version) }
                    let changes =
                        rotated.changes(digest: digest.bytes, record, earlier)
                        + shares.map {
                            .replace(rotated.newest.share(of: $0.tenant).record(lookup: nil), version: $0.version)
                        }
                    try await self.keys.write(digest, rotated.newest) { () async throws(StoreError) in
                        try await self.vault.commit(changes + self.tombstones.changes(ending: replaced))
                    }
                    return .success(rotated.newest)
                }
            }
        } catch {
            // The store may have carried out the rotation although its answer was lost.
            for id in changed { bus.announce(id, version: nil) }
            throw BrokerError(error)
        }
        let key = try outcome.get()
        for id in changed { bus.announce(id, version: key.version) }
        let valid = Set(changed.map(\.tenant))
        return (key.tenants.map { key.with(tenants: $0.filter(valid.contains)) } ?? key, secret)
    }

    /// The record of the newest secret of a key that the tenant has.
    private func newestSecret(ofKey id: String, of tenant: TenantName) async throws(StoreError) -> OpenRecord? {
        guard let record = try await vault.read(.apiKey(id, of: tenant)), try await !tombstones.isPutBack(record)
        else { return nil }
        if try CallerKey(record).tenants == nil { return record }
        guard let record = try await vault.read(.apiKey(id, of: .broker)), try await !tombstones.isPutBack(record)
        else { return nil }
        return record
    }

    // MARK: Identities

    /// The change that notes that a key has an identity; none where that is noted. The note stays when the key is deleted, since
    /// a certificate with that name is not to stand for another name's key then.
    private func note(of identity: CallerIdentity?) async throws(StoreError) -> [VaultChange] {
        guard let identity else { return [] }
        let id = Self.noteID(identity.digest)
        if try await vault.version(of: id) != nil { return [] }
        return [.insert(OpenRecord(id: id, version: 1, content: SecretBytes([])))]
    }

    private static func noteID(_ digest: SHA256.Words) -> RecordID {
        RecordID(.callerIdentity, .broker, key: Base64URL.encode(digest.bytes))
    }

    /// Whether one of these identities is or was that of an API key.
    package func areKnown(_ identities: [SHA256.Words]) async throws(BrokerError) -> Bool {
        if identities.isEmpty { return false }
        do throws(StoreError) {
            return try await vault.versions(of: identities.map(Self.noteID)).contains { $0 != nil }
        } catch {
            throw BrokerError(error)
        }
    }

    private static func taken(by key: CallerKey) -> BrokerError {
        let owners =
            key.tenants.map { "tenants " + $0.map(\.description).joined(separator: ", ") } ?? "tenant \(key.tenant)"
        return BrokerError(
            .conflict,
            "The API key \(key.id) of the \(owners) has this identity, which can be that of one key only. Delete that key first."
        )
    }

    package static let noSuchKey = BrokerError(.notFound, "The tenant has no API key with this id.")

    private static func newSecret() throws(BrokerError) -> String { "tb_" + Base64URL.encode(try random(32)) }

    private static func random(_ count: Int) throws(BrokerError) -> [UInt8] {
        do {
            return try SecureRandom.bytes(count)
        } catch {
            throw BrokerError(.internalError, "The system's random source failed.")
        }
    }

    /// The key with this digest, expired or not, if the cache has a valid entry. Keys are valid for `longestLifetime` at most
    /// after the store or its feed last confirmed them, even where other entries are valid for longer.
    package func inMemory(digest: SHA256.Words, now: MonotonicInstant) -> CallerKey? {
        guard let holding = keys.cache.holding(digest, now: now) else { return nil }
        let confirmed = bus.cacheValidity.lastConfirmed(ofEntryChecked: holding.checked)
        return confirmed.advanced(byNanoseconds: Self.longestLifetimeInNanoseconds) > now ? holding.value : nil
    }

    /// Up to `limit` keys after `after`, in the order of their identifiers.
    package func list(tenant: TenantName, after: String?, limit: Int) async throws(BrokerError) -> [CallerKey] {
        do throws(StoreError) {
            var found: [CallerKey] = []
            var last = after.map { RecordID.apiKey($0, of: tenant) }
            while found.count < limit {
                let wanted = limit - found.count
                let records = try await vault.list(.apiKey, tenant: tenant, after: last, limit: wanted)
                let size = records.reduce(0) { $0 + $1.content.count }
                let newest = records.filter { !$0.id.isOfEarlierSecret }
                let putBack = try await tombstones.putBack(among: newest.map { ($0.id, $0.version) })
                let current = newest.filter { !putBack.contains($0.id) }
                found += try await self.current(
                    try await InputReading.run(bytes: size) { () throws(StoreError) in
                        try current.map { record throws(StoreError) in try CallerKey(record) }
                    })
                if records.count < wanted { break }
                last = records.last?.id
            }
            return found
        } catch {
            throw BrokerError(error)
        }
    }

    package func key(tenant: TenantName, id: String) async throws(BrokerError) -> CallerKey? {
        do throws(StoreError) {
            guard let record = try await vault.read(.apiKey(id, of: tenant)), try await !tombstones.isPutBack(record)
            else { return nil }
            return try await current([CallerKey(record)]).first
        } catch {
            throw BrokerError(error)
        }
    }

    /// Deletes a key, one of several tenants for all of them. Returns whether there was such a key.
    package func delete(tenant: TenantName, id: String) async throws(BrokerError) -> Bool {
        var ids = [RecordID.apiKey(id, of: tenant), .earlierSecret(ofAPIKey: id, of: tenant)]
        // Also if the key did not exist or the store's answer was lost: from now on the store is asked about the key, for event
        // streams that were opened with it as well.
        defer { for id in ids where !id.isOfEarlierSecret { bus.announce(id, version: nil) } }
        do throws(StoreError) {
            return try await retryingConflicts { () async throws(StoreError) in
                let key = try await self.vault.read(.apiKey(id, of: tenant)).flatMap { try? CallerKey($0) }
                if let key, key.tenants != nil { ids = key.recordsOfSeveralTenants }
                var changes: [VaultChange] = []
                // Of a key whose own record was damaged and is gone, the earlier secret may be left.
                for case (let id, let version?) in zip(ids, try await self.vault.versions(of: ids)) {
                    changes.append(.remove(id, version: version))
                }
                if changes.isEmpty { return false }
                // A build that did not note identities may have made the key.
                changes += try await self.note(of: key?.identity)
                // No key gets the identifier of an earlier one. Without its secrets, a share opens nothing.
                let ended = ids.prefix(2).map { (id: $0, version: Int64.max) }
                try await self.vault.commit(changes + self.tombstones.changes(ending: ended))
                return true
            }
        } catch {
            throw BrokerError(error)
        }
    }
}

extension CallerKey {
    /// The sealed content of the record, as JSON.
    package var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("name", name)
            json.memberIfPresent("identity", identity?.description)
            json.member("permissions", permissions.map(\.rawValue))
            if let storageKeys { json.member("storage_keys", storageKeys.patterns.map(\.description)) }
            if let tenants { json.member("tenants", tenants.map(\.description)) }
            json.member("created", created.milliseconds)
            json.memberIfPresent("expires", expires?.milliseconds)
            if secret.generation > 1 { json.member("generation", secret.generation) }
            json.memberIfPresent("rotated", secret.rotated?.milliseconds)
            json.memberIfPresent("earlier_expires", secret.earlierExpires?.milliseconds)
        }
    }

    /// The record of the secret with this digest; without one, the record of a tenant's share.
    func record(lookup digest: [UInt8]?) -> OpenRecord {
        OpenRecord(
            id: secretRecordID, version: version, content: SecretBytes(encoded), lookup: digest, expires: expires)
    }

    /// Throws `.damaged` where this build cannot read the record. A limit of another form than this build writes is not
    /// ignored: the key would be good for more than its owner has allowed. Neither are an identity and tenants.
    package convenience init(_ record: OpenRecord) throws(StoreError) {
        guard let json = try? JSONValue(parsing: record.content.revealedBytes),
            let name = json["name"]?.string?.text,
            let permissions = json["permissions"]?.array?.compactMap({ $0.string.flatMap { Permission($0) } }),
            let created = json["created"]?.integer, json["storage_keys"].map({ $0.array != nil }) ?? true,
            json["expires"].map({ $0.integer != nil }) ?? true,
            json["identity"].map({ $0.string.flatMap { CallerIdentity($0) } != nil }) ?? true,
            let tenants = Self.tenants(json["tenants"], of: record.id.tenant)
        else { throw .damaged("API key \(record.id.apiKeyID) of tenant \(record.id.tenant)") }
        self.init(
            id: record.id.apiKeyID, tenant: record.id.tenant, name: name,
            identity: json["identity"]?.string.flatMap { CallerIdentity($0) },
            scope: CallerKey.Scope(
                permissions: permissions,
                storageKeys: json["storage_keys"]?.array.map { texts in
                    StorageKeyLimit(texts.compactMap { $0.string.flatMap { StorageKeyPattern($0) } })
                }, tenants: tenants.isEmpty ? nil : tenants),
            created: Timestamp(milliseconds: created),
            expires: json["expires"]?.integer.map(Timestamp.init(milliseconds:)),
            secret: CallerKey.Secret(
                generation: json["generation"]?.integer ?? 1, isEarlier: record.id.isOfEarlierSecret,
                rotated: json["rotated"]?.integer.map(Timestamp.init(milliseconds:)),
                earlierExpires: json["earlier_expires"]?.integer.map(Timestamp.init(milliseconds:))),
            version: record.version)
    }

    /// The tenants of a record; none for a key of one tenant, nil for what this build cannot read.
    private static func tenants(_ json: JSONValue?, of tenant: TenantName) -> [TenantName]? {
        guard let json else { return tenant == .broker ? nil : [] }
        guard let texts = json.array, !texts.isEmpty else { return nil }
        let tenants = texts.compactMap { $0.string.flatMap { TenantName($0) } }
        return tenants.count == texts.count ? tenants : nil
    }
}
