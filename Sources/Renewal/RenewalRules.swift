/// The time limits that one provider and this program set for renewals. All values are durations; none is a point in
/// time.
package struct RenewalRules: Sendable, Hashable {
    /// The time after the first use of a refresh token in which the provider accepts the token again. Zero if it never
    /// does; `usualGrace` if this is not known.
    package var grace: Duration
    /// Whether `grace` is known. If not, it is an assumption.
    package var isGraceKnown = true
    /// The time limit of one call to the provider.
    package var callLimit: Duration
    /// A call must begin at least this long before the end of the grace, so that it arrives within the grace.
    package var transit: Duration
    /// The time in which a process that may hold the successor of a refresh token can store it, before another process
    /// presents the token beyond the grace. It begins when the store can be reached again.
    package var turn: Duration
    /// The least time to wait for such a process after the end of its lease, before another process presents the token
    /// beyond the grace. Presenting it ends the session, unless the token was never presented before.
    package var patience: Duration
    /// The waits between the calls of one renewal. It makes one call more than there are waits.
    package var waits: [Duration]
    /// Whether the waits are as long as `waits` says even if the grace ends meanwhile.
    package var keepsWaits = false
    /// Whether other processes have the refresh token, so that one of them may make the next call. Otherwise the attempt makes all of
    /// its calls itself.
    package var handsOver = true

    /// The grace that is assumed for a provider whose grace is not known: 10 s.
    package static let usualGrace: Duration = .seconds(10)
    /// The grace of a provider at which a refresh token is never spent: a day.
    package static let endlessGrace: Duration = .seconds(86_400)
    package static let usualTransit: Duration = .seconds(1)
    package static let usualTurn: Duration = .seconds(5)
    package static let usualPatience: Duration = .seconds(30)
    private static let shortestLease: Duration = .seconds(2)
    private static let longestLease: Duration = .seconds(5)
    private static let shortestCall: Duration = .seconds(1)

    package init(
        grace: Duration = usualGrace, callLimit: Duration, waits: [Duration], transit: Duration = usualTransit,
        turn: Duration = usualTurn, patience: Duration? = nil
    ) {
        self.grace = grace
        self.callLimit = callLimit
        self.waits = waits
        self.transit = transit
        self.turn = turn
        self.patience = patience ?? turn
    }

    /// Like `turn`, within the grace: 1.5 s, because a process that has something to store tries every second.
    package var turnWithinGrace: Duration = .milliseconds(1500)

    /// The time that a process needs to read a lease and take it over, so that its call is still within the grace: half
    /// a second.
    package var takeover: Duration = .milliseconds(500)

    /// The time for which a claim or an extension of a lease lasts. Nil means a third of the grace, at least two and at
    /// most five seconds: when the holder dies, another process has two thirds of the grace left.
    package var span: Duration?

    package var leaseSpan: Duration { span ?? min(Self.longestLease, max(Self.shortestLease, grace / 3)) }

    /// The interval at which the holder extends its lease while it waits.
    package var extensionInterval: Duration { leaseSpan / 2 }

    /// The time limit of a call that begins `sinceFirstUse` after the token's first use. It is half of the remaining
    /// grace, so that a second call is possible. It is `callLimit` if half is too short for an answer, if no grace is
    /// left, or if the grace is not known: then giving up a slow call would lose the session.
    func limit(ofCallBegunAfter sinceFirstUse: Duration) -> Duration {
        guard isGraceKnown else { return callLimit }
        let half = (grace - transit - sinceFirstUse) / 2
        return half < Self.shortestCall ? callLimit : min(half, callLimit)
    }

    /// Whether a call that begins `sinceFirstUse` after the token's first use presents the token within the grace.
    func isWithinGrace(_ sinceFirstUse: Duration) -> Bool { sinceFirstUse + transit <= grace }

    /// False if the time since the first use is not known, because the use may be long ago.
    package func isWithinGrace(_ sinceFirstUse: Duration?) -> Bool { sinceFirstUse.map(isWithinGrace) ?? false }

    /// How long to wait before this process may take over another attempt's lease.
    /// - Parameter storeReachableFor: the time for which this process has reached the store without a failure.
    /// - Returns: zero or less if it may take the lease over at once; otherwise the time after which to read the lease
    ///   again.
    package func waitBeforeTakingOver(_ lease: StandingLease, storeReachableFor: Duration) -> Duration {
        if !lease.mayBeHeld { return .zero }
        if lease.stands { return lease.remaining }
        var sinceReturn = turn - storeReachableFor
        if let age = lease.sinceFirstUse, isWithinGrace(age) {
            // Within the grace a second successor of the token does no harm. But the first successor is preferred, and
            // its holder may only be waiting for the store.
            sinceReturn = min(turn, turnWithinGrace) - storeReachableFor
            return min(sinceReturn, grace - transit - takeover - age)
        }
        // If the holder is alive and has the successor, presenting the token now would end the session.
        return max(sinceReturn, patience + lease.remaining)
    }
}

/// The lease of a record, with its times by the store's clock.
package struct StandingLease: Sendable, Hashable {
    package var holder: String
    /// The remaining time; zero or less if the lease has expired that long ago.
    package var remaining: Duration
    /// The time since the earliest moment at which the record's refresh token may have been presented; nil if it is not
    /// known.
    package var sinceFirstUse: Duration?
    /// Whether the holder has given the lease up, which means that it has no successor of the token.
    package var isGivenUp: Bool
    /// Whether this process knows that the holder will store nothing any more, because the holder was an attempt of
    /// this process that has ended, or of an earlier process whose journal this process has.
    package var isHolderGone: Bool
    /// Whether an earlier holder may still store the successor of the token, because the lease was taken over from it
    /// within the grace.
    package var isOpen: Bool

    package init(
        holder: String, remaining: Duration, sinceFirstUse: Duration?, isGivenUp: Bool = false,
        isHolderGone: Bool = false, isOpen: Bool = false
    ) {
        self.isOpen = isOpen
        self.holder = holder
        self.remaining = remaining
        self.sinceFirstUse = sinceFirstUse
        self.isGivenUp = isGivenUp
        self.isHolderGone = isHolderGone
    }

    /// Whether a process may hold the successor of the refresh token.
    var mayBeHeld: Bool { isOpen || !isGivenUp && !isHolderGone }

    /// Whether the holder's renewal may be running.
    package var stands: Bool { !isGivenUp && !isHolderGone && remaining > .zero }
}
