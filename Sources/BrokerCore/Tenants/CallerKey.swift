package import CredentialStore
package import OAuth

/// What an API key allows.
package enum Permission: String, Sendable, CaseIterable {
    case credentialsRead = "credentials:read"
    case credentialsWrite = "credentials:write"
    case login
    case events
}

/// An API key without its secret. An object, so that a request which uses it counts one reference and not one for each of
/// the parts.
package final class CallerKey: Cacheable, Equatable {
    package let id: String
    package let tenant: TenantName
    package let name: String
    package let permissions: [Permission]
    /// Nil for every storage key of the tenant.
    package let storageKeys: [StorageKey]?
    package let created: Timestamp
    package let expires: Timestamp?
    /// The tenant's place in the directory of tenants.
    let tenantHash: Int

    init(
        id: String, tenant: TenantName, name: String, permissions: [Permission], storageKeys: [StorageKey]?,
        created: Timestamp, expires: Timestamp?
    ) {
        self.id = id
        self.tenant = tenant
        self.name = name
        self.permissions = permissions
        self.storageKeys = storageKeys
        self.created = created
        self.expires = expires
        tenantHash = CredentialsID.Hashing(tenant).tenantHash
    }

    package var recordID: RecordID { RecordID(.apiKey, tenant, key: id) }

    package func hasExpired(at now: Timestamp) -> Bool { expires.map { $0 <= now } ?? false }

    /// Whether the key is for the storage key with that text.
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
    /// The operator, with the key of that name from the configuration.
    case admin(AdminName)
    case key(CallerKey)
}
