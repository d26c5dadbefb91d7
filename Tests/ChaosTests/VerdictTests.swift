import BrokerTesting
import DevelopmentProvider
import Testing

/// That what must not happen is found where it happens.
@Suite struct `A verdict` {
    private static let start: Moment = 1_000_000

    /// A login of user 0 as family 1 at the start, whose token of version 10 lives for 65 s.
    private static func records(_ reads: [Read], _ writes: [Write] = [], _ faults: [Disturbance] = [])
        -> ChaosRecords.State
    {
        var login = Write(user: 0, kind: .login, begun: start - 10)
        login.done = start
        login.families = [1]
        login.version = 10
        return ChaosRecords.State(reads: reads, writes: [login] + writes, disturbances: faults)
    }

    /// A read at so many milliseconds from the start.
    private static func read(
        _ at: Moment, replica: Int = 0, version: Int64 = 10, family: Int? = 1, left: Moment = 62_000, token: Int? = nil
    ) -> Read {
        var read = Read(user: 0, replica: replica, begun: start + at)
        read.ended = start + at + 5
        read.outcome = .user
        read.version = version
        read.family = family
        read.expiresAt = read.ended + left
        read.expiresIn = left / 1000
        read.token = token ?? Int(version)
        return read
    }

    private static func lower(_ at: Moment, replica: Int = 0) -> Read {
        var read = Read(user: 0, replica: replica, begun: start + at)
        read.ended = start + at + 5
        read.outcome = .lower
        return read
    }

    private static func logout(_ at: Moment) -> Write {
        var write = Write(user: 0, kind: .logout, begun: start + at)
        write.done = start + at + 5
        return write
    }

    private static func rules(_ state: ChaosRecords.State, polling: Set<Int> = []) -> [ChaosVerdict.Rule] {
        let provider = DevelopmentProvider(ProviderConfiguration(profile: .tidal, clients: [ProviderClient("app")]))
        return ChaosVerdict(
            state, provider: provider, unknownOutcomes: [:], polling: polling, userOfName: [:], graceSeconds: 10,
            judgesRecovery: true
        ).violations.map(\.rule)
    }

    @Test func `what may happen is no violation`() {
        let reads = [
            Self.read(100), Self.read(200, replica: 1), Self.read(300, version: 11),
            // Another replica hears of it a little later.
            Self.read(2000, replica: 1), Self.read(3000, replica: 1, version: 11),
            // And of a logout.
            Self.read(5000, replica: 2, version: 11), Self.lower(8000, replica: 2),
        ]
        #expect(Self.rules(Self.records(reads, [Self.logout(4000)])).isEmpty)
    }

    @Test(arguments: [(60_000, 0), (58_990, 1)] as [(Moment, Int)])
    func `a token with less than a minute left`(left: Moment, count: Int) {
        #expect(Self.rules(Self.records([Self.read(100, left: left)])) == Array(repeating: .short, count: count))
    }

    @Test(arguments: [(58_990, []), (0, []), (-10, [.expired])] as [(Moment, [ChaosVerdict.Rule])])
    func `a token that is said to be degraded may live shorter, and lives`(left: Moment, rules: [ChaosVerdict.Rule]) {
        var read = Self.read(100, left: left)
        read.isDegraded = true
        read.expiresIn = 0
        #expect(Self.rules(Self.records([read])) == rules)
    }

    @Test func `a token that the provider does not accept`() {
        #expect(Self.rules(Self.records([Self.read(100, family: nil)])) == [.dead])
    }

    @Test func `a promise of more time than there is`() {
        var read = Self.read(100)
        read.expiresIn = 300
        #expect(Self.rules(Self.records([read])) == [.overstated])
    }

    @Test func `a version that goes back at one replica`() {
        #expect(Self.rules(Self.records([Self.read(100, version: 11), Self.read(200)])) == [.wentBack])
    }

