/// What replicas do.
extension World {
    // MARK: Outages

    private static func mayHaveSuccessor(_ replica: Replica) -> Bool {
        replica.attempt != 0 || replica.journal != Token.none || replica.known > 0
    }

    /// The replica cannot go on, or cannot reach the store, from now on.
    mutating func block(_ index: Int) {
        // Only of one that may have something does it matter.
        if replicas[index].blocked == 0, Self.mayHaveSuccessor(replicas[index]) { replicas[index].blocked = 1 }
    }

    /// The replica has had a statement carried out. Until then an outage has had no end for it.
    mutating func unblock(_ index: Int) {
        guard replicas[index].blocked != 0 else { return }
        if replicas[index].blocked > Setting.turn { replicas[index].returned = 1 }
        replicas[index].blocked = 0
    }

    mutating func crash(_ index: Int, _ c: Context) {
        block(index)
        let old = replicas[index]
        var dead = Replica()
        dead.flags = old.flags & (Flag.cut | Flag.behind)
        dead.failed = 0
        if c.setting.hasJournal {
            (dead.journal, dead.journalOver, dead.number) = (old.journal, old.journalOver, old.number)
            if old.has(Flag.own) {
                (dead.known, dead.knownToken, dead.knownBefore) = (old.known, old.knownToken, old.knownBefore)
                dead.set(Flag.own, true)
            }
        }
        if Self.mayHaveSuccessor(dead) {
            (dead.blocked, dead.returned, dead.lost) = (old.blocked, old.returned, old.lost)
        }
        replicas[index] = dead
        if !c.setting.hasJournal {
            // The next process does not know what this one has called itself.
            rename { [self] holder in
                guard holder >> 4 == UInt8(index) else { return holder }
                return Self.holder(3, (0..<16).first { !isNamed(Self.holder(3, $0)) || $0 == 15 } ?? 15)
            }
        }
        noteKnowledge(c)
    }

    mutating func restart(_ index: Int, _ c: Context) {
        replicas[index].set(Flag.up, true)
        replicas[index].failed = 0
        if has(Mark.wentBack), isAble(index) { notice(index, c, isStarting: true) }
        let replica = replicas[index]
        if replica.journal == Token.none { return }
        // The store is asked first, and where it does not answer what is in the journal is served.
        let hidesChange = c.old.contains(.journalHidesChange)
        replicas[index].set(Flag.serves, !isAble(index) && (hidesChange || replica.known <= replica.journalOver))
        replicas[index].grant = replica.journal
        replicas[index].attempt = c.attempts.journaled(over: replica.journalOver)
        step(index, Outcome(.begun), c)
    }

    // MARK: Attempts

    mutating func begin(_ index: Int, _ c: Context) {
        replicas[index].heeded = 0
        replicas[index].number = freeNumber(index)
        replicas[index].attempt = isDue ? c.attempts.waiting : c.attempts.leaving
        step(index, Outcome(.begun), c)
    }

    /// One by which no lease is known.
    func freeNumber(_ index: Int) -> UInt8 {
        var number: UInt8 = 0
        while isNamed(Self.holder(index, number)) { number += 1 }
        return number
    }

    /// Goes on by what has come of the last step.
    mutating func step(_ index: Int, _ first: Outcome, _ c: Context, readFails: Bool = false) {
        var (outcome, readFails) = (first, readFails)
        while true {
            guard replicas[index].attempt != 0 else { return }
            if outcome.kind == .storeAway { replicas[index].failed = 0 }
            let replica = replicas[index]
            let (attempt, step) = c.attempts.step(
                replica.attempt, outcome, now: replica.clock, asked: replica.asked,
                reachable: min(replica.failed, UInt8(Setting.turn)),
                hasGoneBack: replica.hold > 0 && !c.old.contains(.heedsLostLease))
            replicas[index].attempt = attempt
            if outcome.kind == .spent, step.kind == .wait { replicas[index].heeded = 1 }
            enter(index, step)
            switch step.kind {
            case .read:
                outcome = readFails || !isAble(index) ? Outcome(.storeAway) : look(index, c)
                readFails = false
            case .writeJournal: outcome = writeJournal(index, c)
            case .wait, .pause:
                replicas[index].call = Call.at
                replicas[index].due = max(1, step.duration)
                replicas[index].outcome = Outcome.Kind.waited.rawValue
                replicas[index].set(Flag.waiting, step.kind == .wait)
                return
            case .finish: return finish(index, step, c)
            case .ask where replica.hold > 0:
                // The claim may have been the first to meet a store that has gone back.
                outcome = Outcome(c.old.contains(.settlesWithheld) ? .denied : .withheld)
            case .none, .claim, .ask, .publish, .publishEnd, .release, .handOver:
                replicas[index].call = Call.request
                return
            }
        }
    }

