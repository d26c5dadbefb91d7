import Renewal

/// What an attempt is to do, in six bytes.
struct Step {
    enum Kind: UInt8 {
        case none, read, wait, claim, ask, pause, publish, writeJournal, publishEnd, release, handOver, finish
    }

    var kind = Kind.none
    var version: UInt8 = 0
    /// Of a claim: 1 where the row is to say that it is open, 2 where it names the holder before, 4 for an
    /// attempt's first. Of a publication: 1 where it
    /// heeds leases. Of a release: see `Release`. Of a hand-over: 1 where the lease stays open.
    var flag: UInt8 = 0
    /// The latest time to ask, by the attempt's clock.
    var latest: UInt8 = 0
    /// Of a wait or a pause, the limit of a call, or for how long a lease must have run out, in seconds.
    var duration: UInt8 = 0

    static let (settled, unknown, open): (UInt8, UInt8, UInt8) = (0, 1, 2)
    static let (stored, overtaken, otherwise): (UInt8, UInt8, UInt8) = (0, 1, 2)
}

/// What came of a step.
struct Outcome {
    enum Kind: UInt8 {
        case begun, stands, storeAway, waited, claimed, refused, granted, sessionEnded, denied, unknown, tooLate, stored
        case same, other, spent, journaled, notJournaled, withheld
    }

    var kind: Kind
    var version: UInt8 = 0
    var isDue = false
    var lease: Lease?

    struct Lease {
        var remaining: Int8
        var age: UInt8
        /// 1 where it is given up, 2 where its holder is gone, 4 where it is open.
        var flags: UInt8
    }

    init(_ kind: Kind, version: UInt8 = 0, isDue: Bool = false, lease: Lease? = nil) {
        self.kind = kind
        self.version = version
        self.isDue = isDue
        self.lease = lease
    }
}

/// Attempts as numbers, and what they do next as a table: the real `RenewalAttempt` is asked once for each entry.
final class Attempts {
    private var values: [RenewalAttempt] = []
    private var numbers: [RenewalAttempt: UInt16] = [:]
    private var next: [UInt64: (attempt: UInt16, step: Step)] = [:]
    private var extensions: [UInt32: UInt16] = [:]
    private let rules: RenewalRules

    /// Of an attempt that waits for others, and of one that does not.
    let (waiting, leaving): (UInt16, UInt16)

    init(_ rules: RenewalRules) {
        self.rules = rules
        // Zero stands for none.
        values = [RenewalAttempt(rules: rules, waits: true)]
        (waiting, leaving) = (1, 2)
        _ = number(RenewalAttempt(rules: rules, waits: true))
        _ = number(RenewalAttempt(rules: rules, waits: false))
    }

    /// Of an attempt that goes on with what is in the journal.
    func journaled(over version: UInt8) -> UInt16 {
        number(RenewalAttempt(rules: rules, journaledOver: Int64(version)))
    }

    func version(_ attempt: UInt16) -> UInt8 { UInt8(values[Int(attempt)].version) }

    /// Its holder has extended the lease at that time.
    func extended(_ attempt: UInt16, at time: UInt8) -> UInt16 {
        let key = UInt32(attempt) | UInt32(time) << 16
        if let known = extensions[key] { return known }
        var value = values[Int(attempt)]
        value.leaseExtended(asked: .seconds(Int(time)))
        let result = number(value)
        extensions[key] = result
        return result
    }

    private func number(_ attempt: RenewalAttempt) -> UInt16 {
        if let number = numbers[attempt] { return number }
        let number = UInt16(values.count)
        values.append(attempt)
        numbers[attempt] = number
        return number
    }

    func step(
        _ attempt: UInt16, _ outcome: Outcome, now: UInt8, asked: UInt8, reachable: UInt8, hasGoneBack: Bool
    ) -> (attempt: UInt16, step: Step) {
        var key = UInt64(attempt) | UInt64(now) << 16 | UInt64(asked) << 24 | UInt64(reachable) << 32
        key |= hasGoneBack ? 1 << 35 : 0
        key |= UInt64(outcome.kind.rawValue) << 36 | UInt64(outcome.version) << 41 | (outcome.isDue ? 1 << 45 : 0)
        if let lease = outcome.lease {
            key |= 1 << 46 | UInt64(lease.flags) << 47
            key |= UInt64(UInt8(bitPattern: lease.remaining)) << 50 | UInt64(lease.age & 63) << 58
        }
        if let known = next[key] { return known }
        var value = values[Int(attempt)]
        let step = value.next(
            outcome.value, now: .seconds(Int(now)), asked: .seconds(Int(asked)),
            storeReachableFor: .seconds(Int(reachable)), storeHasGoneBack: hasGoneBack)
        var later = shortened(value, outcome, step)
        // A clock begins anew with each wait.
        if case .wait = step { later = later.counted(from: .seconds(Int(now))) }
        let result = (number(later), Self.short(step))
        next[key] = result
        return result
    }

