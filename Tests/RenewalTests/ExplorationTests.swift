import Renewal
import Testing

/// Every order in which statements, answers, faults and seconds can follow each other.
@Suite(.timeLimit(.minutes(5))) struct `Renewals of one record by several replicas` {
    private static func explore(_ adjust: (inout World.Setting) -> Void) -> Explorer {
        var setting = World.Setting()
        adjust(&setting)
        return Explorer(setting)
    }

    private static func report(_ exploration: Explorer) -> Comment? {
        exploration.finding.map { Comment(rawValue: ([$0.violation] + $0.timeline).joined(separator: "\n")) }
    }

    @Test(arguments: [0, 3, 9], [World.Successor.same, .another])
    func `lose no session that could be kept, whatever fault comes when`(
        grace: Int, successor: World.Successor
    ) {
        for hasJournal in [true, false] {
            let exploration = Self.explore { setting in
                setting.faults = 1
                setting.grace = grace
                setting.successor = successor
                setting.hasJournal = hasJournal
            }
            #expect(exploration.isComplete && exploration.finding == nil, Self.report(exploration))
            #expect(exploration.states > 10_000)
        }
    }

    @Test func `and those of three replicas lose none either`() {
        let exploration = Self.explore { setting in
            setting.faults = 1
            setting.replicas = 3
            setting.end = 8
        }
        #expect(exploration.isComplete && exploration.finding == nil, Self.report(exploration))
    }

    /// Pairs that have cost sessions.
    @Test(
        arguments: [
            [.answerLost, .crash], [.answerUnreadable, .crash], [.storeAway, .crash], [.statementLate, .crash],
            [.pause, .statementAnswerLost], [.cut, .answerLate],
        ] as [Set<World.Fault>])
    func `nor do two faults together`(faults: Set<World.Fault>) {
        let exploration = Self.explore { setting in
            setting.faults = 2
            setting.allowed = faults
            setting.grace = 6
            setting.end = 13
        }
        #expect(exploration.isComplete && exploration.finding == nil, Self.report(exploration))
    }

    /// The rules before these: the same look finds what each of them has cost.
    @Test(
        arguments: [
            (.unreadableAnswerEnds, [.answerUnreadable], "the session is lost"),
            (.longLease, [.crash], "the session is lost"),
            (.fullCallLimit, [.requestLost, .answerLost], "the session is lost"),
            (.noTurn, [.answerLate, .pause], "presents 0 later than the grace, and 0 has its successor"),
            (.lateClaims, [.statementLate], "a claim took effect when its sender had given up"),
        ] as [(World.OldRule, Set<World.Fault>, String)])
    func `are lost by an earlier rule`(rule: World.OldRule, faults: Set<World.Fault>, violation: String) throws {
        let exploration = Self.explore { setting in
            setting.oldRules = [rule]
            setting.allowed = faults
            setting.faults = faults.count
            if rule == .fullCallLimit || rule == .longLease { (setting.grace, setting.callLimit) = (6, 8) }
            setting.end = 20
        }
        let finding = try #require(exploration.finding)
        #expect(finding.violation.hasSuffix(violation), Self.report(exploration))
    }
}
