package import CredentialStore
package import OAuth

/// What an API key allows.
package enum Permission: String, Sendable, CaseIterable {
    case credentialsRead = "credentials:read"
    case credentialsWrite = "credentials:write"
    case login
    case events
}

/// An API key without its secret. An object, so that a request that uses it counts one reference, and not one for each part.
package final class CallerKey: Cacheable, Equatable {
    /// What an API key may be used for.
    struct Scope: Equatable {
        let permissions: [Permission]
        /// Nil for every storage key of the tenant.
        let storageKeys: [StorageKey]?
    }
    package let id: String
    package let tenant: TenantName
    package let name: String
    package let permissions: [Permission]
    /// Nil for every storage key of the tenant.
    package let storageKeys: [StorageKey]?
    package let created: Timestamp
    package let expires: Timestamp?
    /// The tenant's hash in the cache of tenants.
    let tenantHash: Int

    init(id: String, tenant: TenantName, name: String, scope: Scope, created: Timestamp, expires: Timestamp?) {
        self.id = id
        self.tenant = tenant
        self.name = name
        permissions = scope.permissions
        storageKeys = scope.storageKeys
        self.created = created
        self.expires = expires
        tenantHash = CredentialsID.Hashing(tenant).tenantHash
    }

    package var recordID: RecordID { RecordID(.apiKey, tenant, key: id) }

    package func hasExpired(at now: Timestamp) -> Bool { expires.map { $0 <= now } ?? false }

    /// Whether the key may be used for the storage key with that text.
    package func isFor(_ storageKey: Span<UInt8>) -> Bool {
        guard let storageKeys else { return true }
        for known in storageKeys where known.isNamed(storageKey) { return true }
        return false
    }

    package static func == (left: CallerKey, right: CallerKey) -> Bool {
        left.id == right.id && left.tenant == right.tenant && left.name == right.name
            && left.permissions == right.permissions && left.storageKeys == right.storageKeys
            && left.created == right.created && left.expires == right.expires
    }
}

/// Who is calling.
package enum Caller: Sendable {
    /// The operator, with the admin key of that name.
    case admin(AdminName)
    case key(CallerKey)
}
