import Glibc
import Reactor
import RenewalWorld
import Testing

/// Every order in which statements, answers, faults and seconds can follow each other, for what takes seconds.
/// `Tests/Exploration/run --bounded` looks at all triples of faults for two replicas, with and without a store that goes back.
@Suite(.timeLimit(.minutes(5))) struct `Renewals of one record by several replicas` {
    private static let withoutStore = Set(Setting.Fault.allCases).subtracting([.storeGoesBack, .clockStep])

    /// Explores on a thread of its own, so that other tests have the threads that Swift's tasks run on; and behind them, since they
    /// have deadlines.
    private static func explore(_ adjust: (inout Setting) -> Void) async throws -> Exploration {
        var setting = Setting()
        setting.allowed = withoutStore
        adjust(&setting)
        let found = AsyncStream<Exploration>.makeStream()
        try Thread.start(name: "exploration") { [setting] in
            setpriority(Int32(PRIO_PROCESS.rawValue), 0, 10)
            found.continuation.yield(Exploration(setting))
        }.detach()
        var results = found.stream.makeAsyncIterator()
        return try #require(await results.next())
    }

    private static func report(_ exploration: Exploration) -> Comment? {
        exploration.finding.map { Comment(rawValue: ([$0.violation] + $0.timeline).joined(separator: "\n")) }
    }

    // H078
    @Test(arguments: [0, 3, 6, 9, 12], Setting.Successor.allCases)
    func `lose no session by one fault where the grace leaves time for another call`(
        grace: Int, successor: Setting.Successor
    ) async throws {
        for hasJournal in [true, false] {
            let exploration = try await Self.explore { setting in
                (setting.grace, setting.successor, setting.hasJournal) = (grace, successor, hasJournal)
                setting.faults = 1
            }
            #expect(exploration.isComplete && exploration.finding == nil, Self.report(exploration))
            #expect(exploration.states > 2000 && exploration.quietStates > 0)
            // Without a grace, an answer that is lost is lost.
            #expect(grace == 0 || exploration.excusedStates == 0)
        }
    }

    @Test(arguments: [0, 3, 9])
    func `of whom there are three lose none by two faults`(grace: Int) async throws {
        let exploration = try await Self.explore { setting in
            (setting.grace, setting.successor, setting.replicas, setting.faults) = (grace, .another, 3, 2)
        }
        #expect(exploration.isComplete && exploration.finding == nil, Self.report(exploration))
    }

    @Test(arguments: [3, 9], Setting.Act.allCases)
    func `lose none, undo no logout and serve no version twice or backwards by two faults`(
        grace: Int, act: Setting.Act
    ) async throws {
        for hasJournal in [true, false] {
            let exploration = try await Self.explore { setting in
                (setting.grace, setting.successor, setting.hasJournal) = (grace, .another, hasJournal)
                (setting.act, setting.isServed, setting.faults) = (act, true, 2)
                setting.allowed = Set(Setting.Fault.allCases)
            }
            #expect(exploration.isComplete && exploration.finding == nil, Self.report(exploration))
        }
    }

    /// What the rules before these, and those that were found wanting by this search, have cost.
    private static let earlier: [(rule: Setting.OldRule, faults: [Setting.Fault], violation: String)] = [
        (.unreadableAnswerEnds, [.answerUnreadable], "the session is lost"),
        (.longLease, [.crash], "the session is lost"),
        (.fullCallLimit, [.requestLost, .answerLost], "the session is lost"),
        (.noTurn, [.storeAway, .pause], Self.presentsOther),
        (.takesExtended, [.pause, .pause, .pause], Self.presentsOther),
        (.lateClaims, [.statementLate], "a claim took effect when its sender had given up"),
        (.saysLoggedOut, [.cut], "a replica says that nobody is logged in, and the user is"),
        (.ownClock, [.clockStep], "an expired token is served"),
        (.journalVersions, [.cut, .storeAway], "one version is served with two tokens"),
        (.journalHidesChange, [.cut], "a token is served by a replica that knows of the logout"),
        (.noGrantMemory, [.storeGoesBack], Self.presentsOther),
        (.hidesExchange, [.storeGoesBack], "a logout is undone"),
        (.forgetsOwnChange, [.storeGoesBack], "a logout is undone"),
        (.heedsLostLease, [.storeGoesBack, .statementAnswerLost, .pause], Self.presentsOther),
        (.holdsWhileAway, [.storeGoesBack, .storeAway, .pause], Self.presentsOther),
        (.settlesWithheld, [.storeGoesBack, .pause, .crash], "the session is lost"),
    ]
    private static let presentsOther =
        "a token is presented later than the grace, and a process that lives has its successor"

    @Test(arguments: earlier.indices) func `are lost by an earlier rule`(index: Int) async throws {
        let (rule, faults, violation) = Self.earlier[index]
        let exploration = try await Self.explore { setting in
            setting.oldRules.insert(rule)
            (setting.allowed, setting.faults) = (Set(faults), faults.count)
            (setting.grace, setting.successor) = (3, .another)
            switch rule {
            case .unreadableAnswerEnds, .settlesWithheld: setting.grace = 9
            case .longLease: (setting.grace, setting.callLimit, setting.window) = (6, 8, 5)
            case .fullCallLimit: (setting.grace, setting.callLimit) = (6, 8)
            case .takesExtended: setting.grace = 0
            case .saysLoggedOut: (setting.act, setting.isServed) = (.login, true)
            case .journalHidesChange: (setting.act, setting.isServed) = (.logout, true)
            case .ownClock, .journalVersions: setting.isServed = true
            case .hidesExchange, .forgetsOwnChange: setting.act = .logout
            default: break
            }
        }
        let finding = try #require(exploration.finding)
        #expect(finding.violation == violation, Self.report(exploration))
        // The same look finds nothing in the rules that replicas follow now.
        let present = try await Self.explore { setting in
            (setting.allowed, setting.faults) = (Set(faults), faults.count)
            (setting.grace, setting.successor) = (3, .another)
            setting.isServed = true
            switch rule {
            case .saysLoggedOut: setting.act = .login
            case .settlesWithheld: setting.grace = 9
            case .journalHidesChange, .hidesExchange, .forgetsOwnChange: setting.act = .logout
            default: break
            }
        }
        #expect(present.isComplete && present.finding == nil, Self.report(present))
    }
}
