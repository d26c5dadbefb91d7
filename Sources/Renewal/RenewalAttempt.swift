/// One attempt to renew one set of credentials, as a state machine: the outcome of the last step determines the next
/// step. It has no store, clock or network; a driver carries out the steps.
///
/// A point in time is a `Duration` since the origin of the driver's monotonic clock. The successor of a refresh token
/// is the grant that the provider gave in exchange for it.
package struct RenewalAttempt: Sendable, Hashable {
    /// A step that the driver must carry out.
    package enum Step: Sendable, Hashable {
        /// Read the record and its lease.
        case read
        /// Wait until the record changes, at most for this duration.
        case wait(Duration)
        /// Take or extend the lease on exactly this version. `over` is the previous holder; nil if the record has no
        /// lease or the lease is the attempt's own.
        /// - Parameters:
        ///   - overdue: the least time since the expiry of the previous holder's lease, as it was when the lease was
        ///     read. If that holder has extended its lease since then, the claim is refused.
        ///   - isOpen: the value to store in the row; see `StandingLease.isOpen`.
        case claim(version: Int64, over: String?, overdue: Duration, isOpen: Bool)
        /// Call the provider, unless `notAfter` has passed, because then the reasons for the call may no longer hold.
        /// During the call the driver extends the lease every `RenewalRules.extensionInterval`.
        /// - Parameter limit: the time limit of the call.
        case ask(notAfter: Duration, limit: Duration)
        /// Wait between two calls, and extend the lease during the wait.
        case pause(Duration)
        /// Store the grant as a replacement of exactly this version.
        /// - Parameter heedsLease: whether another attempt's lease prevents this.
        case publish(over: Int64, heedsLease: Bool)
        /// Write the grant to the journal, and serve it.
        case writeJournal
        /// Store that the provider has ended the session, as a replacement of exactly this version.
        case publishEnd(over: Int64)
        /// Give the lease up.
        case release(version: Int64, Release)
        /// Give the lease up for a while, so that another process can try to get an answer from the provider.
        /// - Parameter isOpen: see `Release.open`.
        case handOver(version: Int64, isOpen: Bool)
        case finish(Result)
    }

    /// The knowledge of an attempt that gives its lease up.
    package enum Release: Sendable, Hashable {
        /// The refresh token was not consumed. The lease is removed.
        case settled
        /// The token may have been consumed, and no process has its successor.
        case unknown
        /// The token may have been consumed, and the previous holder may have its successor. The lease expires at once,
        /// as if this holder had died.
        case open
    }

    package enum Result: Sendable, Hashable {
        /// The grant is stored.
        case stored
        /// The end of the session is stored.
        case ended
        /// Another change was stored first, or no renewal is necessary.
        case overtaken
        /// The provider granted nothing.
        case failed
        /// The store did not answer, and nothing was done.
        case storeAway
        /// Another attempt is running, and this attempt does not wait for it.
        case busy
    }

    /// The outcome of a step.
    package enum Outcome: Sendable, Hashable {
        case begun
        /// The record was read.
        case stands(Standing)
        /// The store did not answer. The change may have been made.
        case storeAway
        /// The wait is over.
        case waited
        /// The lease was taken or extended.
        case claimed
        /// The record has changed, or another attempt has the lease.
        case refused
        /// The provider granted new credentials.
        case granted
        /// The provider answered that the session has ended.
        case sessionEnded
        /// The provider refused and did not consume the refresh token.
        case denied
        /// The answer does not show whether the refresh token was consumed.
        case unknown(Retry)
        /// There was no answer. The refresh token may have been consumed, and the provider may still process the call.
        case unanswered(Retry)
        /// The provider granted nothing and did not consume the refresh token. The call may be repeated.
        case notAsked(Retry)
        /// Nothing was sent, because the store has lost commits, and for a while no process presents a token. The store
        /// may have lost the claim of a process that has presented the same token.
        case withheld
        /// The process is ending. Other processes make the remaining calls.
        case stopped
        /// `notAfter` had passed, and nothing was sent.
        case tooLate
        /// It is stored.
        case stored
        /// The record has changed.
        case conflict(Conflict)
        /// The grant is in the journal.
        case journaled
        /// There is no journal, or it could not be written.
        case notJournaled
    }

    /// When the call may be repeated.
    package enum Retry: Sendable, Hashable {
        /// After the wait of the schedule.
        case scheduled
        /// After this duration, which the provider asked for, or later.
        case notBefore(Duration)
        /// Not by this attempt, because the provider asks for a longer wait than a caller accepts.
        case never
    }

    /// The state of the record.
    package struct Standing: Sendable, Hashable {
        package var version: Int64
        /// Whether the credentials must be renewed.
        package var isDue: Bool
        package var lease: StandingLease?
        /// For how long the refresh token must not be presented yet; see `RenewalAttempt.successorDelay`. Zero or less
        /// if it may be presented at once.
        package var delay: Duration

        package init(version: Int64, isDue: Bool, lease: StandingLease?, delay: Duration = .zero) {
            self.delay = delay
            self.version = version
            self.isDue = isDue
            self.lease = lease
        }
    }

    /// The content of the record at which storing the grant failed.
    package enum Conflict: Sendable, Hashable {
        /// The grant itself, from an earlier attempt to store it.
        case same
        /// A login, a logout, or the grant of another attempt.
        case other
        /// The credentials whose refresh token was exchanged for the grant, or the empty record that the refusal of that
        /// token left.
        /// - Parameter lease: the lease of another attempt.
        case spent(version: Int64, lease: StandingLease?)
    }

    private enum Phase: Sendable, Hashable {
        case beginning, reading, waiting, claiming, asking, pausing, publishing, journaling, waitingToPublish
        case publishingEnd
        /// - Parameter wait: the time that the other processes have.
        case handingOver(wait: Duration)
        case releasing(Result)
        case finished
    }

    private static let lateClaimLimit = 2
    /// The time within which another process finds a lease that was handed over. Each process looks about twice a
    /// second.
    private static let handOverWait: Duration = .seconds(1)
    /// The longest wait of an attempt that does not wait for other attempts. Its process looks again after this time
    /// anyway.
    private static let shortWait: Duration = .seconds(1)
    /// The wait before the next attempt to store the grant.
    private static let retryInterval: Duration = .seconds(1)

    /// The driver updates them each time it has read the record.
    package var rules: RenewalRules
    /// Whether this attempt waits for another attempt.
    private let waits: Bool
    private var phase = Phase.beginning
    /// The version of the record that the attempt replaces.
    private(set) package var version: Int64
    /// The earliest time at which any attempt may have presented the refresh token; nil if it was not presented, or the
    /// time is not known.
    private var firstUse: Duration?
    /// Whether the refresh token may have been consumed by a call whose answer may have reached no living process.
    private(set) package var isUncertain = false
    /// Whether the provider may still process an earlier call with the same refresh token.
    private var mayCallBeUnderWay = false
    private(set) package var calls = 0
    private var looks = 0
    private var lateClaims = 0
    /// The earliest possible end of this attempt's lease.
    private var leaseEnd: Duration?
    /// The time until which other processes may take the lease that this attempt has handed over.
    private var othersTurnEnd: Duration?
    /// Whether the grant is in the journal.
    private var isJournaled = false
    /// Whether the previous holder may have the successor of the refresh token, and may still store it.
    private var mayOtherHaveGrant = false

    /// Whether this attempt's lease records that the previous holder may still store its grant.
    package var isOpen: Bool { mayOtherHaveGrant }

    /// Whether a call at this time presents the refresh token within the grace. True if the token was not presented
    /// yet.
    package func isWithinGrace(at time: Duration) -> Bool { firstUse.map { rules.isWithinGrace(time - $0) } ?? true }

    /// The time for which the granted refresh token must not be used. Once it is used, many providers treat its
    /// predecessor as stolen, whatever their grace, and revoke the session. So if the provider may still process an
    /// earlier call with the predecessor, this is the time limit of a call; otherwise zero.
    package var successorDelay: Duration { mayCallBeUnderWay ? rules.callLimit : .zero }

    /// Creates an attempt that begins by reading the record.
    /// - Parameter waits: whether it waits for another attempt, as it does for a caller. If not, it ends as `busy`.
    package init(rules: RenewalRules, waits: Bool) {
        self.rules = rules
        self.waits = waits
        version = 0
    }

    /// Creates an attempt that stores a grant which an earlier process left in the journal.
    /// - Parameter version: the version of the credentials whose refresh token was exchanged for the grant.
    package init(rules: RenewalRules, journaledOver version: Int64) {
        self.rules = rules
        self.version = version
        waits = true
        phase = .journaling
        isJournaled = true
    }

    /// This attempt with its times counted from a later origin. A time that is so long ago that its exact value has no
    /// effect is replaced by the latest such time, so that equal situations are equal values.
    package func counted(from origin: Duration) -> RenewalAttempt {
        var attempt = self
        attempt.firstUse = firstUse.map { max($0 - origin, .zero - rules.grace - .seconds(1)) }
        attempt.othersTurnEnd = othersTurnEnd.map { max($0 - origin, .zero) }
        attempt.leaseEnd = leaseEnd.map { $0 - origin }
        return attempt
    }

    /// Notes that the driver has extended the lease. Has no effect on an attempt that has no lease: the driver then extended
    /// a lease that the attempt has handed over since.
    /// - Parameter asked: when the driver began the extension, by its monotonic clock.
    package mutating func leaseExtended(asked: Duration) {
        leaseEnd = leaseEnd.map { max($0, asked + rules.leaseSpan) }
    }

    /// The next step.
    /// - Parameters:
    ///   - outcome: the outcome of the last step; `begun` at first.
    ///   - now: the time by the driver's monotonic clock.
    ///   - asked: the time at which the last step began, by the same clock.
    ///   - storeReachableFor: the time for which this process has reached the store without a failure.
    ///   - storeHasGoneBack: whether the store lost commits so recently that no process presents a token. Its leases
    ///     then belong to attempts that ended before the loss or will not call the provider, so they do not prevent
    ///     storing a grant.
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
            // The record has changed, or another attempt has the lease. The new state decides what happens next.
            return calls > 0 ? finish(.overtaken) : readAgain()
        case (.claiming, .storeAway):
            if calls == 0 { return finish(.storeAway) }
            // The token may have been consumed, and the store does not answer. While this attempt's lease lasts, no
            // other process presents the token, so this attempt presents it. Afterwards another process may have
            // exchanged the token and used its successor, which ends the provider's grace.
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
            // The token was not presented, so the grace begins with a later call.
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
            // If claims take longer than the lease lasts, the store is too slow to store a grant.
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
            // The grant of an earlier process is stored before anything else.
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
            // The new record decides, or the next attempt finds again that the session has ended.
            return finish(outcome == .storeAway ? .storeAway : .overtaken)

        case (.handingOver(let wait), .stored):
            (othersTurnEnd, leaseEnd) = (now + wait, nil)
            phase = .waiting
            return .wait(wait)
        case (.handingOver, .storeAway):
            // The release may take effect later. If this attempt took the lease again, that release would end the new
            // lease.
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
            // A short wait is accepted, so that the end of a grace is not missed before the process looks again.
            if !waits, lease.stands || wait > Self.shortWait && othersTurnEnd == nil { return finish(.busy) }
            firstUse = knownUse
            phase = .waiting
            return .wait(wait)
        }
        isUncertain = true
        mayCallBeUnderWay = lease.remaining > .zero - rules.callLimit
        // Neither time is later than the token's first use.
        firstUse = [knownUse, lease.sinceFirstUse.map { readAt - $0 }].compactMap(\.self).max()
        mayOtherHaveGrant = lease.mayBeHeld && (lease.sinceFirstUse.map(rules.isWithinGrace) ?? false)
        return claim(over: lease.holder, overdue: max(.zero, .zero - lease.remaining))
    }

    private mutating func readAgain() -> Step {
        looks += 1
        if looks >= 16 { return finish(.overtaken) }
        // The new lease has the time of the first use.
        firstUse = nil
        phase = .reading
        return .read
    }

    private mutating func claim(over holder: String?, overdue: Duration = .zero) -> Step {
        phase = .claiming
        return .claim(version: version, over: holder, overdue: overdue, isOpen: mayOtherHaveGrant)
    }

    /// - Parameter end: the time until which no other attempt may present the token.
    private mutating func ask(until end: Duration, _ now: Duration) -> Step {
        var end = end
        if isUncertain, mayOtherHaveGrant, let firstUse {
            // After the grace only the previous holder can still save the session.
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
            // The provider has said that an earlier call would be refused.
            return .pause(duration)
        }
        if isUncertain, !rules.keepsWaits, let firstUse {
            // The last call must be made within the grace if possible.
            let age = now - firstUse
            let left = rules.grace - rules.transit - age
            if left >= .zero {
                wait = min(wait, left)
                // The provider may answer another process although it does not answer this one, and during a pause no
                // other process may call. A wait of zero is not a pause: then this attempt calls again at once.
                if rules.handsOver, age >= rules.grace / 3 || age + wait >= rules.grace / 2,
                    rules.waits[calls - 1] > .zero
                {
                    // The other processes get a part of the remaining grace, so that several calls are possible.
                    phase = .handingOver(wait: min(left, max(Self.handOverWait, min(wait, Self.third(of: left)))))
                    return .handOver(version: version, isOpen: mayOtherHaveGrant)
                }
            }
        }
        return .pause(wait)
    }

    /// A third of the span in whole milliseconds, so that no fraction of a millisecond remains to be waited for.
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
                // The other attempt presents the token that this attempt has exchanged, and its grant would be newer.
                phase = .waitingToPublish
                return .wait(min(lease.remaining, Self.retryInterval))
            }
            // After the grace the other attempt gets no grant.
            return .publish(over: standing, heedsLease: false)
        }
    }

    private mutating func finish(_ result: Result) -> Step {
        phase = .finished
        return .finish(result)
    }
}
