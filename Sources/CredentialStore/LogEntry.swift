package import Cryptography
package import OAuth

/// An entry of the log of events, with its content sealed or open.
package struct LogEntry<Content: Sendable & Equatable>: Sendable, Equatable {
    package var tenant: TenantName
    /// The subject of the entry, in the alphabet of `RecordID.key`. Several entries may have the same key.
    package var key: String
    /// Chosen by the writer. The seal depends on it.
    package var version: Int64
    /// The time by which trimming judges the age of the entry.
    package var time: Timestamp
    package var content: Content

    package init(tenant: TenantName, key: String, version: Int64, time: Timestamp, content: Content) {
        self.tenant = tenant
        self.key = key
        self.version = version
        self.time = time
        self.content = content
    }

    /// The same entry with another content.
    func with<Other>(content: Other) -> LogEntry<Other> {
        LogEntry<Other>(tenant: tenant, key: key, version: version, time: time, content: content)
    }
}

/// An entry of the log with the sequence that the store has given to it.
@dynamicMemberLookup
package struct PlacedEntry<Content: Sendable & Equatable>: Sendable, Equatable {
    /// From 1, rising in the order of the log. Numbers may be left out.
    package var sequence: Int64
    package var entry: LogEntry<Content>

    package subscript<Value>(dynamicMember member: KeyPath<LogEntry<Content>, Value>) -> Value {
        entry[keyPath: member]
    }
}

/// An entry as it is written. Its content is sealed, so the store cannot read it.
package typealias StoredLogEntry = LogEntry<[UInt8]>

/// An entry whose content can be read.
package typealias OpenLogEntry = LogEntry<SecretBytes>

/// A sealed entry as it was read from the log.
package typealias PlacedLogEntry = PlacedEntry<[UInt8]>

/// An entry as the vault reads it from the log. The content is nil when it does not open: it was altered or moved, or
/// its key is not configured. Retrying cannot help; an operator must look. The content of a marker is empty.
package typealias VaultLogEntry = PlacedEntry<SecretBytes?>

extension VaultLogEntry {
    /// Whether it only marks where entries of its tenant are missing; see `StoredLogEntry.isMarker`.
    package var isMarker: Bool { entry.content?.isEmpty ?? false }
}

extension LogEntry where Content == [UInt8] {
    package init(tenant: TenantName, key: String, version: Int64, time: Timestamp, sealed: [UInt8]) {
        self.init(tenant: tenant, key: key, version: version, time: time, content: sealed)
    }

    /// The sealed content. Only that of a marker is empty.
    package var sealed: [UInt8] {
        get { content }
        set { content = newValue }
    }

    /// Whether it only marks a place: `RecordStore.trimLog` has removed this entry's content, and every older entry of
    /// its tenant, because there were too many. A reader of the tenant that comes from before it has missed entries.
    package var isMarker: Bool { content.isEmpty }

    /// The marker in the place of the entry.
    var marker: StoredLogEntry { with(content: []) }
}
