import CredentialStore
import ExternalText
import OAuth
import Reactor

extension RevalidatingCache where Key == CredentialsID, Value == CredentialsSnapshot {
    /// The cache of credentials, from which each change that the bus announces removes the older entry.
    static func credentials(bytes: Int, invalidatedBy bus: EventBus) -> RevalidatingCache {
        let cache = RevalidatingCache(bytes: bytes, validity: bus.cacheValidity) { id, snapshot in
            MemorySize.text(id.tenant.description) + MemorySize.text(id.storageKey.description) + snapshot.memorySize
        } version: {
            $0.version
        } hash: {
            CredentialsID.Hashing($0.tenant).hashValue(storageKey: $0.storageKey)
        }
        bus.onChange(of: .credentials) { id, version in
            guard let id = CredentialsID(id) else { return }
            cache.invalidate(id, olderThan: version)
        }
        bus.onRemoval { tenant in cache.removeAll { id, _ in id.tenant == tenant } }
        return cache
    }
}

extension CredentialsSnapshot {
    /// The memory that it takes, in bytes.
    fileprivate var memorySize: Int {
        let fields = MemoryLayout.size(ofValue: record) + MemoryLayout.size(ofValue: bytes) + 4 * 8
        var sum = MemorySize.allocation(16 + fields)
        for digest in [record.ended, record.exchanged, record.endedBefore] {
            sum += MemorySize.bytes(digest?.count ?? 0)
        }
        sum += MemorySize.secret(bytes)
        // The tokens of a set that waits for its verification are not in the encoded answer.
        if let granted = record.granted { sum += Self.memorySize(granted, hasToken: !isPlain || record.waiting != nil) }
        if let waiting = record.waiting {
            sum += MemorySize.secret(waiting.idToken) + MemorySize.text(waiting.nonce?.text)
            if let earlier = waiting.earlier { sum += Self.memorySize(earlier, hasToken: true) }
        }
        return sum
    }

    private static func memorySize(_ held: HeldCredentials, hasToken: Bool) -> Int {
        var sum = hasToken ? MemorySize.secret(held.accessToken) : 0
        sum += MemorySize.secret(held.refreshToken) + MemorySize.secret(held.proof.idToken)
        sum += MemorySize.texts(held.grantedScopes.values) + MemorySize.text(held.userID?.text)
        sum += MemorySize.text(held.identity.userID?.text) + MemorySize.text(held.identity.subject?.text)
        sum += MemorySize.client(held.obtainedWith)
        sum += held.extra.map(MemorySize.facts) ?? 0
        if let key = held.proofKey {
            sum += MemorySize.allocation(16 + 4 * 8) + MemorySize.secret(key.pem) + MemorySize.secret(key.refreshPEM)
        }
        if let imported = held.imported {
            sum += MemorySize.allocation(40) + MemorySize.bytes(imported.digest.count)
        }
        sum += held.asked.map(MemorySize.asked) ?? 0
        if held.hasRareFacts { sum += MemorySize.allocation(HeldCredentials.rareFactsSize) }
        if held.terms != nil { sum += MemorySize.allocation(24 + 10 * MemoryLayout<Int64>.size) }
        return sum + MemorySize.text(held.grantedBy?.issuer?.text)
            + MemorySize.text(held.grantedBy?.tokenEndpoint?.text)
    }
}
