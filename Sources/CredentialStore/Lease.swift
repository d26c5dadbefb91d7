/// Somebody's claim to be the only one at work on a record.
///
/// One that has run out was left by a holder that died at work, or that could not find out how it ended.
package struct Lease: Sendable, Equatable {
    package var holder: String
    /// What was left of it, by the store's clock, when the record was read; zero or less where it has run out.
    package var remaining: Duration
    /// Whether its holder let go of it knowing that it did not know how its work ended, as against one that died.
    package var wasGivenUp: Bool

    package init(holder: String, remaining: Duration, wasGivenUp: Bool = false) {
        self.holder = holder
        self.remaining = remaining
        self.wasGivenUp = wasGivenUp
    }

    package var hasRunOut: Bool { remaining <= .zero }
}

/// A lease that has run out without having been given up.
package struct LapsedLease: Sendable, Equatable {
    package let id: RecordID
    /// The record's.
    package let version: Int64
    package let holder: String

    package init(id: RecordID, version: Int64, holder: String) {
        self.id = id
        self.version = version
        self.holder = holder
    }
}

extension LapsedLease {
    /// Nil for a record whose lease has not run out by itself.
    init?(_ record: StoredRecord) {
        guard let lease = record.lease, lease.hasRunOut, !lease.wasGivenUp else { return nil }
        self.init(id: record.id, version: record.version, holder: lease.holder)
    }
}
