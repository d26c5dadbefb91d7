internal import CredentialStore
internal import ExternalText
internal import OAuth
internal import Reactor

extension RevalidatingCache where Key == CredentialsID, Value == CredentialsSnapshot {
    /// The cache of credentials, with every change taken out of it that the bus tells of.
    static func credentials(bytes: Int, heeding bus: EventBus) -> RevalidatingCache {
        let cache = RevalidatingCache(bytes: bytes, trust: bus.trust) { id, snapshot in
            Footprint.text(id.tenant.description) + Footprint.text(id.storageKey.description) + snapshot.footprint
        } version: {
            $0.version
        } hash: {
            CredentialsID.Hashing($0.tenant).hashValue(storageKey: $0.storageKey)
        }
        bus.onChange(of: .credentials) { id, version in
            guard let id = CredentialsID(id) else { return }
            cache.hear(id, version: version)
        }
        bus.onRemoval { tenant in cache.removeAll { id, _ in id.tenant == tenant } }
        return cache
    }
}

extension CredentialsSnapshot {
    /// What it takes of memory, in bytes.
    fileprivate var footprint: Int {
        let fields = MemoryLayout.size(ofValue: record) + MemoryLayout.size(ofValue: bytes) + 4 * 8
        var sum = Footprint.allocation(16 + fields)
        sum += Footprint.bytes(record.ended?.count ?? 0) + Footprint.bytes(record.exchanged?.count ?? 0)
        sum += Footprint.secret(bytes)
        if let held = record.held {
            if !isPlain { sum += Footprint.secret(held.accessToken) }
            sum += Footprint.secret(held.refreshToken)
            sum += Footprint.texts(held.grantedScopes.values) + Footprint.text(held.userID?.text)
            sum += Footprint.text(held.identity.userID?.text) + Footprint.text(held.identity.subject?.text)
            sum += Footprint.client(held.obtainedWith)
            sum += Footprint.text(held.grantedBy?.issuer?.text) + Footprint.text(held.grantedBy?.tokenEndpoint?.text)
        }
        return sum
    }
}
