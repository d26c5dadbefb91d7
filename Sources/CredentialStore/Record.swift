package import Cryptography
package import OAuth

/// A record, with its content sealed or open.
package struct Record<Content: Sendable & Equatable>: Sendable, Equatable {
    package var id: RecordID
    /// Chosen by the writer. Rises with every write of the record.
    package var version: Int64
    package var content: Content
    /// The SHA-256 digest of a secret by which the record is found; unique among the records of its kind.
    package var lookup: [UInt8]?
    /// When the record may be removed; nil for never.
    package var expires: Timestamp?
    /// When work on the record is due; nil when none is. The store does nothing at that time. `settleDue` changes the
    /// mark without a new version, so no seal depends on it.
    package var due: Timestamp?
    /// The lease of the holder that works on the record, or that did and could not store the outcome; nil for no lease.
    /// No seal depends on it. Only `claim` and `release` change it: the lease of a record that is inserted or replaced
    /// is ignored.
    package var lease: Lease?

    package init(
        id: RecordID, version: Int64, content: Content, lookup: [UInt8]? = nil, expires: Timestamp? = nil,
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

    /// The same record with another content.
    func with<Other>(content: Other) -> Record<Other> {
        Record<Other>(
            id: id, version: version, content: content, lookup: lookup, expires: expires, due: due, lease: lease)
    }
}

/// A record as a store keeps it. Its content is sealed, so the store cannot read it.
package typealias StoredRecord = Record<[UInt8]>

/// A record whose content can be read.
package typealias OpenRecord = Record<SecretBytes>

extension Record where Content == [UInt8] {
    package init(
        id: RecordID, version: Int64, sealed: [UInt8], lookup: [UInt8]? = nil, expires: Timestamp? = nil,
        due: Timestamp? = nil, lease: Lease? = nil
    ) {
        self.init(id: id, version: version, content: sealed, lookup: lookup, expires: expires, due: due, lease: lease)
    }

    /// The sealed content.
    package var sealed: [UInt8] {
        get { content }
        set { content = newValue }
    }
}
