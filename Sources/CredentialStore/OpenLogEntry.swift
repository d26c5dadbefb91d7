package import Cryptography
package import OAuth

/// An entry for the log whose content can be read. See `StoredLogEntry` for what the other members mean.
package struct OpenLogEntry: Sendable, Equatable {
    package var tenant: TenantName
    package var key: String
    package var version: Int64
    package var time: Timestamp
    package var content: SecretBytes

    package init(tenant: TenantName, key: String, version: Int64, time: Timestamp, content: SecretBytes) {
        self.tenant = tenant
        self.key = key
        self.version = version
        self.time = time
        self.content = content
    }
}
