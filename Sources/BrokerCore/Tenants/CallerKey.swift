package import CredentialStore
package import OAuth

/// What an API key allows.
package enum Permission: String, Sendable, CaseIterable {
    case credentialsRead = "credentials:read"
    case credentialsWrite = "credentials:write"
    case login
    case events
}

/// An API key without its secrets, as the record of one of its secrets describes it. An object, so that a request that uses it
/// counts one reference, and not one for each part.
package final class CallerKey: Cacheable, Equatable {
    /// What an API key may be used for.
    struct Scope: Equatable {
        let permissions: [Permission]
        /// Nil for every storage key of the tenant.
        let storageKeys: StorageKeyLimit?
        /// See `CallerKey.tenants`.
        var tenants: [TenantName]?
    }
    package let id: String
    /// The tenant that the key belongs to. For a key of several tenants, the one of them in which it is used, or `.broker` where
    /// that is not said: see `isWithoutTenant`.
    package let tenant: TenantName
    /// The tenants of a key of several tenants, 1 to `mostTenants`, in the order of their names; nil for a key of one tenant. It
    /// is valid in each of them that has a record of it: see `CallerKeyDirectory.key(_:in:)`.
    package let tenants: [TenantName]?
    package let name: String
    /// Who uses the key, where that is in place of a secret; nil for a key with a secret.
    package let identity: CallerIdentity?
    package let permissions: [Permission]
    /// Nil for every storage key of the tenant.
    package let storageKeys: StorageKeyLimit?
    package let created: Timestamp
    /// When the secret expires. That of the newest secret is when the key does.
    package let expires: Timestamp?
    package let secret: Secret
    /// The version of the record of the secret. Both records of a key have the version of its last rotation.
    package let version: Int64
    /// The tenant's hash in the cache of tenants.
    let tenantHash: Int

    /// Which of the key's secrets a record is about.
    package struct Secret: Equatable, Sendable {
        /// 1 for the secret of the key's creation; each rotation adds 1.
        package var generation: Int64 = 1
        /// Whether a rotation has made another secret since. This one is accepted until `expires`.
        var isEarlier = false
        /// When the last rotation was; nil for a key that was not rotated.
        package var rotated: Timestamp?
        /// For the newest secret: until when the earlier one is accepted; nil where there is none.
        var earlierExpires: Timestamp?
    }

    init(
        id: String, tenant: TenantName, name: String, identity: CallerIdentity? = nil, scope: Scope, created: Timestamp,
        expires: Timestamp?, secret: Secret = Secret(), version: Int64
    ) {
        self.id = id
        self.tenant = tenant
        self.name = name
        self.identity = identity
        permissions = scope.permissions
        storageKeys = scope.storageKeys
        tenants = scope.tenants
        self.created = created
        self.expires = expires
        self.secret = secret
        self.version = version
        tenantHash = CredentialsID.Hashing(tenant).tenantHash
    }

    /// The record of the key's newest secret, by which the key is known.
    package var recordID: RecordID { .apiKey(id, of: tenant) }

    /// The record that this was read from.
    var secretRecordID: RecordID { secret.isEarlier ? .earlierSecret(ofAPIKey: id, of: tenant) : recordID }

    /// Until when the secret before the last rotation is accepted; nil if it is not accepted.
    package func earlierSecretExpires(at now: Timestamp) -> Timestamp? {
        secret.earlierExpires.flatMap { $0 > now ? $0 : nil }
    }

    /// The same key with another secret.
    func with(_ secret: Secret, expires: Timestamp?, version: Int64) -> CallerKey {
        CallerKey(
            id: id, tenant: tenant, name: name, identity: identity,
            scope: Scope(permissions: permissions, storageKeys: storageKeys, tenants: tenants), created: created,
            expires: expires, secret: secret, version: version)
    }

    package func hasExpired(at now: Timestamp) -> Bool { expires.map { $0 <= now } ?? false }

    /// Whether the key may be used for the storage key with that text.
    package func isFor(_ storageKey: Span<UInt8>) -> Bool {
        storageKeys?.includes(storageKey) ?? true
    }

    package static func == (left: CallerKey, right: CallerKey) -> Bool {
        left.id == right.id && left.tenant == right.tenant && left.name == right.name
            && left.identity == right.identity && left.permissions == right.permissions
            && left.storageKeys == right.storageKeys && left.tenants == right.tenants
            && left.created == right.created && left.expires == right.expires && left.secret == right.secret
            && left.version == right.version
    }
}

/// Who is calling.
package enum Caller: Sendable {
    /// The operator, with the admin key of that name, which has that role.
    case admin(AdminName, AdminRole)
    case key(CallerKey)
}
