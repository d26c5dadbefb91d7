/// What can happen next.
struct Moves {
    var worlds: [World] = []
    /// Empty unless they are asked for.
    var labels: [String] = []
    var isLabelled = false

    mutating func removeAll() {
        worlds.removeAll(keepingCapacity: true)
        labels.removeAll(keepingCapacity: true)
    }
}

extension World {
    /// Everything that can happen next.
    ///
    /// A look at the record is one step with what leads to it, and keeping a grant is one with the failure before it: neither
    /// is seen by anything else, and what can happen between the two can happen before or after them just as well. What
    /// becomes known to a process changes nothing but itself until it does something more.
    func moves(_ c: Context, into moves: inout Moves) {
        moves.removeAll()
        if isQuiet(c) { return }
        var isUrgent = false
        for index in 0..<c.count {
            isUrgent = self.moves(of: index, c, &moves) || isUrgent
        }
        storeMoves(c, &moves)
        // Each process looks every second for what another one has left.
        if isUrgent { return }
        for index in 0..<c.count where mustTakeOver(index, c) { return }
        add(&moves, c, "a second passes") { $0.tick(c) }
    }

    private func add(
        _ moves: inout Moves, _ c: Context, _ label: @autoclosure () -> String, _ change: (inout World) -> Void
    ) {
        var world = self
        change(&world)
        if c.setting.isServed { world.answer(c) }
        world.order(c)
        moves.worlds.append(world)
        if moves.isLabelled { moves.labels.append(label()) }
    }

    private func fault(
        _ moves: inout Moves, _ c: Context, _ kind: Setting.Fault, _ label: @autoclosure () -> String,
        _ change: (inout World) -> Void
    ) {
        guard faults < c.setting.faults, c.isAllowed(kind) else { return }
        add(&moves, c, label()) { world in
            world.faults += 1
            change(&world)
            for index in 0..<c.count { world.replicas[index].calm = 0 }
        }
    }

    func name(_ index: Int) -> UInt8 { index == 0 ? names.0 : index == 1 ? names.1 : names.2 }

    /// Returns whether the replica has something to do before time passes.
    private func moves(of index: Int, _ c: Context, _ moves: inout Moves) -> Bool {
        let replica = replicas[index]
        guard replica.isUp else {
            add(&moves, c, "\(name(index)) restarts") { $0.restart(index, c) }
            return false
        }
        if replica.isPaused {
            add(&moves, c, "\(name(index)) goes on") { $0.replicas[index].set(Flag.paused, false) }
            return false
        }
        if replica.isCut {
            add(&moves, c, "\(name(index)) reaches the store again") { $0.replicas[index].set(Flag.cut, false) }
        }
        var isUrgent = false
        if mustMend(index, c) {
            isUrgent = true
            add(&moves, c, "\(name(index)) stores again \(replica.knownToken)") { $0.mend(index, c) }
        }
        switch replica.call {
        // Others store again first what the store has lost.
        case Call.request where replica.kind == .claim && replica.flag & 4 != 0 && replica.hold > 0: break
        case Call.request:
            isUrgent = true
            requestMoves(index, c, &moves)
        case Call.at where replica.due == 0:
            isUrgent = true
            let outcome = Outcome.Kind(rawValue: replica.outcome) ?? .waited
            add(&moves, c, "\(name(index)) hears \(outcome)") { $0.step(index, Outcome(outcome), c) }
            if outcome == .waited, replica.kind == .wait, isAble(index), replica.grant == Token.none {
                fault(&moves, c, .statementLost, "\(name(index))'s look is lost") { world in
                    world.step(index, Outcome(.waited), c, readFails: true)
                }
            }
        case Call.late where replica.due == 0:
            isUrgent = true
            add(&moves, c, "\(name(index)) gives up its call") { $0.step(index, Outcome(.unknown), c) }
        case Call.late:
            add(&moves, c, "\(name(index))'s late answer comes") { world in
                world.replicas[index].grant = replica.lateGrant
                world.step(index, Outcome(Outcome.Kind(rawValue: replica.outcome) ?? .unknown), c)
            }
        case Call.none where replica.attempt == 0 && isAble(index) && replica.hold == 0:
            if isDue || isLeft {
                add(&moves, c, "\(name(index)) begins an attempt") { $0.begin(index, c) }
                if row.holder != Holder.none, replica.failed != 0 {
                    fault(&moves, c, .statementLost, "\(name(index))'s look is lost") { world in
                        world.replicas[index].failed = 0
                    }
                }
            }
        default: break
        }
        if c.setting.act != .none, !has(Mark.acted), isAble(index) {
            add(&moves, c, "the user's \(c.setting.act) at \(name(index))") { $0.act(index, c) }
        }
        outages(of: index, c, &moves)
        return isUrgent
    }

    private func outages(of index: Int, _ c: Context, _ moves: inout Moves) {
        let replica = replicas[index]
        if c.heedsClocks, !replica.has(Flag.behind), life > 0 || c.old.contains(.ownClock) {
            fault(&moves, c, .clockStep, "\(name(index))'s clock is set back") { world in
                world.replicas[index].set(Flag.behind, true)
            }
        }
        // What has nothing under way and knows nothing that others do not, cannot do harm by standing still.
        guard replica.attempt != 0 || replica.known > 0 else { return }
        fault(&moves, c, .crash, "\(name(index)) crashes") { $0.crash(index, c) }
        if replica.call == Call.request, replica.kind != .ask || replica.latest >= replica.clock,
            replica.kind != .claim || replica.hold == 0
        {
            fault(&moves, c, .crash, "\(name(index))'s \(replica.kind) is done, and it crashes before it hears of it") {
                $0.carryOut(index, c)
                $0.crash(index, c)
            }
        }
        fault(&moves, c, .pause, "\(name(index)) is paused") { world in
            world.replicas[index].set(Flag.paused, true)
            world.block(index)
        }
        if !replica.isCut {
            fault(&moves, c, .cut, "\(name(index)) is cut off from the store") { world in
                world.replicas[index].set(Flag.cut, true)
                world.block(index)
            }
        }
    }