    @Test(arguments: [(2400, false, 0), (2600, false, 1), (2600, true, 0), (6600, true, 1)] as [(Moment, Bool, Int)])
    func `a version that others have left behind`(after: Moment, polls: Bool, count: Int) {
        let reads = [Self.read(100, version: 11), Self.read(105 + after, replica: 1)]
        #expect(
            Self.rules(Self.records(reads), polling: polls ? [1] : []) == Array(repeating: .stale, count: count))
    }

    @Test func `one version for two tokens`() {
        let reads = [Self.read(100, token: 1), Self.read(200, replica: 1, token: 2)]
        #expect(Self.rules(Self.records(reads)) == [.sameVersion])
    }

    @Test func `a user who was not logged out`() {
        #expect(Self.rules(Self.records([Self.lower(1000), Self.lower(3000)])) == [.lost])
    }

    @Test func `a login that a replica hears of late`() {
        #expect(Self.rules(Self.records([Self.lower(3000, replica: 1), Self.read(3500, replica: 1)])) == [.unseen])
    }

    @Test func `a session that comes back after a logout, or after a later login`() {
        #expect(Self.rules(Self.records([Self.read(4000)], [Self.logout(1000)])) == [.resurrected])
        var login = Write(user: 0, kind: .login, begun: Self.start + 1000)
        login.done = Self.start + 1005
        login.families = [2, 3]
        // Of two attempts the last one holds.
        let reads = [Self.read(4000, version: 20, family: 3), Self.read(4100, replica: 1, version: 19, family: 2)]
        #expect(Self.rules(Self.records(reads, [login])) == [.resurrected])
    }

    @Test func `a replica without its database serves what it has`() {
        let cut = Disturbance(
            kind: .postgres, replica: nil, begun: Self.start + 500, ended: Self.start + 5000, text: "")
        #expect(Self.rules(Self.records([Self.read(4000)], [Self.logout(400)], [cut])).isEmpty)
        #expect(Self.rules(Self.records([Self.read(20_000)], [Self.logout(400)], [cut])) == [.resurrected])
    }

    // MARK: Apps

    private static func use(_ outcome: AppUse.Outcome, isOther: Bool = false, after: Moment = 500) -> AppUse {
        AppUse(
            user: 0, replica: 1, begun: start + 1000, ended: start + 1005, outcome: outcome,
            presented: start + 1000 - after, isOther: isOther)
    }

    @Test(
        arguments: [
            (.granted, []), (.later(503, "temporarily_unavailable"), []), (.unreachable, []),
            (.refused(400, "invalid_grant"), [.appLost]), (.refused(401, "invalid_client"), [.appLost]),
        ] as [(AppUse.Outcome, [ChaosVerdict.Rule])])
    func `an app whose session is refused`(outcome: AppUse.Outcome, rules: [ChaosVerdict.Rule]) {
        var state = Self.records([])
        state.uses = [Self.use(outcome)]
        #expect(Self.rules(state) == rules)
    }

    @Test func `an app that repeats a request in time and gets another answer, unless the first one's commit was lost`()
    {
        var state = Self.records([])
        state.uses = [Self.use(.granted, isOther: true)]
        #expect(Self.rules(state) == [.appAnswer])
        state.failovers = [
            Failover(cutOff: Self.start + 400, ended: Self.start + 900, versions: [:], lastSequence: 0)
        ]
        #expect(Self.rules(state).isEmpty)
    }

    @Test(arguments: [("logout", 0), ("revoked", 0), ("replay", 1), ("expired", 1), ("client_removed", 1)])
    func `an event of a session's end`(cause: String, count: Int) {
        var state = Self.records([])
        state.listeners = [0]
        state.heard = [
            Heard(
                listener: 0, at: Self.start + 100, id: "1-0", name: "session.ended",
                data: #"{"tenant":"t0","storage_key":"user-0","cause":"\#(cause)"}"#)
        ]
        let rules = Self.rules(state).filter { $0 != .eventMissing }
        #expect(rules == Array(repeating: .appLost, count: count))
    }

    @Test(arguments: [(0, [.wentBack]), (700, [])] as [(Moment, [ChaosVerdict.Rule])])
    func `an app that gets an earlier token than its replica has served, unless it repeats a request`(
        age: Moment, rules: [ChaosVerdict.Rule]
    ) {
        var read = Self.read(300, version: 0, token: 10)
        read.isByApp = true
        read.presented = read.begun - age
        #expect(Self.rules(Self.records([Self.read(100), Self.read(200, version: 11), read])) == rules)
    }

    @Test(
        arguments: [
            (3555, 0, [.resurrected]), (3555, 1473, []), (7505, 1, []), (7507, 1, [.resurrected]),
        ] as [(Moment, Moment, [ChaosVerdict.Rule])])
    func `an app that gets the token of an ended login, unless it repeats a request from before a replica had to know`(
        at: Moment, age: Moment, rules: [ChaosVerdict.Rule]
    ) {
        var login = Write(user: 0, kind: .login, begun: Self.start + 1000)
        login.done = Self.start + 1005
        login.families = [2]
        var read = Self.read(at)
        read.isByApp = true
        read.presented = read.begun - age
        #expect(Self.rules(Self.records([read], [login])) == rules)
    }

    /// What happened before the refusal, for how long before, and whether it explains that the token comes once more.
    @Test(
        arguments: [
            (.secrets, 100, true), (.scopes, 100, true), (.secrets, 15_000, true), (.secrets, 17_000, false),
            (.listen, 100, false),
        ] as [(FaultKind, Moment, Bool)])
    func `a refresh token that comes again after a refusal, unless the tenant was configured anew`(
        kind: FaultKind, before: Moment, isExplained: Bool
    ) async {
        var configuration = ProviderConfiguration(profile: .tidal, clients: [ProviderClient("app")])
        configuration.rotation = .rotate(grace: .zero)
        let provider = DevelopmentProvider(configuration)
        let token = provider.openSessions(users: ["alice"])?.first?.refreshToken ?? ""
        let driver = ProviderDriver(provider)
        let begun = rightNow()
        // The second one and the third one are refused; only the third one follows a refusal.
        for _ in 0..<3 { _ = await driver.refresh(token) }
        let change = Disturbance(kind: kind, replica: nil, begun: begun - before - 10, ended: begun - before, text: "")
        let verdict = ChaosVerdict(
            ChaosRecords.State(disturbances: [change]), provider: provider, unknownOutcomes: [:], polling: [],
            userOfName: ["alice": 0], graceSeconds: 0, judgesRecovery: true)
        #expect(verdict.violations.count { $0.rule == .presentedAgain } == (isExplained ? 1 : 2))
        #expect(verdict.repeats == (isExplained ? ["a refusal under an earlier configuration": 1] : [:]))
    }

    @Test(arguments: [(false, 1), (true, 0)])
    func `a refresh token that comes twice without a word of why`(isAnnounced: Bool, count: Int) async {
        var configuration = ProviderConfiguration(profile: .tidal, clients: [ProviderClient("app")])
        configuration.rotation = .rotate(grace: .seconds(10))
        let provider = DevelopmentProvider(configuration)
        let token = provider.openSessions(users: ["alice"])?.first?.refreshToken ?? ""
        let driver = ProviderDriver(provider)
        let begun = rightNow()
        _ = await driver.refresh(token)
        _ = await driver.refresh(token)
        let kill = Disturbance(kind: .kill, replica: 0, begun: begun, ended: begun + 100, text: "SIGKILL")
        let verdict = ChaosVerdict(
            ChaosRecords.State(disturbances: [kill]), provider: provider,
            unknownOutcomes: isAnnounced ? [ChaosCluster.digest(0): [begun - 500]] : [:], polling: [],
            userOfName: ["alice": 0], graceSeconds: 10, judgesRecovery: true)
        #expect(verdict.violations.map(\.rule) == Array(repeating: .presentedAgain, count: count))
        #expect(verdict.repeats == (isAnnounced ? ["an unknown outcome (kill)": 1] : [:]))
        #expect(verdict.refreshes == 2)
    }
}
