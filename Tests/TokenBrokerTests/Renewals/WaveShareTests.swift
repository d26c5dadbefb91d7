import AuthTesting
import BrokerCore
import BrokerTesting
import CredentialStore
import OAuth
import Testing
import TokenBroker

/// That a wave is a share of all refreshes of its tenant, at whichever replica, at its beginning and while it lasts.
@Suite(.timeLimit(.minutes(2))) struct `The share of a wave` {
    private typealias Waves = `A wave of refusals`

    /// Replicas with one store, which hear of each other's commits.
    private static func replicas(_ count: Int) async throws -> [BrokerHarness] {
        let (time, group) = (ManualTime(), ReplicaStore.Group())
        let base = MemoryRecordStore { time.monotonic }
        let feeds = (0..<count).map { _ in ReplicaStore(base, in: group) }
        var brokers: [BrokerHarness] = []
        for feed in feeds { brokers.append(try await BrokerHarness(store: feed, time: time)) }
        for feed in feeds { feed.follow() }
        return brokers
    }

    private static func work(_ brokers: [BrokerHarness]) async {
        for broker in brokers { await broker.broker.core.waveJob.handleAllDue() }
    }

    /// A provider that refuses the first five users, and refreshes all others.
    private static func revokeFive(_ broker: BrokerHarness) {
        let (dead, alive) = (Waves.dead, Waves.alive)
        broker.transport.always(
            .decide { seen in
                (0..<5).contains { seen.form["refresh_token"] == "r\($0)" } ? dead : alive
            })
    }

    // MARK: The beginning

    @Test(arguments: [2, 3, 10], [(5, true), (6, false)])
    func `counts what succeeds at replicas that meet no refusal`(
        count: Int, _ expected: (renewed: Int, isWave: Bool)
    ) async throws {
        let brokers = try await Self.replicas(count)
        let (first, time) = (brokers[0], brokers[0].time)
        await Waves.fill(first, 5 + expected.renewed)
        for index in 0..<expected.renewed {
            let other = brokers[1 + index % (count - 1)]
            other.transport.always(Waves.alive)
            #expect(await Waves.get(other, 5 + index).token == "new")
        }
        #expect(try await first.count(.wave) == 0)
        for index in 0..<4 { #expect(await Waves.get(first, index).level == "basic") }
        // One user after the other has left, which asks nothing.
        #expect(try await first.count(.wave) == 1)
        time.holdSleeps()
        let fifth = Task { await Waves.get(first, 4) }
        await time.sleepers(of: .seconds(2))
        await Self.work(brokers)
        time.advance(by: .seconds(2))
        let answer = await fifth.value
        #expect(answer.status == (expected.isWave ? 424 : 200))
        #expect(try await Waves.told(first, .providerDegraded).count == (expected.isWave ? 1 : 0))
        #expect(first.transport.seen.count == 5)
    }

    @Test func `asks no replica where its own refreshes are enough`() async throws {
        let brokers = try await Self.replicas(2)
        let first = brokers[0]
        await Waves.fill(first, 11)
        Self.revokeFive(first)
        for index in 5..<11 { #expect(await Waves.get(first, index).token == "new") }
        first.time.holdSleeps()
        for index in 0..<5 { #expect(await Waves.get(first, index).level == "basic") }
        #expect(try await first.count(.wave) == 1)
    }

    @Test func `is met where no other replica answers in time`() async throws {
        let brokers = try await Self.replicas(2)
        let (first, time) = (brokers[0], brokers[0].time)
        await Waves.fill(first, 5)
        time.forgetSleeps()
        for index in 0..<5 { _ = await Waves.get(first, index) }
        #expect(time.slept.count { $0 == .seconds(2) } == 1)
        #expect(try await Waves.told(first, .providerDegraded).count == 1)
    }

    @Test(arguments: [(5, Duration.milliseconds(1250)), (3, .milliseconds(750)), (1, .milliseconds(250))])
    func `leaves replicas a quarter of a short window to answer`(window: Int, patience: Duration) async throws {
        let brokers = try await Self.replicas(2)
        let (first, time) = (brokers[0], brokers[0].time)
        await Waves.fill(first, 5, Waves.tenant(#", "wave": {"window": \#(window)}"#))
        time.forgetSleeps()
        for index in 0..<5 { _ = await Waves.get(first, index) }
        #expect(time.slept.count { $0 == patience } == 1)
        #expect(try await Waves.told(first, .providerDegraded).count == 1)
    }

    // MARK: The end

    /// A wave of five users who have really left, among twelve.
    private static func wave(_ broker: BrokerHarness) async {
        await Waves.fill(broker, 12)
        revokeFive(broker)
        broker.time.advance(by: .seconds(1))
        for index in 0..<5 { _ = await Waves.get(broker, index) }
        await Waves.work(broker)
        #expect(await Waves.list(broker, "held") == (0..<5).map(Waves.key))
    }

    private static func isOver(_ broker: BrokerHarness) async throws -> Bool {
        try await Waves.told(broker, .providerRecovered).count == 1
    }

    @Test func `ends it when the provider refreshes more of the others than it refuses`() async throws {
        let broker = try await BrokerHarness()
        await Self.wave(broker)
        for index in 5..<10 { #expect(await Waves.get(broker, index).token == "new") }
        broker.time.advance(by: .seconds(60))
        await Waves.work(broker)
        // Five held ones are half of ten.
        #expect(try await !Self.isOver(broker))
        #expect(await Waves.get(broker, 10).token == "new")
        broker.time.advance(by: .seconds(10))
        await Waves.work(broker)
        #expect(try await Self.isOver(broker))
        #expect(try await broker.count(.held) == 0)
        #expect(await Waves.list(broker, "active").count == 12)
        // They end now, and do not make the next wave.
        for index in 0..<5 { #expect(await Waves.get(broker, index).level == "basic") }
        #expect(try await Waves.told(broker, .providerDegraded).count == 1)
        #expect(await Waves.list(broker, "quarantined") == (0..<5).map(Waves.key))
    }

    @Test func `does not end it within the first window`() async throws {
        let broker = try await BrokerHarness()
        await Self.wave(broker)
        for index in 5..<12 { #expect(await Waves.get(broker, index).token == "new") }
        for _ in 0..<5 {
            broker.time.advance(by: .seconds(10))
            await Waves.work(broker)
            #expect(try await !Self.isOver(broker))
        }
        broker.time.advance(by: .seconds(10))
        await Waves.work(broker)
        #expect(try await Self.isOver(broker))
    }

    @Test(arguments: [20..<30, 5..<15])
    func `is not changed by sets that were granted in the wave, nor by one set again and again`(keys: Range<Int>)
        async throws
    {
        let broker = try await BrokerHarness()
        await Self.wave(broker)
        broker.time.advance(by: .seconds(1))
        for index in keys {
            await broker.set("a", refresh: "s\(index)", lifetime: .zero, storageKey: Waves.key(index))
            #expect(await Waves.get(broker, index).token == "new")
        }
        for _ in 0..<10 {
            #expect(await Waves.get(broker, 5, "&policy=local_force_refresh").token == "new")
        }
        broker.time.advance(by: .seconds(70))
        await Waves.work(broker)
        #expect(try await !Self.isOver(broker))
        #expect(await Waves.list(broker, "held") == (0..<5).map(Waves.key))
    }

    @Test func `is not changed by fewer users than begin a wave`() async throws {
        let broker = try await BrokerHarness()
        await Self.wave(broker)
        for index in 1..<5 { #expect(await broker.logOut(storageKey: Waves.key(index)).status == 204) }
        for index in 5..<9 { #expect(await Waves.get(broker, index).token == "new") }
        // The second search meets the marks of those that have logged out.
        for pause in [70, 10] {
            broker.time.advance(by: .seconds(pause))
            await Waves.work(broker)
            #expect(try await !Self.isOver(broker))
        }
        #expect(await Waves.get(broker, 9).token == "new")
        broker.time.advance(by: .seconds(10))
        await Waves.work(broker)
        #expect(try await Self.isOver(broker))
    }

    @Test(arguments: [2, 6]) func `ends it by what all replicas refresh, once`(count: Int) async throws {
        let brokers = try await Self.replicas(count)
        await Self.wave(brokers[0])
        for broker in brokers { Self.revokeFive(broker) }
        for index in 5..<11 { #expect(await Waves.get(brokers[index % count], index).token == "new") }
        for pause in [60, 10, 10] {
            brokers[0].time.advance(by: .seconds(pause))
            await Self.work(brokers)
        }
        await Self.work(brokers)
        #expect(try await Self.isOver(brokers[0]))
        #expect(try await brokers[0].count(.held) == 0)
        for broker in brokers { #expect(await broker.metric("token_broker_waves") == 0) }
    }

    @Test func `counts what a process has refreshed before it ended`() async throws {
        let store = MemoryRecordStore()
        let first = try await BrokerHarness(store: store)
        await Self.wave(first)
        for index in 5..<8 { #expect(await Waves.get(first, index).token == "new") }
        await Waves.work(first)
        let next = try await BrokerHarness(store: store, time: first.time)
        Self.revokeFive(next)
        await Waves.work(next)
        for index in 8..<11 { #expect(await Waves.get(next, index).token == "new") }
        next.time.advance(by: .seconds(60))
        await Waves.work(next)
        #expect(try await Self.isOver(next))
    }
}
