import Renewal

extension World {
    typealias Move = (label: String, world: World)

    /// Everything that can happen next.
    func moves(_ setting: Setting, isLabelled: Bool) -> [Move] {
        if isQuiet { return [] }
        var moves: [Move] = []
        func add(_ label: @autoclosure () -> String, _ change: (inout World) -> Void) {
            var world = self
            change(&world)
            world.noteAbility(setting)
            // What a process hears changes nothing but itself until it does something more.
            for index in world.replicas.indices {
                while case .answer(let outcome) = world.replicas[index].call { world.step(index, outcome, setting) }
            }
            moves.append((isLabelled ? label() : "", world))
        }
        func fault(_ kind: Fault, _ label: @autoclosure () -> String, _ change: (inout World) -> Void) {
            guard faults < setting.faults, setting.allowed.contains(kind) else { return }
            add(label()) { world in
                world.faults += 1
                change(&world)
            }
        }
        var isUrgent = false
        for (index, replica) in replicas.enumerated() {
            let r = Int8(index)
            guard replica.isUp else {
                add("\(r) restarts") { $0.restart(index, setting) }
                continue
            }
            if replica.isPaused {
                add("\(r) goes on") { world in
                    world.replicas[index].isPaused = false
                    world.unblock(index)
                }
                continue
            }
            if replica.isCut {
                add("\(r) reaches the store again") { world in
                    world.replicas[index].isCut = false
                    world.unblock(index)
                }
            }
            switch replica.call {
            case .none:
                // The replicas are alike: the first attempt is the first one's.
                let isFirst = now > 0 || row.lease != nil || index == 0 || replicas[0].attempt != nil
                if replica.attempt == nil, isFirst, isDue || row.lease.map({ mayBeLeft($0) }) == true {
                    add("\(r) begins an attempt") { $0.begin(index, setting) }
                }
            case .request(let step):
                isUrgent = true
                if case .ask(let end, _) = step, end < .seconds(now) {
                    add("\(r) is too late to ask") { $0.replicas[index].call = .answer(.tooLate) }
                } else if case .ask(_, let limit) = step {
                    let limit = setting.oldRules.contains(.fullCallLimit) ? setting.callLimit : limit.ticks
                    add("\(r) asks with \(replica.presents)") { $0.present(index, setting) }
                    fault(.requestLost, "\(r)'s request is lost") { world in
                        world.replicas[index].call = .at(now + limit, .unknown(.scheduled))
                    }
                    fault(.answerLost, "\(r)'s answer is lost") { world in
                        world.present(index, setting)
                        world.replicas[index].grant = replica.grant
                        world.replicas[index].call = .answer(.unknown(.scheduled))
                    }
                    fault(.answerLate, "\(r)'s answer is late") { world in
                        world.present(index, setting)
                        if case .answer(let outcome) = world.replicas[index].call {
                            let grant = outcome == .granted ? world.pending(index) : nil
                            world.replicas[index].grant = replica.grant
                            world.replicas[index].call = .late(until: now + limit, outcome, grant: grant)
                        }
                    }
                    fault(.answerUnreadable, "\(r)'s answer cannot be read") { world in
                        world.present(index, setting)
                        let isEnd = setting.oldRules.contains(.unreadableAnswerEnds)
                        world.replicas[index].grant = replica.grant
                        world.replicas[index].call = .answer(isEnd ? .denied : .unknown(.scheduled))
                    }
                } else if case .keep = step {
                    add("\(r) keeps its grant") { $0.keep(index, setting) }
                } else {
                    add("\(r) \(step)") { $0.state(index, step, setting) }
                    if !replica.isCut, isStoreUp {
                        fault(.statementLost, "\(r)'s statement is lost") { $0.fail(index) }
                        fault(.statementAnswerLost, "\(r)'s statement is done, and its answer is lost") { world in
                            world.state(index, step, setting)
                            world.fail(index)
                        }
                        if case .claim(let version, let over, let isOpen) = step {
                            fault(.statementLate, "\(r)'s claim is late") { world in
                                // Its sender waits for a second, and the store refuses it later than that.
                                let deadline = setting.oldRules.contains(.lateClaims) ? Int.max : now
                                world.lateClaims.append(
                                    LateClaim(
                                        holder: world.holder(index), version: Int(version),
                                        over: over.flatMap { Holder(name: $0) }, isOpen: isOpen, sent: now,
                                        deadline: deadline))
                                world.replicas[index].call = .at(now + 1, .storeAway)
                            }
                        }
                    }
                }
            case .answer: break
            case .at(let time, let outcome):
                if time <= now {
                    isUrgent = true
                    add("\(r) hears \(outcome)") { $0.step(index, outcome, setting) }
                }
            case .late(let until, let outcome, let grant):
                if now < until {
                    add("\(r)'s late answer comes") { world in
                        if let grant { world.replicas[index].grant = grant }
                        world.step(index, outcome, setting)
                    }
                } else {
                    isUrgent = true
                    add("\(r) gives up its call") { $0.step(index, .unknown(.scheduled), setting) }
                }
            }
            guard replica.attempt != nil else { continue }
            fault(.crash, "\(r) crashes") { world in
                world.crash(index)
                world.noteAbility(setting, losing: index)
            }
            if case .request(let step) = replica.call {
                fault(.crash, "\(r) \(step), and crashes before it hears of it") { world in
                    if case .ask(let end, _) = step {
                        if end < .seconds(now) { return }
                        world.present(index, setting)
                    } else {
                        world.state(index, step, setting)
                    }
                    world.replicas[index].grant = replica.grant
                    world.crash(index)
                    world.noteAbility(setting, losing: index)
                }
            }
            fault(.pause, "\(r) is paused") { world in
                world.replicas[index].isPaused = true
                world.block(index)
                world.noteAbility(setting, losing: index)
            }
            if !replica.isCut {
                fault(.cut, "\(r) is cut off from the store") { world in
                    world.replicas[index].isCut = true
                    world.block(index)
                    world.noteAbility(setting, losing: index)
                }
            }
        }
        if isStoreUp, replicas.contains(where: { $0.attempt != nil }) {
            fault(.storeAway, "the store goes away") { world in
                world.isStoreUp = false
                for index in world.replicas.indices { world.block(index) }
            }
        } else if !isStoreUp {
            add("the store comes back") { world in
                world.isStoreUp = true
                for index in world.replicas.indices { world.unblock(index) }
            }
        }
        for (index, claim) in lateClaims.enumerated() where isStoreUp {
            add("the late claim of \(claim.holder.name) arrives") { world in
                world.lateClaims.remove(at: index)
                let outcome = world.claim(
                    claim.holder, Int64(claim.version), over: claim.over, claim.isOpen, claim.deadline, setting)
                if outcome == .claimed, now > claim.sent {
                    world.violation = "a claim took effect when its sender had given up"
                }
            }
        }
        // Each process looks every second for what another one has left.
        let isLeft = replicas.indices.contains { mustTakeOver($0, setting) }
        if !isUrgent, !isLeft, now < setting.end { add("a second passes") { $0.tick(setting) } }
        return moves
    }

