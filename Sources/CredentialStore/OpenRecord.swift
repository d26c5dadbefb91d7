package import Cryptography
package import OAuth

/// A record whose content can be read. See `StoredRecord` for what the other members mean.
package struct OpenRecord: Sendable, Equatable {
    package var id: RecordID
    package var version: Int64
    package var content: SecretBytes
    package var lookup: [UInt8]?
    package var expires: Timestamp?
    package var due: Timestamp?
    package var lease: Lease?

    package init(
        id: RecordID, version: Int64, content: SecretBytes, lookup: [UInt8]? = nil, expires: Timestamp? = nil,
        due: Timestamp? = nil, lease: Lease? = nil
    ) {
        self.id = id
        self.version = version
        self.content = content
        self.lookup = lookup
        self.expires = expires
        self.due = due
        self.lease = lease
    }
}

/// One step of a commit to the vault; see `RecordChange`.
package enum VaultChange: Sendable, Equatable {
    /// Writes a record that does not exist yet.
    case insert(OpenRecord)
    /// Writes a record in place of the one that has exactly this version. The new version is higher. The lease goes.
    /// - Parameter fencedFor: a holder: then it is a conflict, too, while another one's lease has not run out.
    case replace(OpenRecord, version: Int64, fencedFor: String? = nil)
    /// Removes the record that has exactly this version.
    case remove(RecordID, version: Int64)
    /// Changes nothing: the commit takes place only while the record exists, whatever its version.
    case require(RecordID)
    /// Removes every record of the tenant, of every kind, and its entries in the log except those that the same commit
    /// appends. Never a conflict.
    case removeAll(TenantName)
    /// Moves the due mark of the record that has exactly this version and one, or takes it away; its version and content
    /// stay.
    case settleDue(RecordID, version: Int64, due: Timestamp? = nil, next: Timestamp? = nil)
    /// Takes or extends the lease on the record that has exactly this version; its version and content stay.
    case claim(RecordID, version: Int64, LeaseClaim)
    /// Ends `holder`'s lease: it goes, or stays as one that has run out.
    case release(RecordID, version: Int64, holder: String, LeaseRelease)
    /// Adds an entry at the end of the log. Several of a commit keep their order. Never a conflict.
    case append(OpenLogEntry)
}