    /// What the replica is at from now on. Its clock goes while that matters to the attempt: from the look that led to a
    /// claim until there is an answer.
    private mutating func enter(_ index: Int, _ step: Step) {
        var replica = replicas[index]
        let isFirst = step.kind == .claim && replica.kind == .read
        (replica.kind, replica.version, replica.flag) = (step.kind, step.version, step.flag | (isFirst ? 4 : 0))
        (replica.latest, replica.duration) = (step.latest, step.duration)
        (replica.call, replica.due, replica.outcome, replica.lateGrant) = (Call.none, 0, 0, Token.none)
        replica.set(Flag.waiting, false)
        switch step.kind {
        case .claim, .ask, .pause: replica.asked = replica.clock
        case .handOver: (replica.asked, replica.counts) = (replica.clock, 1)
        case .read where replica.counts == 1: replica.asked = replica.clock
        case .wait: (replica.clock, replica.asked) = (0, 0)
        default: (replica.clock, replica.asked, replica.counts) = (0, 0, 0)
        }
        if step.kind != .claim || step.flag & 2 == 0 { replica.over = Holder.none }
        replicas[index] = replica
    }

    private mutating func finish(_ index: Int, _ step: Step, _ c: Context) {
        var replica = replicas[index]
        let isSettled = step.flag == Step.stored || step.flag == Step.overtaken
        if replica.grant != Token.none, !isSettled { violation = .letsGo }
        (replica.attempt, replica.number, replica.kind, replica.flag, replica.version) = (0, 0, .none, 0, 0)
        (replica.lost, replica.claimed, replica.grant, replica.counts) = (0, 0, Token.none, 0)
        if replica.known == 0 { replica.returned = 0 }
        if isSettled { (replica.journal, replica.journalOver) = (Token.none, 0) }
        replica.set(Flag.serves, false)
        replicas[index] = replica
    }

    private mutating func writeJournal(_ index: Int, _ c: Context) -> Outcome {
        guard c.setting.hasJournal, replicas[index].grant != Token.none else { return Outcome(.notJournaled) }
        let over = c.attempts.version(replicas[index].attempt)
        (replicas[index].journal, replicas[index].journalOver) = (replicas[index].grant, over)
        let hidesChange = c.old.contains(.journalHidesChange)
        replicas[index].set(Flag.serves, hidesChange || replicas[index].known <= over)
        return Outcome(.journaled)
    }

    /// Carries out what the replica is at.
    @discardableResult
    mutating func carryOut(_ index: Int, _ c: Context) -> Outcome {
        if replicas[index].kind == .ask { return present(index, c) }
        guard isAble(index) else { return Outcome(.storeAway) }
        if has(Mark.wentBack) { notice(index, c) }
        let replica = replicas[index]
        unblock(index)
        switch replica.kind {
        case .claim: return claim(index, c)
        case .publish: return publish(index, c)
        case .publishEnd: return publishEnd(index, c)
        case .release: return release(index, c)
        case .handOver: return handOver(index, c)
        case .none, .read, .wait, .ask, .pause, .writeJournal, .finish:
            preconditionFailure("\(replica.kind) is no request")
        }
    }

    // MARK: The provider

    mutating func present(_ index: Int, _ c: Context) -> Outcome {
        if isRevoked == 1 { return Outcome(.sessionEnded) }
        if used != 255, used > c.grace {
            isRevoked = 1
            noteLoss(index, c)
            return Outcome(.sessionEnded)
        }
        if used == 255 { used = 0 }
        replicas[index].grant = c.setting.successor == .same ? 1 : newToken()
        return Outcome(.granted)
    }

    /// One that nothing has: of tokens that nothing has, it does not matter which they are.
    private func newToken() -> Int8 {
        var taken: UInt8 = 0
        func take(_ token: Int8) { if token >= 0 { taken |= 1 << UInt8(token) } }
        take(row.token)
        take(behind.token)
        for index in 0..<3 {
            let replica = replicas[index]
            take(replica.grant)
            take(replica.lateGrant)
            take(replica.journal)
            take(replica.knownToken)
            take(replica.servedToken)
            taken |= replica.knownBefore
        }
        for token in 1..<7 as Range<Int8> where taken & 1 << UInt8(token) == 0 { return token }
        preconditionFailure("more than six successors of one token are in use")
    }
}
