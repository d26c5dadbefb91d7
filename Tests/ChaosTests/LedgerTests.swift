import BrokerTesting
import DevelopmentProvider
import Testing

/// That the verdict finds what events, probes and the provider's ledger say is wrong, and tells what could have been
/// prevented from what could not.
@Suite struct `A ledger` {
    fileprivate static let start: Moment = 1_000_000

    private static func verdict(
        _ state: ChaosRecords.State, provider: DevelopmentProvider? = nil, grace: Int = 10
    ) -> ChaosVerdict {
        let provider =
            provider ?? DevelopmentProvider(ProviderConfiguration(profile: .tidal, clients: [ProviderClient("app")]))
        return ChaosVerdict(
            state, provider: provider, unknownOutcomes: [:], polling: [], userOfName: ["alice": 0],
            graceSeconds: grace, judgesRecovery: true)
    }

    private static func login(version: Int64? = nil, family: Int = 1, at begun: Moment = start) -> Write {
        var login = Write(user: 0, kind: .login, begun: begun - 10)
        login.done = begun
        login.families = [family]
        login.version = version
        return login
    }

    private static func read(_ version: Int64, at: Moment = 100, _ change: (inout Read) -> Void = { _ in }) -> Read {
        var read = Read(user: 0, replica: 0, begun: start + at)
        read.ended = read.begun + 5
        read.outcome = .user
        read.version = version
        read.family = 1
        read.token = Int(version)
        read.expiresAt = read.begun + 64_000
        read.expiresIn = 62
        change(&read)
        return read
    }

    // MARK: Tokens

    @Test(arguments: [(1, 1, .short), (0, 1, .expired), (-1, 1, .expired)] as [(Moment, Int, ChaosVerdict.Rule)])
    func `a token whose time is over`(left: Moment, count: Int, rule: ChaosVerdict.Rule) {
        let read = Self.read(10) { read in
            read.wanted = 2000
            read.expiresAt = read.begun + left
            read.expiresIn = 0
        }
        let state = ChaosRecords.State(reads: [read], writes: [Self.login()])
        #expect(Self.verdict(state).violations.map(\.rule) == Array(repeating: rule, count: count))
    }

    @Test(arguments: [(1000, 0), (999, 1)] as [(Moment, Int)])
    func `a token with less time than was asked for`(left: Moment, count: Int) {
        let read = Self.read(10) { read in
            read.wanted = 2000
            read.expiresAt = read.begun + left
            read.expiresIn = 0
        }
        let state = ChaosRecords.State(reads: [read], writes: [Self.login()])
        #expect(Self.verdict(state).violations.map(\.rule) == Array(repeating: .short, count: count))
    }

    @Test func `another user's token, and a revoked one`() {
        let foreign = Self.read(10) { $0.isForeign = true }
        let revoked = Self.read(10, at: 200) { $0.isRevoked = true }
        let state = ChaosRecords.State(reads: [foreign, revoked], writes: [Self.login()])
        #expect(Self.verdict(state).violations.map(\.rule) == [.foreign, .dead])
    }

    @Test func `a version that goes back from one session to the next`() {
        let reads = [Self.read(11), Self.read(10, at: 3000) { $0.family = 2 }]
        let state = ChaosRecords.State(
            reads: reads, writes: [Self.login(), Self.login(family: 2, at: Self.start + 2000)])
        #expect(Self.verdict(state).violations.map(\.rule) == [.wentBack])
    }

    // MARK: Events

