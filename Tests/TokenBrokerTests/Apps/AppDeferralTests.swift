import BrokerTesting
import CredentialStore
import Cryptography
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@testable import BrokerCore

/// Apps whose requests one replica could not answer in time, and that come to another replica.
@Suite struct `Apps that another replica did not answer` {
    private static let tenant = TenantName("t1")!

    /// Two replicas on one store and one clock, and an app that has not got the answer to its last refresh.
    private struct World {
        let time = ManualTime()
        let stores: [FaultyStore]
        let one: BrokerHarness
        let two: BrokerHarness
        /// The token that the app has.
        let token: String
        /// What the app has not got.
        let next: String

        init() async throws {
            let records = MemoryRecordStore { [time] in time.monotonic }
            stores = (0..<2).map { _ in FaultyStore(records, revalidateAfter: .seconds(5)) }
            one = try await BrokerHarness(store: stores[0], time: time)
            two = try await BrokerHarness(store: stores[1], time: time)
            await one.makeTenant()
            await one.makeClient()
            for broker in [one, two] { await broker.broker.core.apps.sessions.deferralReports.report() }
            token = await one.appSession()
            next = try #require(await one.refresh(token).json["refresh_token"]?.text)
        }

        var reports: DeferralReports { two.broker.core.apps.sessions.deferralReports }

        func pass(_ seconds: Int) { time.advance(by: .seconds(seconds)) }

        func expect(_ answer: BrokerHarness.Answer, isAnswered: Bool) async throws {
            if isAnswered {
                #expect(answer.status == 200, "\(answer.text)")
                #expect(answer.json["refresh_token"]?.text == next)
            } else {
                #expect(answer.status == 400, "\(answer.text)")
            }
            let causes = try await one.events(named: "session.ended", of: tenant).compactMap { $0["cause"]?.text }
            #expect(causes == (isAnswered ? [] : ["replay"]))
        }
    }

    // B02
    @Test(arguments: [true, false])
    func `is answered at the one where another one was cut off, and has come back`(isToldAgain: Bool) async throws {
        let world = try await World()
        if isToldAgain {
            world.stores[1].setDown(true)
            #expect(await world.two.refresh(world.token).status == 503)
            world.stores[1].setDown(false)
        }
        world.pass(11)
        await world.reports.report()
        try await world.expect(await world.one.refresh(world.token), isAnswered: isToldAgain)
    }

    // B02
    @Test func `is answered also when the next token was presented meanwhile`() async throws {
        let world = try await World()
        world.stores[1].setDown(true)
        #expect(await world.two.refresh(world.token).status == 503)
        world.stores[1].setDown(false)
        #expect(await world.one.refresh(world.next).status == 200)
        world.pass(11)
        await world.reports.report()
        try await world.expect(await world.one.refresh(world.token), isAnswered: true)
    }

