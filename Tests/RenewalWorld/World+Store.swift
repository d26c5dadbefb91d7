/// What the store does.
extension World {
    // MARK: Statements

    /// A look at the record and its lease.
    mutating func look(_ index: Int, _ c: Context) -> Outcome {
        if has(Mark.wentBack) { notice(index, c) }
        unblock(index)
        if mustMend(index, c) { mend(index, c) }
        learn(index, c)
        let isLeased = row.holder != Holder.none
        replicas[index].over = row.holder
        return Outcome(
            .stands, version: row.version, isDue: isDue, lease: isLeased ? standingLease(for: index, c) : nil)
    }

    private func standingLease(for index: Int, _ c: Context) -> Outcome.Lease {
        var remaining = row.remaining
        if c.old.contains(.ownClock), replicas[index].has(Flag.behind) { remaining += 4 }
        return Outcome.Lease(
            remaining: remaining, age: row.age, flags: row.flags | (isGone(row.holder, for: index) ? 2 : 0))
    }

    /// Whether the replica knows that an attempt is over: it was its own, or that of a predecessor whose journal it has.
    func isGone(_ holder: UInt8, for index: Int) -> Bool {
        holder >> 4 == UInt8(index) && (replicas[index].attempt == 0 || holder & 15 != replicas[index].number)
    }

    private func request(_ index: Int, _ c: Context) -> LateClaim {
        let replica = replicas[index]
        return LateClaim(
            holder: holder(index), version: replica.version, over: replica.over, isOpen: replica.flag & 1,
            overdue: c.old.contains(.takesExtended) ? 0 : replica.duration)
    }

    mutating func claim(_ index: Int, _ c: Context) -> Outcome {
        return claim(request(index, c), by: index, c)
    }

    private mutating func claim(_ claim: LateClaim, by index: Int, _ c: Context) -> Outcome {
        guard row.version == claim.version else { return Outcome(.refused) }
        if row.holder != Holder.none, row.holder != claim.holder {
            let isOver =
                row.flags & 1 != 0 || row.remaining <= -Int8(claim.overdue)
                || index < 3 && isGone(row.holder, for: index)
                || c.old.contains(.ownClock)
            guard row.holder == claim.over, isOver else { return Outcome(.refused) }
        }
        if row.holder >> 4 != claim.holder >> 4 || row.flags & 1 != 0 {
            if index < 3 { replicas[index].claimed = 1 }
        }
        if row.holder >> 4 != claim.holder >> 4 {
            let before = Int(row.holder >> 4)
            if before < 3, replicas[before].attempt != 0 || replicas[before].journal != Token.none {
                replicas[before].lost = 1
            }
        }
        if row.holder == Holder.none { row.age = 0 }
        (row.holder, row.remaining, row.flags) = (claim.holder, c.span, claim.isOpen << 2)
        return Outcome(.claimed)
    }

    /// The claim is under way, and its sender waits for a second.
    mutating func delayClaim(_ index: Int, _ c: Context) {
        let claim = request(index, c)
        for place in 0..<3 where lateClaims[place].holder == Holder.none {
            lateClaims[place] = claim
            break
        }
        replicas[index].call = Call.at
        replicas[index].due = 1
        replicas[index].outcome = Outcome.Kind.storeAway.rawValue
    }

    mutating func arrive(_ place: Int, _ c: Context) {
        let late = lateClaims[place]
        remove(place)
        if claim(late, by: Int(late.holder >> 4), c).kind == .claimed, late.age > 0 { violation = .lateClaim }
    }

    private mutating func remove(_ place: Int) {
        for later in place..<2 { lateClaims[later] = lateClaims[later + 1] }
        lateClaims[2] = LateClaim()
    }

    private func mayReplace(_ holder: UInt8) -> Bool {
        row.holder == Holder.none || row.holder == holder || row.flags & 1 != 0 || row.remaining <= 0
    }

