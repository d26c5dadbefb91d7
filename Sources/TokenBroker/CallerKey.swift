package import BrokerCore
internal import CredentialStore
package import OAuth

/// What an API key allows.
package enum Permission: String, Sendable, CaseIterable {
    case credentialsRead = "credentials:read"
    case credentialsWrite = "credentials:write"
    case login
    case events
}

/// An API key without its secret.
package struct CallerKey: Cacheable, Equatable {
    package let id: String
    package let tenant: TenantName
    package let name: String
    package let permissions: [Permission]
    /// Nil for every storage key of the tenant.
    package let storageKeys: [StorageKey]?
    package let created: Timestamp
    package let expires: Timestamp?

    var recordID: RecordID { RecordID(.apiKey, tenant, key: id) }
}

/// Who is calling.
package enum Caller: Sendable {
    /// The operator, with the key of that name from the configuration.
    case admin(AdminName)
    case key(CallerKey)
}