    /// Whether the record is to be renewed: once.
    var isDue: Bool { row.version == 1 && row.token != nil }

    private func mayBeLeft(_ lease: Lease) -> Bool { lease.isGivenUp || lease.end <= now }

    private func mustTakeOver(_ index: Int, _ setting: Setting) -> Bool {
        let replica = replicas[index]
        guard isAble(index), replica.attempt == nil, let lease = standingLease(for: index), !lease.stands,
            let age = lease.sinceFirstUse, age <= .seconds(setting.grace)
        else { return false }
        let reachable = Duration.seconds(now - replica.failedAt)
        return rules(setting).waitBeforeTakingOver(lease, storeReachableFor: reachable) <= .zero
    }

    /// Whether the replica can renew.
    private func isAble(_ index: Int) -> Bool {
        let replica = replicas[index]
        return replica.isUp && !replica.isPaused && !replica.isCut && isStoreUp
    }

    /// Takes note of what keeps every rule from presenting a token again in time that may have been spent: no process can,
    /// or the holder goes when there is no time left for another one to see that.
    private mutating func noteAbility(_ setting: Setting, losing lost: Int? = nil) {
        guard let token = row.token, provider.firstUses[Int(token)] >= 0 else { return }
        let age = now - Int(provider.firstUses[Int(token)])
        if age > setting.grace { return }
        if !replicas.indices.contains(where: isAble) { isLossExcused = true }
        if let lost, row.lease?.holder.replica == Int8(lost), age + 3 >= setting.grace { isLossExcused = true }
    }