    mutating func publish(_ index: Int, _ c: Context) -> Outcome {
        let replica = replicas[index]
        guard replica.grant != Token.none else { return Outcome(.other) }
        if !c.old.contains(.forgetsOwnChange), mustMend(index, c) { mend(index, c) }
        if row.version == replica.version, replica.flag & 1 == 0 || mayReplace(holder(index)) {
            if row.token == Token.loggedOut { violation = .undoesLogout }
            write(replica.grant, by: index, before: 1, c)
            row.isExchanged = has(Mark.wentBack) ? 1 : 0
            return Outcome(.stored)
        }
        if mustMend(index, c) { mend(index, c) }
        learn(index, c)
        if row.token == replica.grant { return Outcome(.same) }
        let isSpent = row.token == Token.first || row.token == Token.ended && row.isRefused == 1
        guard isSpent || row.version < replica.version else { return Outcome(.other) }
        let isOthers = row.holder != Holder.none && row.holder != holder(index) && row.remaining > 0
        return Outcome(.spent, version: row.version, lease: isOthers ? standingLease(for: index, c) : nil)
    }

    mutating func publishEnd(_ index: Int, _ c: Context) -> Outcome {
        if !c.old.contains(.forgetsOwnChange), mustMend(index, c) { mend(index, c) }
        guard row.version == replicas[index].version, mayReplace(holder(index)) else { return Outcome(.other) }
        write(Token.ended, by: index, before: 1, c)
        row.isRefused = 1
        return Outcome(.stored)
    }

    mutating func release(_ index: Int, _ c: Context) -> Outcome {
        guard row.version == replicas[index].version, row.holder == holder(index) else { return Outcome(.stored) }
        switch replicas[index].flag {
        case Step.settled: row.endLease()
        case Step.unknown: row.flags |= 1
        default: row.remaining = min(row.remaining, 0)
        }
        tellWaiting(c)
        return Outcome(.stored)
    }

    /// The holder gives its lease back for a while, and takes it again by another name if at all.
    mutating func handOver(_ index: Int, _ c: Context) -> Outcome {
        guard row.version == replicas[index].version, row.holder == holder(index) else { return Outcome(.refused) }
        if replicas[index].flag == 1 { row.remaining = min(row.remaining, 0) } else { row.flags |= 1 }
        tellWaiting(c)
        replicas[index].number = freeNumber(index)
        return Outcome(.stored)
    }

    var isHandedOver: Bool { replicas[0].counts | replicas[1].counts | replicas[2].counts != 0 }

    /// The store tells those that wait for it.
    private mutating func tellWaiting(_ c: Context) {
        for index in 0..<c.count where replicas[index].has(Flag.waiting) && replicas[index].isUp {
            replicas[index].due = 0
        }
    }

    private mutating func write(_ token: Int8, by index: Int, before: UInt8, _ c: Context) {
        highest = c.journalVersions ? max(highest, row.version + 1) : highest + 1
        row = Row(version: c.journalVersions ? row.version + 1 : highest, token: token)
        guard c.remembers else { return }
        let replica = replicas[index]
        var before = before
        if replica.has(Flag.own) {
            before |= replica.knownBefore
            if replica.knownToken >= 0 { before |= 1 << UInt8(replica.knownToken) }
        }
        if token >= 0 { before &= ~(1 << UInt8(token)) }
        replicas[index].known = row.version
        replicas[index].knownToken = token
        replicas[index].knownBefore = before
        replicas[index].set(Flag.own, true)
    }

    /// The replica has read the record.
    mutating func learn(_ index: Int, _ c: Context) {
        guard c.remembers, replicas[index].known < row.version else { return }
        (replicas[index].known, replicas[index].knownToken, replicas[index].knownBefore) = (row.version, row.token, 0)
        replicas[index].set(Flag.own, false)
    }

    /// What was read has not come.
    mutating func forget(_ index: Int, for earlier: Replica) {
        (replicas[index].known, replicas[index].knownToken) = (earlier.known, earlier.knownToken)
        replicas[index].knownBefore = earlier.knownBefore
        replicas[index].set(Flag.own, earlier.has(Flag.own))
    }

    // MARK: What a user does