    // B02
    @Test(arguments: [true, false])
    func `is answered while another replica is silent, unless it has the next token`(isUsed: Bool) async throws {
        let world = try await World()
        if isUsed { #expect(await world.one.refresh(world.next).status == 200) }
        world.pass(11)
        try await world.expect(await world.one.refresh(world.token), isAnswered: !isUsed)
    }

    // B02
    @Test func `is not answered when the other replica has ended as it should`() async throws {
        let world = try await World()
        await world.reports.finish()
        world.pass(11)
        try await world.expect(await world.one.refresh(world.token), isAnswered: false)
    }

    // B02
    @Test func `is answered also after an outage of the store of two minutes, once the other replica has reported`()
        async throws
    {
        let world = try await World()
        for store in world.stores { store.setDown(true) }
        // The app comes to the one replica in time, and to the other one later.
        for broker in [world.two, world.one, world.two, world.one, world.two, world.one] {
            #expect(await broker.refresh(world.token).status == 503)
            for replica in [world.one, world.two] {
                await replica.broker.core.apps.sessions.deferralReports.report()
            }
            world.pass(20)
        }
        for store in world.stores { store.setDown(false) }
        // The replica does not know yet whether it is the last one that reports.
        #expect(await world.one.refresh(world.token).status == 503)
        await world.one.broker.core.apps.sessions.deferralReports.report()
        #expect(await world.one.refresh(world.token).status == 503)
        await world.reports.report()
        try await world.expect(await world.one.refresh(world.token), isAnswered: true)
    }

    // B02
    @Test(arguments: [(4999, false), (5000, true), (5001, true)])
    func `is refused only when the store has been there for five seconds`(
        milliseconds: Int, isRefused: Bool
    ) async throws {
        let world = try await World()
        let reports = world.one.broker.core.apps.sessions.deferralReports
        world.stores[0].setDown(true)
        await reports.report()
        world.stores[0].setDown(false)
        world.pass(11)
        await reports.report()
        world.time.advance(by: .milliseconds(milliseconds))
        await world.reports.finish()
        let answer = await world.one.refresh(world.token)
        #expect(answer.status == (isRefused ? 400 : 503), "\(answer.text)")
    }

    // B02
    @Test func `waits for five seconds, also when the clock is set back meanwhile`() async throws {
        let world = try await World()
        world.pass(9)
        await world.reports.report()
        world.pass(2)
        world.time.holdSleeps()
        let answer = Task { await world.one.refresh(world.token) }
        await world.time.sleepers(of: .milliseconds(250))
        world.time.moveClock(by: .seconds(-3600))
        world.time.advance(by: .seconds(5))
        try await world.expect(await answer.value, isAnswered: true)
    }

    // B02
    @Test(arguments: [(69, true), (70, false)])
    func `is answered for a minute after it was in time`(seconds: Int, isAnswered: Bool) async throws {
        let world = try await World()
        world.pass(seconds)
        try await world.expect(await world.one.refresh(world.token), isAnswered: isAnswered)
    }

    // B02
    @Test func `waits for the report that tells of its ten seconds`() async throws {
        let world = try await World()
        world.pass(9)
        await world.reports.report()
        world.stores[1].setDown(true)
        #expect(await world.two.refresh(world.token).status == 503)
        world.stores[1].setDown(false)
        world.pass(2)
        world.time.holdSleeps()
        let answer = Task { await world.one.refresh(world.token) }
        await world.time.sleepers(of: .milliseconds(250))
        await world.reports.report()
        world.time.advance(by: .milliseconds(250))
        try await world.expect(await answer.value, isAnswered: true)
    }

    // B02
    @Test func `is answered when a request is still waiting at another replica`() async throws {
        let world = try await World()
        let gate = Gate()
        world.stores[1].holdNextRead(of: .session, gate)
        world.pass(9)
        let waiting = Task { await world.two.refresh(world.token) }
        await gate.arrivals()
        world.pass(2)
        await world.reports.report()
        try await world.expect(await world.one.refresh(world.token), isAnswered: true)
        gate.open()
        #expect(await waiting.value.status == 200)
    }

    // B02
    @Test func `is told to come again while the reports cannot be read`() async throws {
        let world = try await World()
        world.pass(11)
        await world.reports.report()
        // The session is in memory.
        world.stores[0].setDown(true)
        #expect(await world.one.refresh(world.token).status == 503)
        #expect(try await world.two.events(named: "session.ended", of: Self.tenant).isEmpty)
    }

    @Test func `a report that was lost is written again, and one that no replica can read counts for nothing`()
        async throws
    {
        let world = try await World()
        world.stores[1].onCommit(of: .process, .loseAnswer, .refuse(.unavailable), .refuse(.conflict))
        for _ in 0..<3 { await world.reports.report() }
        let record = OpenRecord(
            id: RecordID(.process, .broker, key: "unreadable"), version: 1, content: SecretBytes(utf8: "{}"),
            expires: world.time.now.advanced(by: .seconds(70)))
        try await world.one.broker.core.vault.commit([.insert(record)])
        world.pass(11)
        await world.reports.report()
        try await world.expect(await world.one.refresh(world.token), isAnswered: false)
    }

    @Test func `a broker that is the only writer of its store writes no report`() async throws {
        let broker = try await BrokerHarness()
        await broker.broker.core.apps.sessions.deferralReports.run()
        await broker.broker.core.apps.sessions.deferralReports.finish()
        #expect(try await broker.count(.process) == 0)
    }

    @Test func `a refusal over a limit does not make an app late that was told to come again`() {
        let time = ManualTime()
        let deferred = DeferredTokens(time: time)
        let (first, digest) = (time.now, [UInt8](repeating: 1, count: 32))
        for outcome in [DeferredTokens.Outcome.deferred, .refused] {
            #expect(deferred.begin(digest) == time.now)
            time.advance(by: .seconds(1))
            deferred.end(digest, arrival: first, outcome)
        }
        #expect(deferred.firstPresentation(of: digest) == first)
        deferred.end(digest, arrival: deferred.begin(digest), .answered)
        #expect(deferred.firstPresentation(of: digest) == nil)
        #expect(deferred.all.isEmpty)
    }
}

/// What a replica tells of the requests that it could not answer.
@Suite struct `Reports of deferred requests` {
    private static let end = ManualTime.beginning
    private static let digest = [UInt8](1...32)

