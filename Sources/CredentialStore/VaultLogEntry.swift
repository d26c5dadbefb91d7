package import Cryptography
package import OAuth

/// An entry as it was read from the log.
package struct VaultLogEntry: Sendable, Equatable {
    /// See `PlacedLogEntry`.
    package let sequence: Int64
    package let tenant: TenantName
    package let key: String
    package let version: Int64
    package let time: Timestamp
    /// Nil when it does not open: it was altered or moved, or its key is not configured. Retrying cannot help; an
    /// operator must look.
    package let content: SecretBytes?

    package init(
        sequence: Int64, tenant: TenantName, key: String, version: Int64, time: Timestamp, content: SecretBytes?
    ) {
        self.sequence = sequence
        self.tenant = tenant
        self.key = key
        self.version = version
        self.time = time
        self.content = content
    }
}