    func holder(_ index: Int) -> Holder { Holder(replica: Int8(index), number: replicas[index].attempts) }

    private func pending(_ index: Int) -> Int8? { replicas[index].grant }

    // MARK: Replicas

    private mutating func block(_ index: Int) {
        if replicas[index].blockedSince != nil { return }
        // One that has just come back has had no turn yet.
        let hasReturned = replicas[index].returned.map { now - $0 <= 1 } ?? false
        replicas[index].blockedSince = hasReturned ? now - 3 : now
    }

    private mutating func unblock(_ index: Int) {
        let replica = replicas[index]
        guard replica.isUp, !replica.isPaused, !replica.isCut, isStoreUp, let since = replica.blockedSince else {
            return
        }
        replicas[index].blockedSince = nil
        // What happens in the very moment of its return is as if it had not returned.
        replicas[index].returned = now - since >= 3 ? now : nil
    }

    private mutating func crash(_ index: Int) {
        block(index)
        var dead = Replica()
        dead.isUp = false
        dead.journal = replicas[index].journal
        dead.attempts = replicas[index].attempts
        dead.isCut = replicas[index].isCut
        dead.blockedSince = replicas[index].blockedSince
        replicas[index] = dead
    }

    private mutating func restart(_ index: Int, _ setting: Setting) {
        replicas[index].isUp = true
        replicas[index].failedAt = now
        unblock(index)
        guard let journal = replicas[index].journal else { return }
        rename(index)
        replicas[index].grant = journal.token
        replicas[index].presents = journal.spent
        replicas[index].attempt = RenewalAttempt(rules: rules(setting), keptOver: Int64(journal.version))
        replicas[index].asked = now
        step(index, .begun, setting)
    }

    private mutating func begin(_ index: Int, _ setting: Setting) {
        rename(index)
        replicas[index].grant = nil
        replicas[index].attempt = RenewalAttempt(rules: rules(setting), waits: isDue)
        replicas[index].asked = now
        step(index, .begun, setting)
    }

    /// Gives the next attempt a name that is not in use: names that nothing refers to are used again.
    private mutating func rename(_ index: Int) {
        let last = holder(index)
        if row.lease?.holder == last || lateClaims.contains(where: { $0.holder == last }) {
            replicas[index].attempts += 1
        }
    }

    private func rules(_ setting: Setting) -> RenewalRules {
        var rules = RenewalRules(
            grace: .seconds(setting.grace), callLimit: .seconds(setting.callLimit), waits: [.seconds(1), .seconds(2)],
            transit: .zero, turn: .seconds(setting.oldRules.contains(.noTurn) ? 0 : 3))
        if setting.oldRules.contains(.longLease) { rules.span = .seconds(setting.callLimit + 2) }
        return rules
    }

    private mutating func step(_ index: Int, _ outcome: RenewalAttempt.Outcome, _ setting: Setting) {
        guard var attempt = replicas[index].attempt else { return }
        if outcome == .storeAway { replicas[index].failedAt = now }
        let replica = replicas[index]
        let step = attempt.next(
            outcome, now: .seconds(now), asked: .seconds(replica.asked),
            storeReachableFor: .seconds(now - replica.failedAt))
        replicas[index].asked = now
        replicas[index].attempt = attempt
        replicas[index].isWaiting = false
        switch step {
        case .wait(let duration):
            replicas[index].call = .at(now + max(1, duration.ticks), .waited)
            replicas[index].isWaiting = true
        case .pause(let duration):
            replicas[index].call = .at(now + max(1, duration.ticks), .waited)
        case .finish(let result):
            replicas[index].attempt = nil
            replicas[index].call = .none
            if result == .overtaken || result == .stored { replicas[index].journal = nil }
            if let grant = replicas[index].grant, result != .stored, result != .overtaken {
                violation = "\(index) ends with \(result) and has \(grant)"
            }
            replicas[index].grant = nil
            replicas[index].asked = 0
            (replicas[index].claimed, replicas[index].returned) = (0, nil)
            replicas[index].presents = -1
        default:
            replicas[index].call = .request(step)
        }
    }