    /// An attempt that has got its answer does not look at what it has done before any more, but at its version alone. So
    /// those that have come to this point by different ways are one.
    /// One that gives its lease back does not even look at that.
    private func shortened(
        _ attempt: RenewalAttempt, _ outcome: Outcome, _ step: RenewalAttempt.Step
    ) -> RenewalAttempt {
        var (version, last) = (attempt.version, outcome.value)
        if case .release = step { (version, last) = (0, .denied) }
        guard last == .granted || last == .sessionEnded || last == .denied else { return attempt }
        var plain = RenewalAttempt(rules: rules, waits: true)
        let standing = RenewalAttempt.Standing(version: version, isDue: true, lease: nil)
        for outcome in [.begun, .stands(standing), .claimed, last] as [RenewalAttempt.Outcome] {
            _ = plain.next(
                outcome, now: .zero, asked: .zero, storeReachableFor: .zero, storeHasGoneBack: false)
        }
        return plain
    }

    private static func short(_ step: RenewalAttempt.Step) -> Step {
        switch step {
        case .read: Step(kind: .read)
        case .wait(let duration): Step(kind: .wait, duration: duration.wholeSeconds)
        case .claim(let version, let over, let overdue, let isOpen):
            Step(
                kind: .claim, version: UInt8(version), flag: (isOpen ? 1 : 0) | (over == nil ? 0 : 2),
                duration: overdue.wholeSeconds)
        case .ask(let latest, let limit):
            Step(kind: .ask, latest: latest < .zero ? 0 : latest.wholeSeconds, duration: limit.wholeSeconds)
        case .pause(let duration): Step(kind: .pause, duration: duration.wholeSeconds)
        case .publish(let version, let heedsLease):
            Step(kind: .publish, version: UInt8(version), flag: heedsLease ? 1 : 0)
        case .writeJournal: Step(kind: .writeJournal)
        case .publishEnd(let version): Step(kind: .publishEnd, version: UInt8(version))
        case .release(let version, let release):
            Step(
                kind: .release, version: UInt8(version),
                flag: release == .settled ? Step.settled : release == .unknown ? Step.unknown : Step.open)
        case .handOver(let version, let isOpen):
            Step(kind: .handOver, version: UInt8(version), flag: isOpen ? 1 : 0)
        case .finish(let result):
            Step(
                kind: .finish,
                flag: result == .stored ? Step.stored : result == .overtaken ? Step.overtaken : Step.otherwise)
        }
    }
}

extension Outcome {
    fileprivate var value: RenewalAttempt.Outcome {
        let lease = lease.map { lease in
            StandingLease(
                holder: "another", remaining: .seconds(Int(lease.remaining)), sinceFirstUse: .seconds(Int(lease.age)),
                isGivenUp: lease.flags & 1 != 0, isHolderGone: lease.flags & 2 != 0, isOpen: lease.flags & 4 != 0)
        }
        return switch kind {
        case .begun: .begun
        case .stands: .stands(RenewalAttempt.Standing(version: Int64(version), isDue: isDue, lease: lease))
        case .storeAway: .storeAway
        case .waited: .waited
        case .claimed: .claimed
        case .refused: .refused
        case .granted: .granted
        case .sessionEnded: .sessionEnded
        case .denied: .denied
        case .unknown: .unanswered(.scheduled)
        case .tooLate: .tooLate
        case .stored: .stored
        case .same: .conflict(.same)
        case .other: .conflict(.other)
        case .spent: .conflict(.spent(version: Int64(version), lease: lease))
        case .journaled: .journaled
        case .notJournaled: .notJournaled
        case .withheld: .withheld
        }
    }
}

extension Duration {
    /// Rounded up; one at least where it is more than nothing.
    var wholeSeconds: UInt8 { UInt8(components.seconds) + (components.attoseconds > 0 ? 1 : 0) }
}
