package import OAuth

/// An entry of the log as it is written: the content is sealed, the store cannot read it. The store gives the entry its
/// place.
package struct StoredLogEntry: Sendable, Equatable {
    package var tenant: TenantName
    /// What the entry is about, in the alphabet of `RecordID.key`. Many entries may have the same.
    package var key: String
    /// Chosen by the writer. The seal is tied to it.
    package var version: Int64
    /// By this an entry is old enough to be trimmed.
    package var time: Timestamp
    package var sealed: [UInt8]

    package init(tenant: TenantName, key: String, version: Int64, time: Timestamp, sealed: [UInt8]) {
        self.tenant = tenant
        self.key = key
        self.version = version
        self.time = time
        self.sealed = sealed
    }
}

/// An entry of the log where it stands.
package struct PlacedLogEntry: Sendable, Equatable {
    /// From 1, rising in the order of the log. Numbers may be left out.
    package var sequence: Int64
    package var entry: StoredLogEntry

    package init(sequence: Int64, entry: StoredLogEntry) {
        self.sequence = sequence
        self.entry = entry
    }
}