    private func requestMoves(_ index: Int, _ c: Context, _ moves: inout Moves) {
        let replica = replicas[index]
        if replica.kind == .ask, replica.latest < replica.clock {
            add(&moves, c, "\(name(index)) is too late to ask") { $0.step(index, Outcome(.tooLate), c) }
            return
        }
        guard replica.kind == .ask else {
            add(&moves, c, "\(name(index))'s \(replica.kind)") { $0.step(index, $0.carryOut(index, c), c) }
            guard isAble(index) else { return }
            fault(&moves, c, .statementLost, "\(name(index))'s \(replica.kind) is lost") { world in
                world.block(index)
                world.step(index, Outcome(.storeAway), c)
            }
            fault(
                &moves, c, .statementAnswerLost, "\(name(index))'s \(replica.kind) is done, and the answer is lost"
            ) { world in
                if world.carryOut(index, c).kind != .stored { world.forget(index, for: replica) }
                world.step(index, Outcome(.storeAway), c)
            }
            if replica.kind == .claim {
                fault(&moves, c, .statementLate, "\(name(index))'s claim is late") { $0.delayClaim(index, c) }
            }
            return
        }
        let limit = c.old.contains(.fullCallLimit) ? UInt8(c.setting.callLimit) : replica.duration
        add(&moves, c, "\(name(index)) asks") { $0.step(index, $0.present(index, c), c) }
        fault(&moves, c, .requestLost, "\(name(index))'s request is lost") { world in
            world.replicas[index].call = Call.at
            world.replicas[index].due = limit
            world.replicas[index].outcome = Outcome.Kind.unknown.rawValue
        }
        fault(&moves, c, .answerLost, "\(name(index))'s answer is lost at once") { world in
            _ = world.present(index, c)
            world.replicas[index].grant = replica.grant
            world.step(index, Outcome(.unknown), c)
        }
        fault(&moves, c, .answerLate, "\(name(index))'s answer is late") { world in
            let outcome = world.present(index, c)
            world.replicas[index].lateGrant = world.replicas[index].grant
            world.replicas[index].grant = replica.grant
            world.replicas[index].call = Call.late
            world.replicas[index].due = limit
            world.replicas[index].outcome = outcome.kind.rawValue
        }
        // With the present rules this is an answer that is lost.
        guard c.old.contains(.unreadableAnswerEnds) else { return }
        fault(&moves, c, .answerUnreadable, "\(name(index))'s answer cannot be read") { world in
            _ = world.present(index, c)
            world.replicas[index].grant = replica.grant
            world.step(index, Outcome(.denied), c)
        }
    }

    private func storeMoves(_ c: Context, _ moves: inout Moves) {
        if isStoreUp == 0 {
            add(&moves, c, "the store comes back") { $0.isStoreUp = 1 }
        } else {
            var isAtWork = c.setting.isServed
            for index in 0..<c.count where replicas[index].attempt != 0 { isAtWork = true }
            if isAtWork {
                fault(&moves, c, .storeAway, "the store goes away") { world in
                    world.isStoreUp = 0
                    for index in 0..<c.count { world.block(index) }
                }
            }
            for claim in 0..<3 where lateClaims[claim].holder != Holder.none {
                add(&moves, c, "a late claim arrives") { $0.arrive(claim, c) }
            }
        }
        if behind.lag > 0 {
            add(&moves, c, "the store goes back to version \(behind.version)") { $0.goBack(c) }
        } else {
            fault(&moves, c, .storeGoesBack, "a standby receives nothing any more") { world in
                world.behind = world.row
                world.behind.lag = 1
            }
        }
    }

    // MARK: What is so

    /// Whether the record is to be renewed: once.
    var isDue: Bool { row.token == Token.first }

    /// Whether there is a lease whose holder does nothing about it.
    private var isLeft: Bool { row.holder != Holder.none && (row.flags & 1 != 0 || row.remaining <= 0) }

    /// Whether the replica can renew.
    func isAble(_ index: Int) -> Bool { replicas[index].isFree && isStoreUp == 1 }

    private func mustTakeOver(_ index: Int, _ c: Context) -> Bool {
        let replica = replicas[index]
        guard isAble(index), replica.attempt == 0, replica.hold == 0, isLeft, row.age <= c.grace else { return false }
        let isGone = self.isGone(row.holder, for: index)
        if row.flags & 4 == 0, row.flags & 1 != 0 || isGone { return true }
        let turn = c.old.contains(.noTurn) ? 0 : Setting.turnWithinGrace
        return turn <= Int(replica.failed) || row.age == c.grace
    }

    /// Whether nothing is under way, and nothing is broken.
    func isQuiet(_ c: Context) -> Bool {
        guard isStoreUp == 1, !isDue, row.holder == Holder.none, behind.lag == 0, lateClaims[0].holder == Holder.none,
            c.setting.act == .none || has(Mark.acted) || has(Mark.lostKnowledge)
        else { return false }
        for index in 0..<c.count {
            let replica = replicas[index]
            guard replica.isFree, replica.attempt == 0, replica.journal == Token.none, !mustMend(index, c) else {
                return false
            }
        }
        // What is renewed is lost only by a store that goes back.
        return faults >= c.setting.faults || !c.isAllowed(.storeGoesBack) || has(Mark.wentBack)
    }
}