    private mutating func fail(_ index: Int) {
        replicas[index].call = .answer(.storeAway)
    }

    private mutating func keep(_ index: Int, _ setting: Setting) {
        guard setting.hasJournal, let grant = replicas[index].grant, let attempt = replicas[index].attempt else {
            replicas[index].call = .answer(.notKept)
            return
        }
        replicas[index].journal = Journal(
            token: grant, spent: replicas[index].presents, version: Int(attempt.version), holder: holder(index))
        replicas[index].call = .answer(.kept)
    }

    // MARK: The store

    /// Carries out a statement.
    private mutating func state(_ index: Int, _ step: RenewalAttempt.Step, _ setting: Setting) {
        guard isStoreUp, !replicas[index].isCut else { return fail(index) }
        let outcome: RenewalAttempt.Outcome
        switch step {
        case .read:
            replicas[index].presents = row.token ?? -1
            outcome = .stands(
                RenewalAttempt.Standing(version: Int64(row.version), isDue: isDue, lease: standingLease(for: index)))
        case .claim(let version, let over, let isOpen):
            outcome = claim(holder(index), version, over: over.flatMap { Holder(name: $0) }, isOpen, Int.max, setting)
        case .publish(let version, let heedsLease):
            outcome = publish(index, version, heedsLease)
        case .publishEnd(let version):
            if row.version == Int(version), mayReplace(holder(index)) {
                row = Row(version: row.version + 1, token: nil, refused: replicas[index].presents, lease: nil)
                outcome = .stored
            } else {
                outcome = .conflict(.other)
            }
        case .release(let version, let release):
            if row.version == Int(version), row.lease?.holder == holder(index) {
                switch release {
                case .settled: row.lease = nil
                case .unknown: row.lease?.isGivenUp = true
                case .open:
                    let end = min(row.lease?.end ?? now, now)
                    row.lease?.end = end
                }
                // The store tells those that wait for it.
                for other in replicas.indices where replicas[other].isWaiting {
                    replicas[other].call = .at(now, .waited)
                }
            }
            outcome = .stored
        case .ask, .wait, .pause, .keep, .finish: return
        }
        replicas[index].call = .answer(outcome)
    }

    private mutating func claim(
        _ holder: Holder, _ version: Int64, over: Holder?, _ isOpen: Bool, _ deadline: Int, _ setting: Setting
    ) -> RenewalAttempt.Outcome {
        guard row.version == Int(version), now <= deadline else { return .refused }
        if let lease = row.lease, lease.holder != holder {
            guard lease.holder == over, lease.isGivenUp || lease.end <= now || isGone(lease.holder, for: holder.replica)
            else { return .refused }
        }
        let firstUse = row.lease?.firstUse ?? now
        let end = now + rules(setting).leaseSpan.ticks
        if row.lease?.holder != holder { replicas[Int(holder.replica)].claimed = now }
        row.lease = Lease(holder: holder, end: end, firstUse: firstUse, isOpen: isOpen)
        return .claimed
    }

    private func mayReplace(_ holder: Holder) -> Bool {
        guard let lease = row.lease else { return true }
        return lease.holder == holder || lease.isGivenUp || lease.end <= now
    }

    private mutating func publish(_ index: Int, _ version: Int64, _ heedsLease: Bool) -> RenewalAttempt.Outcome {
        guard let grant = replicas[index].grant else { return .conflict(.other) }
        if row.token == grant { return .conflict(.same) }
        let holdsSpent = row.token == replicas[index].presents || row.refused == replicas[index].presents
        if row.version == Int(version), !heedsLease || mayReplace(holder(index)) {
            row = Row(version: row.version + 1, token: grant)
            return .stored
        }
        return .conflict(holdsSpent ? .spent(version: Int64(row.version), lease: standingLease(for: index)) : .other)
    }

    private func standingLease(for index: Int) -> StandingLease? {
        row.lease.map { lease in
            StandingLease(
                holder: lease.holder.name, remaining: .seconds(lease.end - now),
                sinceFirstUse: .seconds(now - lease.firstUse), isGivenUp: lease.isGivenUp,
                isHolderGone: isGone(lease.holder, for: Int8(index)), isOpen: lease.isOpen)
        }
    }

