internal import CredentialStore
internal import OAuth

extension RevalidatingCache where Key == CredentialsID, Value == CredentialsSnapshot {
    /// The cache of credentials, with every change taken out of it that the bus tells of.
    static func credentials(bytes: Int, heeding bus: EventBus) -> RevalidatingCache {
        let cache = RevalidatingCache(bytes: bytes, trust: bus.trust) { id, snapshot in
            Footprint.text(id.tenant.description) + Footprint.text(id.storageKey.description) + snapshot.footprint
        } version: {
            $0.version
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
        let fields = MemoryLayout.size(ofValue: record) + MemoryLayout.size(ofValue: encoded) + 8
        var sum = Footprint.allocation(16 + fields)
        sum += Footprint.bytes(record.ended?.count ?? 0) + (encoded?.footprint ?? 0)
        if let held = record.held {
            sum += Footprint.secret(held.accessToken) + Footprint.secret(held.refreshToken)
            sum += Footprint.texts(held.grantedScopes.values) + Footprint.text(held.userID)
            sum += Footprint.client(held.obtainedWith)
        }
        return sum
    }
}
