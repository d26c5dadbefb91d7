import CredentialStore
import Cryptography
package import OAuth

/// An API key of several tenants.
///
/// Its secrets are those of records under the tenant `.broker`, so that the removal of one of its tenants does not take them
/// along. Each of its tenants has a copy of the record without a look-up digest, the tenant's share: in a tenant without a share
/// the key is not valid. The removal of a tenant removes its share with everything else, so a tenant that is made anew under the
/// same name cannot be reached by the key. All records of a key have the same version: a rotation writes each of them.
extension CallerKey {
    /// The most tenants of a key.
    package static let mostTenants = 100

    /// Whether this is a key of several tenants of which it is not known in which of them it is used.
    package var isWithoutTenant: Bool { tenant == .broker }

    /// The records of a key of several tenants: that of its newest secret, that of the secret before a rotation, and the shares.
    /// Not all of them need exist.
    var recordsOfSeveralTenants: [RecordID] {
        [.apiKey(id, of: .broker), .earlierSecret(ofAPIKey: id, of: .broker)] + shareIDs
    }

    /// The records that the key has in its tenants.
    var shareIDs: [RecordID] { (tenants ?? []).map { .apiKey(id, of: $0) } }

    /// The digest by which the cache of keys has the share of a tenant.
    ///
    /// It is that of a text which begins with a NUL, so that no secret has it, and is no identity's either: see
    /// `CallerIdentity.digest`.
    func shareDigest(in tenant: TenantName) -> SHA256.Words {
        SHA256.words("\0tenant:\(tenant):\(id)".utf8.span)
    }

    /// The same key in one of its tenants.
    func share(of tenant: TenantName) -> CallerKey { with(tenant: tenant, tenants: tenants) }

    /// The same key with other tenants.
    func with(tenants: [TenantName]) -> CallerKey { with(tenant: tenant, tenants: tenants) }

    private func with(tenant: TenantName, tenants: [TenantName]?) -> CallerKey {
        CallerKey(
            id: id, tenant: tenant, name: name, identity: identity,
            scope: Scope(permissions: permissions, storageKeys: storageKeys, tenants: tenants), created: created,
            expires: expires, secret: secret, version: version)
    }

    /// What a new API key is to be.
    package struct Draft: Sendable {
        /// At least one, without repetitions. With more than one, the key is one of several tenants.
        let tenants: [TenantName]
        let name: String
        /// Who uses the key, which then has no secret; nil for a key with a secret.
        let identity: CallerIdentity?
        let permissions: [Permission]
        let storageKeys: StorageKeyLimit?
        /// Nil for a key that does not expire.
        let expiresIn: Duration?

        /// - Parameter tenants: at least one; the same one may occur more than once.
        package init(
            tenants: [TenantName], name: String, identity: CallerIdentity?, permissions: [Permission],
            storageKeys: StorageKeyLimit?, expiresIn: Duration?
        ) {
            self.tenants = Set(tenants).sorted()
            self.name = name
            self.identity = identity
            self.permissions = permissions
            self.storageKeys = storageKeys
            self.expiresIn = expiresIn
        }
    }

    /// A new key.
    convenience init(_ draft: Draft, id: String, at now: Timestamp) {
        let isOfSeveral = draft.tenants.count > 1
        self.init(
            id: id, tenant: isOfSeveral ? .broker : draft.tenants[0], name: draft.name, identity: draft.identity,
            scope: Scope(
                permissions: draft.permissions, storageKeys: draft.storageKeys,
                tenants: isOfSeveral ? draft.tenants : nil),
            created: now, expires: draft.expiresIn.map { now.advanced(by: $0) }, version: EventBus.newKeyVersion)
    }
}
