package import OAuth

/// The right of one holder to work on a record, as it stands in the record's row.
///
/// A lease that has run out was left by a holder that died at work, or that could not store how its work ended.
package struct Lease: Sendable, Equatable {
    package var holder: String
    /// What was left of it, by the store's clock, when the record was read; zero or less where it has run out.
    package var remaining: Duration
    /// Whether its holder let go of it without knowing how its work ended, as against a holder that died.
    package var wasGivenUp: Bool
    /// How long ago, by the store's clock, what the record holds may have been used up by a holder's work for the first
    /// time; nil where that did not happen or is not known.
    package var sinceFirstUse: Duration?
    /// Whether the holder before this one may still store what came of its work.
    package var isOpen: Bool
    /// Whether nothing was used up: the lease stands only to tell of a failure.
    package var isSettled: Bool
    /// What its holder's work failed with; nil for no failure, and for one that is over.
    package var failure: LeaseFailure?

    package init(
        holder: String, remaining: Duration, wasGivenUp: Bool = false, sinceFirstUse: Duration? = nil,
        isOpen: Bool = false, isSettled: Bool = false, failure: LeaseFailure? = nil
    ) {
        self.holder = holder
        self.remaining = remaining
        self.wasGivenUp = wasGivenUp
        self.sinceFirstUse = sinceFirstUse
        self.isOpen = isOpen
        self.isSettled = isSettled
        self.failure = failure
    }

    package var hasRunOut: Bool { remaining <= .zero || wasGivenUp }
}

/// A failure that other replicas are told of through the record's row, so that they do not repeat the work at once.
package struct LeaseFailure: Sendable, Equatable {
    /// 1 to 100 octets of ASCII, for the replicas; the store does not read it.
    package var code: String
    /// For how long others leave the work alone: from the release on, or when read what is left of it.
    package var remaining: Duration

    package init(code: String, remaining: Duration) {
        self.code = code
        self.remaining = remaining
    }
}

/// What a claim of a lease asks for.
package struct LeaseClaim: Sendable, Equatable {
    /// Up to 100 octets of ASCII that no other attempt uses.
    package var holder: String
    /// The holder whose lease is taken over; nil where there is to be none.
    package var replacing: String?
    /// Whether that lease is taken over although it has not run out, because its holder is known to be gone.
    package var replacesStanding: Bool
    /// For how long that lease must have run out otherwise, unless it was given up.
    package var overdue: Duration
    /// How long the lease lasts from the commit on.
    package var duration: Duration
    /// Whether what the record holds may be used up under the lease. The store notes the time of the first such claim.
    package var marksUse: Bool
    /// Whether nothing was used up under the holder's lease so far: with `marksUse`, the time of this claim is noted in place
    /// of an earlier one's.
    package var restartsUse: Bool
    /// See `Lease.isOpen`.
    package var isOpen: Bool
    /// The latest time of the commit, by the store's clock: a claim must not take effect after its sender has given up.
    /// Nil for any time. A store that carries out a commit before the call returns does not heed it.
    package var notAfter: Timestamp?

    package init(
        holder: String, replacing: String? = nil, replacesStanding: Bool = false, overdue: Duration = .zero,
        for duration: Duration, marksUse: Bool = false, restartsUse: Bool = false, isOpen: Bool = false,
        notAfter: Timestamp? = nil
    ) {
        self.holder = holder
        self.replacing = replacing
        self.replacesStanding = replacesStanding
        self.overdue = overdue
        self.duration = duration
        self.marksUse = marksUse
        self.restartsUse = restartsUse
        self.isOpen = isOpen
        self.notAfter = notAfter
    }
}

/// How a holder lets go of its lease.
package struct LeaseRelease: Sendable, Equatable {
    package enum Outcome: Sendable, Equatable {
        /// The holder's work used nothing up. The lease goes, unless it is to tell of a failure.
        case settled
        /// The holder does not know how its work ended. The lease stays as given up.
        /// - Parameter recovery: after how long `lapsed` lists it; nil for never.
        case unknown(recovery: Duration?)
        /// The holder before may still store what came of its work. The lease ends now, as if this holder had died.
        case open
    }

    package var outcome: Outcome
    package var failure: LeaseFailure?

    package init(_ outcome: Outcome, failure: LeaseFailure? = nil) {
        self.outcome = outcome
        self.failure = failure
    }
}

/// A lease that has run out and that a replica is to see to.
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
