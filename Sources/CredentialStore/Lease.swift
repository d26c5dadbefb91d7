package import OAuth

/// The exclusive right of a holder to work on a record for a time. It is part of the record's row.
///
/// An expired lease was left by a holder that died during its work, or that could not store the outcome of its work.
package struct Lease: Sendable, Equatable {
    package var holder: String
    /// The remaining time by the store's clock when the record was read; zero or less for an expired lease.
    package var remaining: Duration
    /// Whether the holder gave the lease up, in contrast to a holder that died. A holder that gives up does not know
    /// the outcome of its work, unless `isSettled`.
    package var wasGivenUp: Bool
    /// How long ago, by the store's clock, a holder's work may have consumed the record's content for the first time (a
    /// refresh token, for example); nil when that did not happen or is unknown.
    package var sinceFirstUse: Duration?
    /// Whether the previous holder may still store the outcome of its work.
    package var isOpen: Bool
    /// Whether the content was not consumed: the lease is kept only because it carries a failure.
    package var isSettled: Bool
    /// The failure of the holder's work; nil for no failure, and when its time is over.
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

/// A failure that a holder shares with the other replicas through the record's row, so that they do not repeat the work
/// at once.
package struct LeaseFailure: Sendable, Equatable {
    /// 1 to 100 octets of ASCII, which the store does not interpret.
    package var code: String
    /// How long the other replicas must not repeat the work, from the release on. When read: the remaining time.
    package var remaining: Duration

    package init(code: String, remaining: Duration) {
        self.code = code
        self.remaining = remaining
    }
}

/// A request for a lease.
package struct LeaseClaim: Sendable, Equatable {
    /// The name of the new holder: up to 100 octets of ASCII that no other attempt uses.
    package var holder: String
    /// The holder whose lease is taken over; nil when the record must have no lease.
    package var replacing: String?
    /// Whether that lease is taken over although it has not expired, because its holder is known to be gone.
    package var replacesStanding: Bool
    /// For how long that lease must have been expired otherwise, unless it was given up.
    package var overdue: Duration
    /// How long the lease lasts from the commit on.
    package var duration: Duration
    /// Whether the work under the lease may consume the record's content. The store notes the time of the first such
    /// claim.
    package var marksUse: Bool
    /// Whether the content was not consumed under the holder's lease so far. With `marksUse`, the time of this claim
    /// replaces an earlier time.
    package var restartsUse: Bool
    /// See `Lease.isOpen`.
    package var isOpen: Bool
    /// The latest time of the commit by the store's clock, because a claim must not take effect after its sender has
    /// stopped waiting; nil for no limit. A store whose commits are complete before their call returns ignores it.
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

/// How a holder ends its lease.
package struct LeaseRelease: Sendable, Equatable {
    package enum Outcome: Sendable, Equatable {
        /// The work did not consume the content. The lease is removed, unless it carries a failure.
        case settled
        /// The holder does not know the outcome of its work. The lease is kept as given up.
        /// - Parameter recovery: after how long `lapsed` lists the lease; nil for never.
        case unknown(recovery: Duration?)
        /// The previous holder may still store the outcome of its work. The lease expires now, as if this holder had
        /// died.
        case open
    }

    package var outcome: Outcome
    package var failure: LeaseFailure?

    package init(_ outcome: Outcome, failure: LeaseFailure? = nil) {
        self.outcome = outcome
        self.failure = failure
    }
}

/// An expired lease that a replica should take over.
package struct LapsedLease: Sendable, Equatable {
    package let id: RecordID
    /// The version of the record.
    package let version: Int64
    package let holder: String

    package init(id: RecordID, version: Int64, holder: String) {
        self.id = id
        self.version = version
        self.holder = holder
    }
}
