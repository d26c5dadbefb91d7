package import Cryptography
package import OAuth

/// One step of a commit, with the contents of its records and entries sealed or open.
package enum Change<Content: Sendable & Equatable>: Sendable, Equatable {
    /// Writes a record that does not exist yet.
    case insert(Record<Content>)
    /// Overwrites the record that has exactly this version. The new version must be higher.
    /// - Parameter lease: what becomes of the lease on the record.
    case replace(Record<Content>, version: Int64, lease: ReplacedLease = .ended)
    /// Removes the record that has exactly this version.
    case remove(RecordID, version: Int64)
    /// Changes nothing. The commit is a conflict unless the record exists, with any version.
    case require(RecordID)
    /// Removes every record of the tenant, of every kind, and the tenant's entries in the log except those that the
    /// same commit appends. Never a conflict.
    case removeAll(TenantName)
    /// Moves the due mark of the record that has exactly this version to `next`, or removes the mark. The version and
    /// the content stay. When several callers try this, the other changes of the commit take place once, provided that
    /// the mark is removed or that every caller names the mark that it has read.
    /// - Parameter due: the mark that the record must have; nil for any mark.
    case settleDue(RecordID, version: Int64, due: Timestamp? = nil, next: Timestamp? = nil)
    /// Takes or extends the lease on the record that has exactly this version. The term begins with the commit. The
    /// version and the content stay.
    ///
    /// One of these must hold: the record has no lease, and `replacing` is nil; the lease is the claimer's own and was
    /// not given up, expired or not (`replacing` may name it); the lease is `replacing`'s, and it has expired, was
    /// given up, or is taken over although it has not expired.
    case claim(RecordID, version: Int64, LeaseClaim)
    /// Ends `holder`'s lease, expired or not, on the record that has exactly this version.
    case release(RecordID, version: Int64, holder: String, LeaseRelease)
    /// Adds an entry at the end of the log. The entries of a commit keep their order. Never a conflict.
    case append(LogEntry<Content>)
    /// Adds a block at the end of a chain of the audit log. At most one in a commit. The block's numbers follow those of
    /// the chain's last block.
    case audit(AuditBlock)

    /// The same change, with the records and entries that the closures return.
    func map<Other, Failure: Error>(
        record: (Record<Content>) throws(Failure) -> Record<Other>,
        entry: (LogEntry<Content>) throws(Failure) -> LogEntry<Other>
    ) throws(Failure) -> Change<Other> {
        switch self {
        case .insert(let inserted): .insert(try record(inserted))
        case .replace(let next, let version, let lease): .replace(try record(next), version: version, lease: lease)
        case .remove(let id, let version): .remove(id, version: version)
        case .require(let id): .require(id)
        case .removeAll(let tenant): .removeAll(tenant)
        case .settleDue(let id, let version, let due, let next): .settleDue(id, version: version, due: due, next: next)
        case .claim(let id, let version, let claim): .claim(id, version: version, claim)
        case .release(let id, let version, let holder, let release):
            .release(id, version: version, holder: holder, release)
        case .append(let appended): .append(try entry(appended))
        case .audit(let block): .audit(block)
        }
    }
}

/// What becomes of the lease on a record that is replaced.
package enum ReplacedLease: Sendable, Equatable {
    /// It ends.
    case ended
    /// It ends. But the change is a conflict while a lease of another holder than this one has not expired.
    case fenced(for: String)
    /// It stays as it is, because the new content can be consumed by the same work as the old one: a record with the same
    /// refresh token.
    case kept
}

/// A change as a store takes it.
package typealias RecordChange = Change<[UInt8]>

/// A change as the vault takes it.
package typealias VaultChange = Change<SecretBytes>
