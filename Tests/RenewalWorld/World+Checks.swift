/// Time, and what is held against what is promised.
extension World {
    mutating func tick(_ c: Context) {
        row.pass(c)
        if behind.lag > 0 {
            behind.pass(c)
            behind.lag += 1
            // The standby has received all.
            if behind.lag > Setting.lag + 1 { behind = Row(version: 0) }
        }
        if used < 255 { used = min(used + 1, c.grace + 1) }
        if life > 0 { life -= 1 }
        if noticed < UInt8(Setting.turn) { noticed += 1 }
        for place in (0..<3).reversed() where lateClaims[place].holder != Holder.none {
            // The store refuses a claim that arrives when its sender has given up.
            if c.old.contains(.lateClaims) {
                lateClaims[place].age = 1
            } else {
                lateClaims[place] = LateClaim()
            }
        }
        for index in 0..<c.count { pass(index, c) }
    }

    private mutating func pass(_ index: Int, _ c: Context) {
        var replica = replicas[index]
        if replica.blocked != 0 {
            replica.blocked = min(replica.blocked + 1, UInt8(Setting.turn) + 1)
            // One that has nothing to do can do it.
            if replica.attempt == 0, replica.isFree, isStoreUp == 1 { replica.blocked = 0 }
        }
        if replica.returned != 0 { replica.returned = min(replica.returned + 1, 15) }
        if replica.claimed != 0 { replica.claimed = min(replica.claimed + 1, 15) }
        if replica.lost != 0 { replica.lost = min(replica.lost + 1, 15) }
        if replica.due > 0 { replica.due -= 1 }
        if replica.hold > 0 {
            // Others have their turn once the store is back.
            let isAway = replica.isUp && !replica.isPaused && (replica.isCut || isStoreUp == 0)
            replica.hold = isAway && !c.old.contains(.holdsWhileAway) ? UInt8(Setting.turn) : replica.hold - 1
        }
        switch replica.kind {
        // Later than this, nothing depends on how late it is.
        case .claim, .ask, .pause, .handOver: replica.clock = min(replica.clock + 1, replica.asked + c.patience)
        case .wait where replica.counts == 1: replica.clock = min(replica.clock + 1, c.patience)
        default: break
        }
        // Each process looks at the store every second.
        let isAble = replica.isFree && isStoreUp == 1
        if !replica.isUp || !replica.isPaused && !isAble {
            replica.failed = 0
        } else {
            replica.failed = min(replica.failed + 1, UInt8(Setting.turn))
        }
        let isAsking = replica.kind == .ask || replica.kind == .pause
        if isAble, isAsking, row.holder == Self.holder(index, replica.number), row.flags & 1 == 0 {
            // While it waits for the provider, or between two calls, the holder extends its lease.
            row.remaining = c.span
            replica.attempt = c.attempts.extended(replica.attempt, at: replica.clock)
        }
        // The rules go by the first claim, before which the token was not used.
        let isWithinGrace = used <= c.grace && (row.holder == Holder.none || row.age <= c.grace)
        if isAble, isWithinGrace, replica.hold == 0, !has(Mark.hadTime) {
            replica.calm += 1
            if replica.calm >= c.window { marks |= Mark.hadTime }
        } else {
            replica.calm = 0
        }
        replicas[index] = replica
        if isAble, has(Mark.wentBack) { notice(index, c) }
    }

    // MARK: Losses

