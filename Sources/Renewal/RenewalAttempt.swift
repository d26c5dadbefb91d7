/// One attempt to renew one set of credentials: what it does next, as a function of what came of what it did last. It has
/// no store, clock or network; a driver carries the steps out.
///
/// Every moment is a length of time by the driver's monotonic clock.
package struct RenewalAttempt: Sendable, Hashable {
    /// What the driver is to do.
    package enum Step: Sendable, Hashable {
        /// Read the record and its lease.
        case read
        /// Wait until the record changes, at most so long.
        case wait(Duration)
        /// Take the lease on exactly this version, from the holder named where there is one; or extend it.
        /// - Parameters:
        ///   - overdue: for how long the lease of the holder before must have run out, if it has: as long as when it was
        ///     read. Where that holder has extended it since, it has another turn.
        ///   - isOpen: what the row is to say; see `StandingLease.isOpen`.
        case claim(version: Int64, over: String?, overdue: Duration, isOpen: Bool)
        /// Call the provider, unless that moment has passed: what held when the step was decided need not hold after it.
        /// The driver extends the lease meanwhile, every `RenewalRules.extensionInterval`.
        /// - Parameter limit: how long to wait for the answer.
        case ask(notAfter: Duration, limit: Duration)
        /// Wait between two calls, and extend the lease meanwhile.
        case pause(Duration)
        /// Store what was granted, in place of exactly this version.
        /// - Parameter heedsLease: whether another attempt's lease stands in the way.
        case publish(over: Int64, heedsLease: Bool)
        /// Keep what was granted in the journal, and serve it.
        case writeJournal
        /// Store that the provider has ended the session, in place of exactly this version.
        case publishEnd(over: Int64)
        /// Give the lease back.
        case release(version: Int64, Release)
        /// Give the lease back for a while, so that another process can try whether the provider answers it.
        /// - Parameter isOpen: see `Release.open`.
        case handOver(version: Int64, isOpen: Bool)
        case finish(Result)
    }

    /// What an attempt knows that gives its lease back.
    package enum Release: Sendable, Hashable {
        /// The refresh token is not spent: nothing stays of the lease.
        case settled
        /// The token may be spent, and no process has what it was exchanged for.
        case unknown
        /// The token may be spent, and the holder before may have what it was exchanged for. The lease ends at once, as if
        /// this holder had died.
        case open
    }

    package enum Result: Sendable, Hashable {
        /// What was granted is stored.
        case stored
        /// The session's end is stored.
        case ended
        /// Another change came first, or there is nothing to do.
        case overtaken
        /// The provider gave nothing.
        case failed
        /// The store could not be asked, and nothing was done.
        case storeAway
        /// Another attempt is under way, and this one was not to wait for it.
        case busy
    }

    /// What came of a step.
    package enum Outcome: Sendable, Hashable {
        case begun
        /// The record stands so.
        case stands(Standing)
        /// The store did not answer. What it was told may have been done.
        case storeAway
        /// The wait is over.
        case waited
        /// The lease is taken.
        case claimed
        /// The record is another one, or another attempt has the lease.
        case refused
        /// The provider granted new credentials.
        case granted
        /// The provider says that the session has ended.
        case sessionEnded
        /// The provider refused, and has not spent the refresh token.
        case denied
        /// An answer that does not tell: the refresh token may have been spent.
        case unknown(Retry)
        /// No answer: the same, and the provider may still come to the call.
        case unanswered(Retry)
        /// The provider gave nothing and has not spent the refresh token, and may be asked again.
        case notAsked(Retry)
        /// Nothing was sent: the store has gone back, and no process presents a token just now. It may have lost a claim
        /// under which another process has presented the same token.
        case withheld
        /// The process is about to end: others make the calls that are left.
        case stopped
        /// The moment had passed; nothing was sent.
        case tooLate
        /// It is stored.
        case stored
        /// Something else stands in the way.
        case conflict(Conflict)
        /// It is in the journal.
        case journaled
        /// There is no journal, or it does not take it.
        case notJournaled
    }

    /// When the provider may be asked again.
    package enum Retry: Sendable, Hashable {
        /// By the schedule.
        case scheduled
        /// Not before so long, as the provider has asked for.
        case notBefore(Duration)
        /// Not by this attempt: the provider asks for more patience than a caller has.
        case never
    }

    /// What a reader finds.
    package struct Standing: Sendable, Hashable {
        package var version: Int64
        /// Whether the credentials are to be renewed.
        package var isDue: Bool
        package var lease: StandingLease?
        /// How long the refresh token is not to be presented; see `RenewalAttempt.successorDelay`. Zero or less for at once.
        package var delay: Duration

        package init(version: Int64, isDue: Bool, lease: StandingLease?, delay: Duration = .zero) {
            self.delay = delay
            self.version = version
            self.isDue = isDue
            self.lease = lease
        }
    }

    /// What stands where the grant is to be stored.
    package enum Conflict: Sendable, Hashable {
        /// The grant itself: an earlier try has arrived.
        case same
        /// A login, a logout, or credentials that another attempt was granted.
        case other
        /// What the grant was exchanged for, or the mark that its refresh token was refused.
        /// - Parameter lease: another attempt's.
        case spent(version: Int64, lease: StandingLease?)
    }

    private enum Phase: Sendable, Hashable {
        case beginning, reading, waiting, claiming, asking, pausing, publishing, journaling, waitingToPublish
        case publishingEnd
        /// - Parameter wait: how long the turn of the other processes lasts.
        case handingOver(wait: Duration)
        case releasing(Result)
        case finished
    }

    private static let lateClaimLimit = 2
    /// Within which another process finds a lease that was handed over: each looks about twice a second.
    private static let handOverWait: Duration = .seconds(1)
    /// How long an attempt waits that waits for no other one: as long as until its process would look again.
    private static let shortWait: Duration = .seconds(1)
    /// How long it waits before it tries again to store what it was granted.
    private static let retryInterval: Duration = .seconds(1)

    /// Set anew by the driver after each look.
    package var rules: RenewalRules
    /// Whether it waits for another attempt.
    private let waits: Bool
    private var phase = Phase.beginning
    /// What the attempt replaces.
    private(set) package var version: Int64
    /// When the refresh token may have been presented first, by any attempt.
    private var firstUse: Duration?
    /// Whether the refresh token may have been spent by a call whose answer no process that lives may have.
    private(set) package var isUncertain = false
    /// Whether the provider may still come to an earlier call with the same refresh token.
    private var mayCallBeUnderWay = false
    private(set) package var calls = 0
    private var looks = 0
    private var lateClaims = 0
    /// Until when this attempt's lease stands at least.
    private var leaseEnd: Duration?
    /// Until when other processes have their turn after this one has handed the lease over.
    private var othersTurnEnd: Duration?
    /// Whether what was granted is in the journal.
    private var isJournaled = false
    /// Whether the holder before may have what the refresh token was exchanged for, and has not had its turn to store it.
    private var mayOtherHaveGrant = false

    /// Whether its lease says that the holder before may store what it was granted.
    package var isOpen: Bool { mayOtherHaveGrant }

    /// Whether the refresh token would be presented within the grace at that time, or was not presented yet.
    package func isWithinGrace(at time: Duration) -> Bool { firstUse.map { rules.isWithinGrace(time - $0) } ?? true }

    /// How long the refresh token that was granted rests. Once it is used, many providers take its predecessor for stolen,
    /// whatever grace they give, and revoke the session: so an earlier call that the provider has not answered is given as
    /// long again as a call may take.
    package var successorDelay: Duration { mayCallBeUnderWay ? rules.callLimit : .zero }

    /// An attempt that has nothing yet.
    /// - Parameter waits: whether it waits for another attempt, as for a caller, or leaves it alone.
    package init(rules: RenewalRules, waits: Bool) {
        self.rules = rules
        self.waits = waits
        version = 0
    }

    /// An attempt that goes on with what an earlier process was granted and left in the journal.
    /// - Parameter version: what the grant was exchanged for.
    package init(rules: RenewalRules, journaledOver version: Int64) {
        self.rules = rules
        self.version = version
        waits = true
        phase = .journaling
        isJournaled = true
    }

    /// The same attempt, with its times counted from a later moment of the driver's clock. What is so long ago that nothing
    /// depends on how long it is counts as the shortest such.
    package func counted(from origin: Duration) -> RenewalAttempt {
        var attempt = self
        attempt.firstUse = firstUse.map { max($0 - origin, .zero - rules.grace - .seconds(1)) }
        attempt.othersTurnEnd = othersTurnEnd.map { max($0 - origin, .zero) }
        attempt.leaseEnd = leaseEnd.map { $0 - origin }
        return attempt
    }

    /// The driver has extended the lease.
    /// - Parameter asked: when it began to, by its monotonic clock.
    package mutating func leaseExtended(asked: Duration) {
        let end = asked + rules.leaseSpan
        leaseEnd = leaseEnd.map { max($0, end) } ?? end
    }

    /// The next step.
    /// - Parameters:
    ///   - outcome: of the last step; `begun` at first.
    ///   - now: by the driver's monotonic clock.
    ///   - asked: when the last step began, by that clock.
    ///   - storeReachableFor: for how long this process has reached the store without a failure.
    ///   - storeHasGoneBack: whether the store has gone back so recently that no process presents a token. The leases that it
    ///     shows are those of attempts that ended before, or that will not ask: they keep no grant from being stored.
    package mutating func next(
        _ outcome: Outcome, now: Duration, asked: Duration, storeReachableFor: Duration, storeHasGoneBack: Bool
    ) -> Step {
        switch (phase, outcome) {
        case (.beginning, .begun), (.waiting, .waited):
            phase = .reading
            return .read
        case (.reading, .stands(let standing)):
            return begin(standing, readAt: asked, storeReachableFor)
        case (.reading, .storeAway):
            return finish(.storeAway)

        case (.claiming, .claimed):
            firstUse = firstUse ?? asked
            leaseEnd = asked + rules.leaseSpan
            return ask(until: asked + rules.leaseSpan, now)
        case (.claiming, .refused):
            // The record is another one, or another attempt has the lease: that decides what happens next.
            return calls > 0 ? finish(.overtaken) : readAgain()
        case (.claiming, .storeAway):
            if calls == 0 { return finish(.storeAway) }
            // The token may be spent, and the store is away just now. As long as this attempt's lease stands, no other process
            // presents the token, and it is presented all the same. Later another process may have exchanged it, and used
            // what it was given, which ends the provider's grace.
            if isUncertain, let leaseEnd, now <= leaseEnd { return ask(until: leaseEnd, now) }
            return release(.failed)

        case (.asking, .granted):
            phase = .publishing
            return .publish(over: version, heedsLease: !storeHasGoneBack)
        case (.asking, .sessionEnded):
            phase = .publishingEnd
            return .publishEnd(over: version)
        case (.asking, .denied):
            return release(.failed)
        case (.asking, .withheld):
            isUncertain = true
            return release(.failed)
        case (.asking, .unknown(let retry)):
            isUncertain = true
            return pauseBeforeNextCall(retry, now)
        case (.asking, .unanswered(let retry)):
            (isUncertain, mayCallBeUnderWay) = (true, true)
            return pauseBeforeNextCall(retry, now)
        case (.asking, .notAsked(let retry)):
            // Nothing was presented yet: the grace begins with a later call.
            if !isUncertain { firstUse = nil }
            return pauseBeforeNextCall(retry, now)
        case (.pausing, .waited):
            return claim(over: nil)
        case (.pausing, .stopped), (.pausing, .denied):
            return release(.failed)
        case (.asking, .tooLate):
            calls -= 1
            lateClaims += 1
            if !isUncertain { firstUse = nil }
            // A store that is slower than the lease is long is too slow for what a call would bring.
            return lateClaims > Self.lateClaimLimit ? release(.failed) : claim(over: nil)

        case (.publishing, .stored):
            return finish(.stored)
        case (.publishing, .conflict(let conflict)):
            return meet(conflict, storeHasGoneBack)
        case (.publishing, .storeAway):
            if isJournaled { return waitToPublish() }
            phase = .journaling
            return .writeJournal
        case (.journaling, .begun):
            // What a predecessor left comes before everything else.
            phase = .publishing
            return .publish(over: version, heedsLease: !storeHasGoneBack)
        case (.journaling, .journaled):
            isJournaled = true
            return waitToPublish()
        case (.journaling, .notJournaled):
            return waitToPublish()
        case (.waitingToPublish, .waited):
            phase = .publishing
            return .publish(over: version, heedsLease: !storeHasGoneBack)

        case (.publishingEnd, .stored):
            return finish(.ended)
        case (.publishingEnd, .conflict), (.publishingEnd, .storeAway):
            // What stands decides, or the next attempt finds the session ended once more.
            return finish(outcome == .storeAway ? .storeAway : .overtaken)

        case (.handingOver(let wait), .stored):
            (othersTurnEnd, leaseEnd) = (now + wait, nil)
            phase = .waiting
            return .wait(wait)
        case (.handingOver, .storeAway):
            // The release may take effect later, and then on a lease that this attempt had taken again.
            return finish(.failed)
        case (.handingOver, .conflict), (.handingOver, .refused):
            return finish(.overtaken)

        case (.releasing(let result), _):
            return finish(result)
        default:
            preconditionFailure("\(outcome) after \(phase)")
        }
    }

    private mutating func begin(
        _ standing: Standing, readAt: Duration, _ storeReachableFor: Duration
    ) -> Step {
        let knownUse = standing.version == version ? firstUse : nil
        version = standing.version
        (firstUse, isUncertain, mayCallBeUnderWay, mayOtherHaveGrant) = (nil, false, false, false)
        if standing.isDue, standing.delay > .zero {
            phase = .waiting
            return .wait(standing.delay)
        }
        guard let lease = standing.lease else {
            return standing.isDue ? claim(over: nil) : finish(.overtaken)
        }
        guard standing.isDue || !lease.stands else { return finish(.overtaken) }
        var wait = rules.waitBeforeTakingOver(lease, storeReachableFor: storeReachableFor)
        if let othersTurnEnd, !lease.stands { wait = max(wait, othersTurnEnd - readAt) }
        if wait > .zero {
            // The end of a grace is not to be missed between two looks.
            if !waits, lease.stands || wait > Self.shortWait && othersTurnEnd == nil { return finish(.busy) }
            firstUse = knownUse
            phase = .waiting
            return .wait(wait)
        }
        isUncertain = true
        mayCallBeUnderWay = lease.remaining > .zero - rules.callLimit
        // Both are never later than the token's first use.
        firstUse = [knownUse, lease.sinceFirstUse.map { readAt - $0 }].compactMap(\.self).max()
        mayOtherHaveGrant = lease.mayBeHeld && (lease.sinceFirstUse.map(rules.isWithinGrace) ?? false)
        return claim(over: lease.holder, overdue: max(.zero, .zero - lease.remaining))
    }

    private mutating func readAgain() -> Step {
        looks += 1
        if looks >= 16 { return finish(.overtaken) }
        // The lease tells it anew.
        firstUse = nil
        phase = .reading
        return .read
    }

    private mutating func claim(over holder: String?, overdue: Duration = .zero) -> Step {
        phase = .claiming
        return .claim(version: version, over: holder, overdue: overdue, isOpen: mayOtherHaveGrant)
    }

    /// - Parameter end: until when no other attempt has the right to present the token.
    private mutating func ask(until end: Duration, _ now: Duration) -> Step {
        var end = end
        if isUncertain, mayOtherHaveGrant, let firstUse {
            // Later than the grace, only the holder before could still save the session.
            guard rules.isWithinGrace(now - firstUse) else { return release(.failed) }
            end = min(end, firstUse + rules.grace - rules.transit)
        }
        calls += 1
        phase = .asking
        return .ask(notAfter: end, limit: rules.limit(ofCallBegunAfter: firstUse.map { now - $0 } ?? .zero))
    }

    private mutating func pauseBeforeNextCall(_ retry: Retry, _ now: Duration) -> Step {
        guard calls <= rules.waits.count, retry != .never else { return release(.failed) }
        phase = .pausing
        var wait = rules.waits[calls - 1]
        if case .notBefore(let duration) = retry, duration > wait {
            // The provider has said that an earlier call brings nothing.
            return .pause(duration)
        }
        if isUncertain, let firstUse {
            // Better the last call within the grace than later.
            let age = now - firstUse
            let left = rules.grace - rules.transit - age
            if left >= .zero {
                wait = min(wait, left)
                // The provider may answer another process where it does not answer this one, and no other process may call
                // during the pause. A call that follows at once is of another kind.
                if age >= rules.grace / 3 || age + wait >= rules.grace / 2, rules.waits[calls - 1] > .zero {
                    // The rest of the grace is shared out among more calls than one.
                    phase = .handingOver(wait: min(left, max(Self.handOverWait, min(wait, Self.third(of: left)))))
                    return .handOver(version: version, isOpen: mayOtherHaveGrant)
                }
            }
        }
        return .pause(wait)
    }

    /// In whole milliseconds, so that a wait leaves no splinter to wait for.
    private static func third(of span: Duration) -> Duration {
        let (seconds, attoseconds) = (span / 3).components
        return .seconds(seconds) + .milliseconds(attoseconds / 1_000_000_000_000_000)
    }

    private mutating func release(_ result: Result) -> Step {
        phase = .releasing(result)
        return .release(version: version, isUncertain ? mayOtherHaveGrant ? .open : .unknown : .settled)
    }

    private mutating func waitToPublish() -> Step {
        phase = .waitingToPublish
        return .wait(Self.retryInterval)
    }

    private mutating func meet(_ conflict: Conflict, _ storeHasGoneBack: Bool) -> Step {
        switch conflict {
        case .same: return finish(.stored)
        case .other: return finish(.overtaken)
        case .spent(let standing, let lease):
            version = standing
            if !storeHasGoneBack, let lease, lease.stands, lease.sinceFirstUse.map(rules.isWithinGrace) ?? true {
                // It presents the token that this attempt has exchanged, and what it is granted is the newer one.
                phase = .waitingToPublish
                return .wait(min(lease.remaining, Self.retryInterval))
            }
            // Later than the grace it is granted nothing.
            return .publish(over: standing, heedsLease: false)
        }
    }

    private mutating func finish(_ result: Result) -> Step {
        phase = .finished
        return .finish(result)
    }
}