    private static func after(_ milliseconds: Int) -> Timestamp { end.advanced(by: .milliseconds(milliseconds)) }

    @Test(arguments: [(-1, .deferred), (0, .deferred), (1, .none)] as [(Int, DeferralReport.Answer)])
    func `a token counts that was presented in time`(milliseconds: Int, answer: DeferralReport.Answer) {
        let deferral = Deferral(digest: Self.digest, arrival: Self.after(milliseconds))
        let report = DeferralReport(of: [deferral], through: Self.after(5000), isLast: false)
        #expect(report.answer(Self.digest, presentedUntil: Self.end, at: Self.after(5000)) == answer)
        let other = [0] + Self.digest.dropFirst()
        #expect(report.answer(other, presentedUntil: Self.end, at: Self.after(5000)) == .none)
    }

    @Test(
        arguments: [
            (-1, 4998, .toCome), (-1, 4999, .unknown), (-1, 5000, .unknown), (0, 5000, .none), (1, 60_000, .none),
        ] as [(Int, Int, DeferralReport.Answer)])
    func `a report that does not reach to the end is followed by another one, or its replica is silent`(
        through: Int, now: Int, answer: DeferralReport.Answer
    ) {
        let report = DeferralReport(of: [], through: Self.after(through), isLast: false)
        #expect(report.answer(Self.digest, presentedUntil: Self.end, at: Self.after(now)) == answer)
        let last = DeferralReport(of: [], through: Self.after(through), isLast: true)
        #expect(last.answer(Self.digest, presentedUntil: Self.end, at: Self.after(now)) == .none)
    }

    @Test(arguments: [0, 1, 511, 512, 513, 16_384])
    func `has the latest five hundred and twelve, and when the others began`(count: Int) throws {
        let deferrals = (0..<count).map { number in
            let digest = [UInt8(number >> 8), UInt8(number & 255)] + Self.digest.dropFirst(2)
            return Deferral(digest: digest, arrival: Self.after(number))
        }
        let report = DeferralReport(of: deferrals, through: Self.after(-1), isLast: false)
        #expect(report.deferrals.count == min(count, 512))
        #expect(report.deferrals.last?.arrival == deferrals.last?.arrival)
        #expect(report.restSince == (count > 512 ? Self.after(0) : nil))
        #expect(DeferralReport(report.encoded) == report)
        let answer = report.answer(Self.digest, presentedUntil: Self.end, at: Self.end)
        #expect(answer == (count > 512 ? .unknown : .toCome))
        #expect(report.encoded.count < 20_000)
    }

    @Test(arguments: ["", "{}", #"{"through":1,"last":false,"deferrals":"AAAA"}"#, #"{"through":1,"deferrals":""}"#])
    func `one that is damaged is not read`(_ text: String) { #expect(DeferralReport(Array(text.utf8)) == nil) }
}