    private static func updated(_ id: String, _ version: Int64, listener: Int = 0) -> Heard {
        Heard(
            listener: listener, at: start + 200, id: id, name: "credentials.updated",
            data: #"{"tenant":"t0","storage_key":"user-0","version":\#(version),"cause":"refresh"}"#)
    }

    private static func rules(_ heard: [Heard], _ reads: [Read] = [], login version: Int64? = nil)
        -> [ChaosVerdict.Rule]
    {
        verdict(
            ChaosRecords.State(reads: reads, writes: [login(version: version)], heard: heard, listeners: [0])
        ).violations.map(\.rule)
    }

    @Test func `one event for each version, in order`() {
        let heard = [Self.updated("7-0", 10), Self.updated("7-4", 11), Self.updated("12-0", 12)]
        #expect(Self.rules(heard, [Self.read(11), Self.read(12, at: 200)], login: 10).isEmpty)
    }

    @Test func `a version that was served, and one that a login stored, without an event`() {
        #expect(Self.rules([Self.updated("7-0", 10)], [Self.read(11)], login: 10) == [.eventMissing])
        #expect(Self.rules([Self.updated("7-0", 11)], [Self.read(11)], login: 10) == [.eventMissing])
        #expect(Self.rules([], [], login: 10) == [.eventMissing])
    }

    @Test func `two events for one version`() {
        #expect(Self.rules([Self.updated("7-0", 10), Self.updated("8-0", 10)], login: 10) == [.eventTwice])
    }

    @Test(arguments: [["7-0", "7-0"], ["7-1", "7-0"], ["8-0", "7-1"], ["7", "8-0"]])
    func `a stream of events that is not in order`(ids: [String]) {
        let heard = zip(ids, 10...).map { Self.updated($0, $1) }
        #expect(Self.rules(heard, login: 11) == [.eventOrder])
    }

    @Test func `a stream of events that began anew, and one whose versions go back`() {
        let reset = Heard(listener: 0, at: Self.start, id: "9-0", name: "stream.reset", data: "{}")
        #expect(Self.rules([reset]) == [.eventOrder])
        #expect(Self.rules([Self.updated("7-0", 11), Self.updated("8-0", 10)]) == [.wentBack])
    }

    @Test func `listeners are waited for until each has heard of all that was served`() {
        var state = ChaosRecords.State(reads: [Self.read(11)], heard: [Self.updated("7-0", 11)], listeners: [0, 2])
        #expect(!ChaosVerdict.isCaughtUp(state))
        state.heard.append(Self.updated("7-0", 11, listener: 2))
        #expect(ChaosVerdict.isCaughtUp(state))
    }

    // MARK: A database that goes back

    /// A standby that was cut off a second after the start took the place of a server that had ended a second later. It had
    /// version 10 of the user's record.
    private static let failover = Failover(
        cutOff: start + 1000, ended: start + 2000, versions: [0: 10], lastSequence: 6)

    /// A version that was given at so many milliseconds from the start.
    private static func version(_ at: Moment) -> Int64 { (start + at) * 1000 }

    private static func afterFailover(_ heard: [Heard], served version: Int64, login: Bool = false) -> ChaosVerdict {
        verdict(
            ChaosRecords.State(
                reads: login ? [] : [read(version, at: 2500)], writes: [Self.login(version: login ? version : nil)],
                heard: heard, failovers: [failover], listeners: [0]))
    }

    @Test(
        arguments: [
            (-4001, 1), (-4000, 0), (1000, 0), (1999, 0), (2200, 0), (2201, 1),
        ] as [(Moment, Int)], [true, false])
    func `a version that was lost needs no event where a later one has one`(
        row: (given: Moment, count: Int), isLogin: Bool
    ) {
        let verdict = Self.afterFailover(
            [Self.updated("90-0", Self.version(4000))], served: Self.version(row.given), login: isLogin)
        #expect(verdict.violations.map(\.rule) == Array(repeating: .eventMissing, count: row.count))
        #expect(ChaosVerdict.isCaughtUp(verdict.state) == (isLogin || row.count == 0))
    }

    @Test func `a version that was lost is missing where nothing later is told`() {
        let lost = Self.version(1500)
        for heard in [[], [Self.updated("7-0", 10)], [Self.updated("7-0", lost - 1)]] {
            let verdict = Self.afterFailover(heard, served: lost)
            #expect(verdict.violations.map(\.rule) == [.eventMissing])
            #expect(!ChaosVerdict.isCaughtUp(verdict.state))
        }
        // A logout that is stored again is later as well.
        let logout = Heard(
            listener: 0, at: Self.start + 4000, id: "90-0", name: "credentials.deauthorized",
            data: #"{"tenant":"t0","storage_key":"user-0","version":\#(Self.version(4000)),"cause":"logout"}"#)
        #expect(Self.afterFailover([logout], served: lost).violations.isEmpty)
    }

    @Test func `a version that the promoted server has needs its event`() {
        let later = Self.updated("90-0", Self.version(4000))
        #expect(Self.afterFailover([later], served: 10).violations.map(\.rule) == [.eventMissing])
        let kept = Self.version(1500)
        let state = ChaosRecords.State(
            reads: [Self.read(kept, at: 2500)], writes: [Self.login()], heard: [later],
            failovers: [
                Failover(cutOff: Self.start + 1000, ended: Self.start + 2000, versions: [0: kept], lastSequence: 6)
            ],
            listeners: [0])
        #expect(Self.verdict(state).violations.map(\.rule) == [.eventMissing])
    }

    @Test(
        arguments: [
            (10, "7-0", "10006-0", []), (10, "10005-0", "10006-0", []), (10, "6-0", "10006-0", [.eventTwice]),
            (10, "7-0", "10005-0", [.eventTwice]), (10, "10006-0", "10007-0", [.eventTwice]),
            (11, "7-0", "10006-0", [.eventTwice]),
        ] as [(Int64, String, String, [ChaosVerdict.Rule])])
    func `an event whose sequence was lost, and its commit not, is told again`(
        version: Int64, first: String, second: String, rules: [ChaosVerdict.Rule]
    ) {
        let heard = [Self.updated(first, version), Self.updated(second, version)]
        let state = ChaosRecords.State(
            writes: [Self.login()], heard: heard, failovers: [Self.failover], listeners: [0])
        #expect(Self.verdict(state).violations.map(\.rule) == rules)
    }

    @Test func `an event that is told again takes no version back, and neither does another one`() {
        let lost = Self.version(1500)
        let again = [Self.updated("7-0", 10), Self.updated("8-0", lost), Self.updated("10006-0", 10)]
        let other = [Self.updated("7-0", 11), Self.updated("8-0", lost), Self.updated("10006-0", 10)]
        for (heard, rules) in [(again, []), (other, [.wentBack])] as [([Heard], [ChaosVerdict.Rule])] {
            let state = ChaosRecords.State(
                writes: [Self.login()], heard: heard, failovers: [Self.failover], listeners: [0])
            #expect(Self.verdict(state).violations.map(\.rule) == rules)
        }
    }

    @Test func `neither a version nor a place in the stream goes back with the database`() {
        let lost = Self.version(1500)
        let reads = [Self.read(lost, at: 1600), Self.read(10, at: 9000)]
        let heard = [Self.updated("7-0", 10), Self.updated("8-0", lost), Self.updated("8-0", lost + 1)]
        let state = ChaosRecords.State(
            reads: reads, writes: [Self.login()], heard: heard, failovers: [Self.failover], listeners: [0])
        #expect(Set(Self.verdict(state).violations.map(\.rule)) == [.wentBack, .eventOrder])
    }

    // MARK: Recovery

    @Test(
        arguments: [
            (.kill, 2000, 0), (.kill, 2001, 1), (.kill, nil, 1), (.pause, 6000, 0), (.pause, 6001, 1),
            (.failover, 6000, 0), (.failover, 6001, 1),
        ] as [(FaultKind, Moment?, Int)])
    func `a user who has no token in time after a fault`(kind: FaultKind, took: Moment?, count: Int) {
        let recovery = Recovery(kinds: [kind], user: 0, replica: 1, from: Self.start, took: took)
        let verdict = Self.verdict(ChaosRecords.State(recoveries: [recovery]))
        #expect(verdict.violations.map(\.rule) == Array(repeating: .late, count: count))
    }

    // MARK: Losses

    /// A provider at which alice's first refresh token is used twice, the second time when the grace period is over.
    private struct Reuse {
        let clock = ProviderClock(start: LedgerSuite.start)
        let provider: DevelopmentProvider
        private let driver: ProviderDriver
        private let token: String

        init(grace: Int = 10) {
            var configuration = ProviderConfiguration(profile: .tidal, clients: [ProviderClient("app")])
            configuration.rotation = .rotate(grace: .seconds(grace))
            let clock = clock
            provider = DevelopmentProvider(configuration, now: { clock.milliseconds }, clock: clock)
            token = provider.openSessions(users: ["alice"])?.first?.refreshToken ?? ""
            driver = ProviderDriver(provider)
        }

        func use(at milliseconds: Moment, _ mode: Fault.Mode? = nil) async {
            clock.advance(by: .milliseconds(milliseconds - (clock.milliseconds - LedgerSuite.start)))
            if let mode { provider.script(Fault(.token, mode: mode)) }
            _ = await driver.refresh(token)
        }
    }

    private static func losses(
        _ reuse: Reuse, grace: Int = 10, _ disturbances: [Disturbance] = [], _ writes: [Write] = [login()]
    ) -> [Bool] {
        let verdict = verdict(
            ChaosRecords.State(writes: writes, disturbances: disturbances), provider: reuse.provider, grace: grace)
        // What could have been prevented is a violation, and what could not is none.
        let avoidable = verdict.losses.filter(\.isAvoidable)
        let reuses = verdict.violations.filter { $0.rule == .reuse }
        #expect(reuses.count == avoidable.count)
        return verdict.losses.map(\.isAvoidable)
    }

    private static func fault(_ kind: FaultKind, _ from: Moment, _ to: Moment) -> Disturbance {
        Disturbance(kind: kind, replica: 0, begun: start + from, ended: start + to, text: "")
    }

    @Test func `an answer that was delivered need not be asked for again`() async {
        let reuse = Reuse()
        await reuse.use(at: 1000)
        await reuse.use(at: 12_000)
        #expect(Self.losses(reuse) == [true])
    }

    @Test(arguments: [Fault.Mode.dropAfterWork, .answerAfterWork, .malformed])
    func `an answer that was lost can be asked for within the grace period`(mode: Fault.Mode) async {
        let reuse = Reuse()
        await reuse.use(at: 1000, mode)
        await reuse.use(at: 12_000)
        #expect(Self.losses(reuse) == [true])
    }

    @Test func `an answer that was lost is lost where there is no grace period`() async {
        let reuse = Reuse(grace: 0)
        await reuse.use(at: 1000, .dropAfterWork)
        await reuse.use(at: 1500)
        #expect(Self.losses(reuse, grace: 0) == [false])
    }

    /// Its caller gives a call up after two seconds.
    @Test(arguments: [(1799, true), (1800, false), (2900, false)] as [(Moment, Bool)])
    func `a call that the provider comes to after another one with the same token`(
        took: Moment, isAvoidable: Bool
    ) async {
        let reuse = Reuse(grace: 0)
        reuse.provider.script(Fault(.token, delay: .milliseconds(took)))
        async let late: Void = reuse.use(at: 1000)
        await reuse.clock.waitForSleepers(1)
        await reuse.use(at: 1700)
        reuse.clock.advance(by: .milliseconds(took - 700))
        await late
        #expect(Self.losses(reuse, grace: 0) == [isAvoidable])
    }

    /// The first call comes at 1000 and the second one at 1400; the provider comes to the first one at 1500.
    @Test(
        arguments: [(999, true), (1000, false), (1400, false), (1401, true)] as [(Moment, Bool)])
    func `a call whose caller was killed before another one was made`(killed: Moment, isAvoidable: Bool) async {
        let reuse = Reuse(grace: 0)
        reuse.provider.script(Fault(.token, delay: .milliseconds(500)))
        async let late: Void = reuse.use(at: 1000)
        await reuse.clock.waitForSleepers(1)
        await reuse.use(at: 1400)
        reuse.clock.advance(by: .milliseconds(100))
        await late
        #expect(Self.losses(reuse, grace: 0, [Self.fault(.kill, killed, killed + 10)]) == [isAvoidable])
        #expect(Self.losses(reuse, grace: 0, [Self.fault(.stop, killed, killed + 10)]) == [true])
    }

    @Test(arguments: [(1000, 9000, true), (1000, 9001, false), (0, 20_000, false)] as [(Moment, Moment, Bool)])
    func `a grace period that passes while the database is away`(from: Moment, to: Moment, isAvoidable: Bool) async {
        let reuse = Reuse()
        await reuse.use(at: 1000, .dropAfterWork)
        await reuse.use(at: 12_000)
        #expect(Self.losses(reuse, [Self.fault(.postgres, from, to)]) == [isAvoidable])
        #expect(Self.losses(reuse, [Self.fault(.stop, from, to)]) == [true])
    }

    @Test(arguments: [(5000, true), (5001, false)] as [(Moment, Bool)])
    func `a grace period that passes while a database that went back is waited for`(to: Moment, isAvoidable: Bool) async
    {
        let reuse = Reuse()
        await reuse.use(at: 1000, .dropAfterWork)
        await reuse.use(at: 12_000)
        // No refresh token is presented for four seconds more.
        #expect(Self.losses(reuse, [Self.fault(.failover, 1000, to)]) == [isAvoidable])
    }

    @Test func `a delivered answer is lost with the replica that is killed at that moment`() async {
        let reuse = Reuse(grace: 0)
        await reuse.use(at: 1000)
        await reuse.use(at: 1500)
        #expect(Self.losses(reuse, grace: 0) == [true])
        #expect(Self.losses(reuse, grace: 0, [Self.fault(.kill, 1400, 2000)]) == [false])
        #expect(Self.losses(reuse, grace: 0, [Self.fault(.kill, 2001, 2500)]) == [true])
        #expect(Self.losses(reuse, grace: 0, [Self.fault(.link, 900, 1050)]) == [false])
    }

    @Test func `a session that its user had ended is not lost`() async {
        let reuse = Reuse()
        await reuse.use(at: 1000)
        await reuse.use(at: 12_000)
        var logout = Write(user: 0, kind: .logout, begun: Self.start + 5000)
        logout.done = Self.start + 5005
        let state = ChaosRecords.State(writes: [Self.login(), logout])
        let verdict = Self.verdict(state, provider: reuse.provider)
        #expect(verdict.losses.isEmpty)
        #expect(verdict.violations.map(\.rule) == [.presentedAgain, .reuse])
    }

    @Test func `a user who is told to log in while the session is alive at the provider is lost`() {
        var lower = Read(user: 0, replica: 0, begun: Self.start + 3000)
        lower.ended = lower.begun + 5
        lower.outcome = .lower
        let verdict = Self.verdict(ChaosRecords.State(reads: [lower, lower], writes: [Self.login()]))
        #expect(verdict.losses.map(\.isAvoidable) == [true])
        #expect(verdict.violations.map(\.rule) == [.lost])
    }
}

private typealias LedgerSuite = `A ledger`
