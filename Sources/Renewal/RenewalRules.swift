/// What one provider and this program hold renewals to. All times are lengths; none is a point in time.
package struct RenewalRules: Sendable, Hashable {
    /// For how long after its first use the provider takes a refresh token again. Zero where it never does. Where it is not
    /// known, `usualGrace`.
    package var grace: Duration
    /// Whether that is the provider's grace, and not what is assumed of it.
    package var isGraceKnown = true
    /// The longest that one call to the provider takes.
    package var callLimit: Duration
    /// How long before the end of the grace a call has to begin, so that it arrives within it.
    package var transit: Duration
    /// For how long a process that may hold what a refresh token was exchanged for has its turn to store that, from when it
    /// can reach the store again, before another process presents the token beyond the grace.
    package var turn: Duration
    /// For how long after its lease has ended such a process is waited for at least, before another process presents the token
    /// beyond the grace: that ends the session unless the token was never presented.
    package var patience: Duration
    /// The waits between the calls of one renewal: one call more than there are waits.
    package var waits: [Duration]

    /// What is assumed of a provider that says nothing: 10 s.
    package static let usualGrace: Duration = .seconds(10)
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

    /// How long the turn is within the grace: a process that has something to store tries to every second. 1.5 s.
    package var turnWithinGrace: Duration = .milliseconds(1500)

    /// What a process needs to read a lease and to take it over, so that the call still comes within the grace. Half a
    /// second.
    package var takeover: Duration = .milliseconds(500)

    /// How long a lease lasts from its claim, and from each extension; nil for a third of the grace, so that another process
    /// has two thirds of it left when the holder dies; two seconds at least and five at most.
    package var span: Duration?

    package var leaseSpan: Duration { span ?? min(Self.longestLease, max(Self.shortestLease, grace / 3)) }

    /// How often the holder extends its lease while it waits.
    package var extensionInterval: Duration { leaseSpan / 2 }

    /// How long to wait for the answer to a call that begins so long after the token's first use: half of what is left of
    /// the grace, so that there is time to ask again; all of `callLimit` where that leaves too little for an answer, none
    /// was left, or the provider may have no grace: then giving up a slow call loses the session.
    func limit(ofCallBegunAfter sinceFirstUse: Duration) -> Duration {
        guard isGraceKnown else { return callLimit }
        let half = (grace - transit - sinceFirstUse) / 2
        return half < Self.shortestCall ? callLimit : min(half, callLimit)
    }

    /// Whether a call that begins now presents the token within the grace.
    func isWithinGrace(_ sinceFirstUse: Duration) -> Bool { sinceFirstUse + transit <= grace }

    /// The same for a first use that may not be known: then it may have been long ago.
    package func isWithinGrace(_ sinceFirstUse: Duration?) -> Bool { sinceFirstUse.map(isWithinGrace) ?? false }

    /// When a lease that another attempt has left may be taken over.
    /// - Parameter storeReachableFor: for how long this process has reached the store without a failure.
    /// - Returns: zero or less for at once, else after how long to look again.
    package func waitBeforeTakingOver(_ lease: StandingLease, storeReachableFor: Duration) -> Duration {
        if !lease.mayBeHeld { return .zero }
        if lease.stands { return lease.remaining }
        var sinceReturn = turn - storeReachableFor
        if let age = lease.sinceFirstUse, isWithinGrace(age) {
            // Two successors of one token do no harm; but the first is better, and its holder may only wait for the store.
            sinceReturn = min(turn, turnWithinGrace) - storeReachableFor
            return min(sinceReturn, grace - transit - takeover - age)
        }
        // To present the token now would end the session if the holder lives and has its successor.
        return max(sinceReturn, patience + lease.remaining)
    }
}

/// A lease as it stands on a record, by the store's clock.
package struct StandingLease: Sendable, Hashable {
    package var holder: String
    /// What is left of it; zero or less where it has ended, since so long.
    package var remaining: Duration
    /// How long ago the record's refresh token may have been presented first; nil where that is not known.
    package var sinceFirstUse: Duration?
    /// Whether its holder has said that it has nothing in its hands.
    package var isGivenUp: Bool
    /// Whether this process knows that nothing comes of the holder any more: it was an attempt of this process that has
    /// ended, or of a predecessor whose journal this process has.
    package var isHolderGone: Bool
    /// Whether an earlier holder may have what the refresh token was exchanged for, and has not had its turn to store it: the
    /// lease was taken over from it within the grace.
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

    /// Whether a process may have what the refresh token was exchanged for.
    var mayBeHeld: Bool { isOpen || !isGivenUp && !isHolderGone }

    /// Whether the renewal may be under way.
    package var stands: Bool { !isGivenUp && !isHolderGone && remaining > .zero }
}
