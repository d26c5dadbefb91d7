import Renewal
import Testing

/// What one attempt does next, where a simulated world has shown that sessions were lost.
@Suite struct `An attempt to renew` {
    private static let rules = RenewalRules(
        grace: .seconds(10), callLimit: .seconds(10),
        waits: [.milliseconds(500), .seconds(1), .seconds(2), .seconds(4), .seconds(8)], patience: .seconds(30))

    /// Steps of an attempt, each with the time that it takes.
    private struct Run {
        var attempt: RenewalAttempt
        var now: Duration = .zero
        var hasGoneBack = false

        init(waits: Bool = true) { attempt = RenewalAttempt(rules: rules, waits: waits) }

        @discardableResult
        mutating func next(_ outcome: RenewalAttempt.Outcome, after span: Duration = .zero) -> RenewalAttempt.Step {
            let asked = now
            now += span
            return attempt.next(
                outcome, now: now, asked: asked, storeReachableFor: .seconds(100), storeHasGoneBack: hasGoneBack)
        }

        /// Takes a lease and asks the provider.
        mutating func ask() -> RenewalAttempt.Step {
            next(.begun)
            next(.stands(RenewalAttempt.Standing(version: 1, isDue: true, lease: nil)))
            return next(.claimed)
        }
    }

    // H078
    @Test(arguments: [(3.3, true), (3.4, false)])
    func `presents a token that may be spent while the store is away only as long as its lease stands`(
        seconds: Double, isPresented: Bool
    ) {
        var run = Run()
        _ = run.ask()
        #expect(run.next(.unknown(.scheduled)) == .pause(.milliseconds(500)))
        #expect(
            run.next(.waited, after: .milliseconds(500)) == .claim(version: 1, over: nil, overdue: .zero, isOpen: false)
        )
        let step = run.next(.storeAway, after: .seconds(seconds) - .milliseconds(500))
        if case .ask = step {
            #expect(isPresented)
        } else {
            #expect(!isPresented && step == .release(version: 1, .unknown))
        }
    }

    @Test func `presents it as long as the lease stands that the driver has extended`() {
        var run = Run()
        _ = run.ask()
        run.next(.unknown(.scheduled))
        run.next(.waited, after: .milliseconds(500))
        run.attempt.leaseExtended(asked: .seconds(2))
        guard case .ask(let latest, _) = run.next(.storeAway, after: .seconds(4)) else {
            Issue.record("not presented")
            return
        }
        #expect(latest == .seconds(2) + Self.rules.leaseSpan)
    }

    /// No other process may call during the pause, of two seconds after the third call.
    @Test(arguments: [(2.9, false), (3.0, true)])
    func `hands its lease over when its next call would come in the second half of the grace`(
        seconds: Double, handsOver: Bool
    ) {
        var run = Run()
        _ = run.ask()
        for wait in [0.5, 1] {
            #expect(run.next(.unanswered(.scheduled)) == .pause(.seconds(wait)))
            run.next(.waited, after: .seconds(wait))
            run.next(.claimed)
        }
        let step = run.next(.unanswered(.scheduled), after: .seconds(seconds - 1.5))
        #expect(step == (handsOver ? .handOver(version: 1, isOpen: false) : .pause(.seconds(2))))
    }

    @Test(arguments: [(3.3, false), (3.4, true)])
    func `hands its lease over when no answer has come for a third of the grace`(seconds: Double, handsOver: Bool) {
        var run = Run()
        _ = run.ask()
        let step = run.next(.unanswered(.scheduled), after: .seconds(seconds))
        #expect(step == (handsOver ? .handOver(version: 1, isOpen: false) : .pause(.milliseconds(500))))
    }

    @Test func `makes all calls itself where no other process has the token, the last one within the grace`() {
        var run = Run()
        run.attempt.rules.handsOver = false
        _ = run.ask()
        for wait in [0.5, 1, 2, 4, 1.5] {
            #expect(run.next(.unanswered(.scheduled)) == .pause(.seconds(wait)))
            run.next(.waited, after: .seconds(wait))
            run.next(.claimed)
        }
        #expect(run.next(.unanswered(.scheduled)) == .release(version: 1, .unknown))
    }

    @Test func `takes a lease again that no other process has taken in its turn`() {
        var run = Run()
        _ = run.ask()
        run.next(.unanswered(.scheduled), after: .seconds(4))
        #expect(run.next(.stored) == .wait(.seconds(1)))
        let lease = StandingLease(
            holder: "own", remaining: .zero, sinceFirstUse: .milliseconds(4500), isGivenUp: true, isHolderGone: true)
        let standing = RenewalAttempt.Standing(version: 1, isDue: true, lease: lease)
        // News of its own release wake it too early.
        #expect(run.next(.waited, after: .milliseconds(500)) == .read)
        #expect(run.next(.stands(standing)) == .wait(.milliseconds(500)))
        #expect(run.next(.waited, after: .milliseconds(500)) == .read)
        #expect(run.next(.stands(standing)) == .claim(version: 1, over: "own", overdue: .zero, isOpen: false))
    }

    /// The driver tells of each extension again at each step. This one was of the lease that was handed over.
    @Test func `presents no token under a lease that it has handed over, however late that was extended`() {
        var run = Run()
        _ = run.ask()
        run.attempt.leaseExtended(asked: .seconds(3))
        run.next(.unanswered(.scheduled), after: .seconds(4))
        #expect(run.next(.stored) == .wait(.seconds(1)))
        run.attempt.leaseExtended(asked: .seconds(3))
        let lease = StandingLease(
            holder: "own", remaining: .zero, sinceFirstUse: .seconds(5), isGivenUp: true, isHolderGone: true)
        run.next(.waited, after: .seconds(1))
        run.attempt.leaseExtended(asked: .seconds(3))
        #expect(
            run.next(.stands(RenewalAttempt.Standing(version: 1, isDue: true, lease: lease)))
                == .claim(version: 1, over: "own", overdue: .zero, isOpen: false))
        run.attempt.leaseExtended(asked: .seconds(3))
        #expect(run.next(.storeAway, after: .milliseconds(10)) == .release(version: 1, .unknown))
    }

    @Test func `ends where the store does not say whether the lease is handed over`() {
        var run = Run()
        _ = run.ask()
        run.next(.unanswered(.scheduled), after: .seconds(4))
        #expect(run.next(.storeAway) == .finish(.failed))
    }

    @Test func `counts the grace from the first call that may have reached the provider`() {
        var run = Run()
        _ = run.ask()
        run.next(.notAsked(.scheduled), after: .seconds(5))
        run.next(.waited, after: .milliseconds(500))
        guard case .ask(_, let limit) = run.next(.claimed) else {
            Issue.record("not asked")
            return
        }
        #expect(limit == .milliseconds(4500))
    }

    /// A background attempt looks about every half second: it waits for the last moment itself.
    @Test(arguments: [(7.4, false), (7.6, true), (8.4, true)])
    func `waits for the last moment within the grace to take a lease over`(age: Double, waits: Bool) {
        var run = Run(waits: false)
        run.next(.begun)
        let lease = StandingLease(holder: "other", remaining: .seconds(-1), sinceFirstUse: .seconds(age))
        let step = run.attempt.next(
            .stands(RenewalAttempt.Standing(version: 1, isDue: true, lease: lease)), now: .zero, asked: .zero,
            storeReachableFor: .zero, storeHasGoneBack: false)
        #expect(step == (waits ? .wait(.seconds(8.5) - .seconds(age)) : .finish(.busy)))
    }

    @Test func `leaves it to others to ask where the store has gone back after its claim`() {
        var run = Run()
        _ = run.ask()
        #expect(run.next(.withheld) == .release(version: 1, .unknown))
    }

    /// Just after a store has gone back, no process presents a token under the leases that it shows.
    @Test(arguments: [true, false]) func `heeds another's lease unless the store has just gone back`(isBack: Bool) {
        var run = Run()
        _ = run.ask()
        #expect(run.next(.granted) == .publish(over: 1, heedsLease: true))
        run.hasGoneBack = isBack
        let lease = StandingLease(holder: "other", remaining: .milliseconds(400), sinceFirstUse: .zero)
        let step = run.next(.conflict(.spent(version: 1, lease: lease)))
        #expect(step == (isBack ? .publish(over: 1, heedsLease: false) : .wait(.milliseconds(400))))
        if isBack { return }
        run.hasGoneBack = true
        #expect(run.next(.waited) == .publish(over: 1, heedsLease: false))
        // Where the store is away, what it says when it is back is another thing.
        #expect(run.next(.storeAway) == .writeJournal)
        run.hasGoneBack = false
        _ = run.next(.notJournaled)
        #expect(run.next(.waited) == .publish(over: 1, heedsLease: true))
    }

    // H078
    @Test(arguments: [(-29.0, 1.0), (-31.0, 0.0)])
    func `waits beyond the grace for a holder that may have a successor`(remaining: Double, wait: Double) {
        let lease = StandingLease(holder: "other", remaining: .seconds(remaining), sinceFirstUse: .seconds(60))
        let found = Self.rules.waitBeforeTakingOver(lease, storeReachableFor: .seconds(100))
        #expect(wait > 0 ? found == .seconds(wait) : found <= .zero)
    }
}