    /// The provider has ended the session, since a spent token was presented later than the grace.
    ///
    /// That is no fault of the rules in these cases only:
    /// * the store had the successor and has lost it, and no process that lives and no journal has it, or all that have it
    ///   were away for longer than a turn;
    /// * the store has lost the claim, so that nothing tells when the token was used first;
    /// * the successor was stored between the presenter's claim and its call, by a process that could not do so sooner for one
    ///   of these reasons;
    /// * none of the replicas was able to renew, with no fault of any kind, for as long as it takes, within the grace after
    ///   the claim and after the token's first use.
    mutating func noteLoss(_ presenter: Int, _ c: Context) {
        // The user has ended it.
        if has(Mark.loggedOut) { return }
        var isHeld = false
        // The presenter has claimed an earlier version.
        let isStoredSince = row.token > 0 && row.version != c.attempts.version(replicas[presenter].attempt)
        let isNeverStoredBefore = isStoredSince && !has(Mark.lostStored)
        for index in 0..<c.count where index != presenter {
            let replica = replicas[index]
            // Where the successor stands in the store, others may have read it there since the presenter's claim.
            let isKnown =
                replica.knownToken > 0 && replica.knownToken != Token.login && (replica.has(Flag.own) || row.token <= 0)
            guard replica.grant > 0 || replica.journal > 0 || isKnown else { continue }
            isHeld = true
            // Nothing tells of a claim that the store has lost: what was granted under it is stored in the time in which no
            // token is presented, unless a further fault prevents that.
            let isLate = isNeverStoredBefore && replica.heeded == 0
            if !isKnown || isLate, has(Mark.lostClaim), faults > 1 { continue }
            if replica.blocked > Setting.turn { continue }
            // It came back when the right to present the token had been given on, or was just looking whether it had.
            if replica.returned != 0, replica.returned <= max(replicas[presenter].claimed, replica.lost) + 1 {
                continue
            }
            violation = .presentsOther
            return
        }
        if has(Mark.lostStored) {
            if !isHeld, !isStoredSince, !has(Mark.lostKnowledge) { violation = .lost }
        } else if has(Mark.hadTime), !has(Mark.lostClaim) {
            violation = .lost
        }
    }

    /// What is wrong in a quiet world.
    func verdict(_ c: Context) -> Violation {
        if has(Mark.loggedOut) {
            return row.token >= 0 && !has(Mark.lostLogout) ? .undoesLogout : .none
        }
        if row.token < 0, isRevoked == 0, !has(Mark.lostKnowledge) { return .lost }
        return served > row.version && !has(Mark.lostKnowledge) ? .notStored : .none
    }

    // MARK: Answers

    /// What each replica would answer just now: callers ask all the time.
    mutating func answer(_ c: Context) {
        for index in 0..<c.count where replicas[index].isUp && !replicas[index].isPaused { answer(index, c) }
    }

    private mutating func answer(_ index: Int, _ c: Context) {
        let replica = replicas[index]
        var (version, token) = (replica.known, replica.knownToken)
        if replica.has(Flag.serves) {
            (version, token) = (c.journalVersions ? replica.journalOver + 1 : 0, replica.journal)
            if replica.known > replica.journalOver, replica.knownToken == Token.loggedOut { violation = .afterLogout }
        } else if isAble(index), !mustMend(index, c) {
            learn(index, c)
            (version, token) = (row.version, row.token)
        } else if token < 0 {
            // The store is to say whether there is a login.
            guard token == Token.loggedOut, c.old.contains(.saysLoggedOut) else { return }
            if row.token >= 0, !has(Mark.loggedOut) { violation = .saysLoggedOut }
        }
        if token == Token.first, life == 0, c.heedsClocks {
            // It is good for no one any more.
            if c.old.contains(.ownClock), replica.has(Flag.behind) { violation = .expired }
            return
        }
        if version == 0 { return }
        if version < replica.served { violation = .versionBack }
        if version == replica.served, token != replica.servedToken { violation = .versionTwice }
        (replicas[index].served, replicas[index].servedToken) = (version, token)
        served = max(served, version)
    }
}

extension World.Row {
    fileprivate mutating func pass(_ c: Context) {
        guard holder != World.Holder.none else { return }
        remaining = max(remaining - 1, -Int8(Setting.turn) - 1)
        age = min(age + 1, c.grace + 1)
    }
}