    mutating func act(_ index: Int, _ c: Context) {
        marks |= Mark.acted
        if has(Mark.wentBack) { notice(index, c) }
        if mustMend(index, c) { mend(index, c) }
        var before: UInt8 = 0
        if row.token >= 0 { before = 1 << UInt8(row.token) }
        if c.setting.act == .logout {
            marks |= Mark.loggedOut
            write(Token.loggedOut, by: index, before: before, c)
            if before > 1, replicas[index].knownBefore & 1 == 0 { marks |= Mark.lostLogout }
        } else {
            write(Token.login, by: index, before: before, c)
        }
        // What waits to be stored has no place any more.
        if !c.old.contains(.journalHidesChange) { replicas[index].set(Flag.serves, false) }
    }

    // MARK: A store that goes back

    mutating func goBack(_ c: Context) {
        if row.token > 0, row.token != Token.login, behind.token == Token.first { marks |= Mark.lostStored }
        let wasClaimed = row.holder != Holder.none || row.token != Token.first
        if wasClaimed, behind.token == Token.first, behind.holder == Holder.none { marks |= Mark.lostClaim }
        marks |= Mark.wentBack
        if behind.version < row.version { newest = row.version }
        (row, noticed) = (behind, 255)
        row.lag = 0
        behind = Row(version: 0)
        for index in 0..<c.count { replicas[index].set(Flag.noticed, false) }
        noteKnowledge(c)
    }

    /// The replica notices that the store has gone back, and presents no token for some time.
    ///
    /// One that starts then finds in the store when it was noticed first.
    mutating func notice(_ index: Int, _ c: Context, isStarting: Bool = false) {
        guard !replicas[index].has(Flag.noticed) else { return }
        replicas[index].set(Flag.noticed, true)
        if noticed == 255 { noticed = 0 }
        if c.old.contains(.noGrantMemory) { return }
        replicas[index].hold = UInt8(Setting.turn) - (isStarting ? noticed : 0)
    }

    /// Whether the replica knows of something later than what is stored.
    func mustMend(_ index: Int, _ c: Context) -> Bool {
        let replica = replicas[index]
        guard replica.known > 0, isAble(index), !c.old.contains(.noGrantMemory) else { return false }
        if row.version < replica.known { return true }
        guard row.version > replica.known, has(Mark.wentBack) else { return false }
        if row.token >= 0, replica.knownBefore & 1 << UInt8(row.token) != 0 { return true }
        // A refresh that was under way has stored what came of it, and the user had logged out.
        return replica.knownToken == Token.loggedOut && replica.knownBefore & 1 != 0
            && (row.isExchanged == 1 || row.isRefused == 1) && !c.old.contains(.hidesExchange)
    }

    /// Stores again what the replica knows.
    mutating func mend(_ index: Int, _ c: Context) {
        let replica = replicas[index]
        unblock(index)
        if row.token == Token.loggedOut, replica.knownToken >= 0, replica.knownToken != Token.login {
            violation = .undoesLogout
        }
        var before = replica.knownBefore
        if row.token >= 0 { before |= 1 << UInt8(row.token) }
        write(replica.knownToken, by: index, before: before, c)
        row.isRefused = replica.knownToken == Token.ended ? 1 : 0
        row.isExchanged = replica.knownToken > 0 && before & 1 != 0 ? 1 : 0
        tellWaiting(c)
    }

    /// Whether what the store has lost is known to no process any more, and is in no journal.
    mutating func noteKnowledge(_ c: Context) {
        if has(Mark.loggedOut), has(Mark.wentBack), row.token != Token.loggedOut, !has(Mark.lostLogout) {
            var isKnown = false
            for index in 0..<c.count where replicas[index].knownToken == Token.loggedOut {
                if replicas[index].knownBefore & 1 != 0 { isKnown = true }
            }
            if !isKnown { marks |= Mark.lostLogout }
        }
        guard has(Mark.wentBack), !has(Mark.lostKnowledge), row.version < newest else { return }
        for index in 0..<c.count where replicas[index].known >= newest { return }
        marks |= Mark.lostKnowledge
    }
}