    /// Whether the replica knows that an attempt is over: it was its own, or its predecessor's.
    private func isGone(_ holder: Holder, for replica: Int8) -> Bool {
        let own = replicas[Int(replica)]
        return holder.replica == replica && own.journal == nil && (own.attempt == nil || holder.number != own.attempts)
    }

    // MARK: The provider

    private mutating func present(_ index: Int, _ setting: Setting) {
        let token = replicas[index].presents
        guard token >= 0, !provider.isRevoked else {
            replicas[index].call = .answer(.sessionEnded)
            return
        }
        let firstUse = Int(provider.firstUses[Int(token)])
        if firstUse >= 0, now - firstUse > setting.grace {
            provider.isRevoked = true
            noteReuse(of: token, by: index, setting)
            replicas[index].call = .answer(.sessionEnded)
            return
        }
        if firstUse < 0 { provider.firstUses[Int(token)] = Int8(now) }
        let known = setting.successor == .same ? provider.parents.firstIndex(of: token) : nil
        if let known {
            replicas[index].grant = Int8(known)
        } else {
            provider.parents.append(token)
            provider.firstUses.append(-1)
            replicas[index].grant = Int8(provider.parents.count - 1)
        }
        replicas[index].call = .answer(.granted)
    }

    /// A token was presented later than the grace. That is a fault where a process that lives and can reach the store has
    /// what it was exchanged for, or could not for shorter than its turn.
    private mutating func noteReuse(of token: Int8, by presenter: Int, _ setting: Setting) {
        for (index, replica) in replicas.enumerated() where index != presenter {
            let held = replica.grant ?? replica.journal?.token
            guard let held, provider.parents[Int(held)] == token else { continue }
            if let since = replica.blockedSince, now - since >= 3 { continue }
            // It came back when the right to present the token had been given on, or was just looking whether it had.
            if let returned = replica.returned, returned + 1 >= replicas[presenter].claimed { continue }
            violation = "\(presenter) presents \(token) later than the grace, and \(index) has its successor"
        }
        // Each fault takes up to three seconds; a shorter grace leaves no time to ask again.
        if setting.grace < 3 * setting.faults { isLossExcused = true }
    }

    // MARK: Time

    private mutating func tick(_ setting: Setting) {
        now += 1
        for (index, replica) in replicas.enumerated() {
            // Each process looks at the store every second.
            if replica.isUp, !replica.isPaused, replica.isCut || !isStoreUp { replicas[index].failedAt = now }
            if now - replicas[index].failedAt > 3 { replicas[index].failedAt = -100 }
        }
        for (index, replica) in replicas.enumerated() where replica.isUp && !replica.isPaused && !replica.isCut {
            guard isStoreUp, replica.attempt != nil, row.lease?.holder == holder(index), row.lease?.isGivenUp == false
            else { continue }
            // While it waits for the provider, or between two calls, the holder extends its lease.
            switch replica.call {
            case .at, .late:
                let end = now + rules(setting).leaseSpan.ticks
                row.lease?.end = end
            case .none, .request, .answer: break
            }
        }
    }

    // MARK: The end

    /// Whether nothing is under way and nothing is broken.
    var isQuiet: Bool {
        isStoreUp && lateClaims.isEmpty
            && replicas.allSatisfy { $0.isUp && !$0.isPaused && !$0.isCut && $0.attempt == nil && $0.journal == nil }
            && !isDue && row.lease == nil
    }

    /// What is wrong in a quiet world.
    var verdict: String? {
        if row.token.map({ _ in !provider.isRevoked }) == true { return nil }
        return isLossExcused ? nil : "the session is lost"
    }
}

extension World.Holder {
    init?(name: String) {
        let parts = name.split(separator: ".").compactMap { Int8($0) }
        guard parts.count == 2 else { return nil }
        self.init(replica: parts[0], number: parts[1])
    }
}

extension Duration {
    /// In seconds, rounded up.
    fileprivate var ticks: Int { Int(components.seconds) + (components.attoseconds > 0 ? 1 : 0) }
}
