import AuthTesting
import BrokerCore
import BrokerTesting
import CredentialStore
import OAuth
import Testing
import TokenBroker

/// Records of a wave that cannot be read: they are damaged, or a newer build has written them.
@Suite(.timeLimit(.minutes(2))) struct `A wave with records that cannot be read` {
    private typealias Waves = `A wave of refusals`

    /// Alters the record so that it does not open any more.
    /// - Returns: the record as it was.
    @discardableResult
    private static func damage(
        _ broker: BrokerHarness, _ kind: RecordKind, _ index: Int
    ) async throws -> StoredRecord {
        let id = RecordID(kind, try #require(TenantName("t1")), key: Waves.key(index))
        let whole = try #require(try await broker.store.read(id))
        var damaged = whole
        damaged.sealed[damaged.sealed.count - 1] ^= 1
        try await replace(broker, whole, by: damaged)
        return whole
    }

    private static func replace(
        _ broker: BrokerHarness, _ old: StoredRecord, by new: StoredRecord
    ) async throws {
        try await broker.store.commit([.remove(old.id, version: old.version)])
        try await broker.store.commit([.insert(new)])
    }

    private static func presented(_ broker: BrokerHarness, after count: Int) -> [String?] {
        broker.transport.seen.dropFirst(count).map { $0.form["refresh_token"] }
    }

    @Test func `tries the sets that can be read, and frees them`() async throws {
        let broker = try await Waves.make(5)
        await Waves.wave(broker)
        for index in [0, 3] { try await Self.damage(broker, .credentials, index) }
        let calls = broker.transport.seen.count
        for _ in 0..<4 {
            broker.time.advance(by: .seconds(10))
            await Waves.work(broker)
        }
        #expect(Self.presented(broker, after: calls) == ["r1", "r2", "r4", "r1"])
        #expect(broker.log.contains { $0.contains("held_set_unreadable") && $0.contains(Waves.key(0)) })
        broker.transport.always(Waves.alive)
        broker.time.advance(by: .seconds(10))
        await Waves.work(broker)
        #expect(try await Waves.told(broker, .providerRecovered).count == 1)
        #expect(
            try await Waves.told(broker, .credentialsRecovered).compactMap { $0["storage_key"]?.text }
                == [1, 2, 4].map(Waves.key))
        #expect(try await broker.count(.held) == 0)
        for index in [1, 2, 4] { #expect(await Waves.get(broker, index).token == "new") }
    }

    @Test func `puts back the sessions that can be read`() async throws {
        let broker = try await Waves.make(5)
        for index in 0..<5 { _ = await Waves.get(broker, index) }
        try await Self.damage(broker, .quarantine, 0)
        try await Self.damage(broker, .credentials, 2)
        await Waves.work(broker)
        #expect(await Waves.list(broker, "held") == [1, 3, 4].map(Waves.key))
        let calls = broker.transport.seen.count
        broker.time.advance(by: .seconds(10))
        await Waves.work(broker)
        #expect(Self.presented(broker, after: calls) == ["r1"])
    }

    @Test func `goes on where no held set can be read, until one can`() async throws {
        let broker = try await Waves.make(5)
        await Waves.wave(broker)
        var whole: [StoredRecord] = []
        for index in 0..<5 { whole.append(try await Self.damage(broker, .credentials, index)) }
        let calls = broker.transport.seen.count
        for _ in 0..<3 {
            broker.time.advance(by: .seconds(10))
            await Waves.work(broker)
        }
        #expect(broker.transport.seen.count == calls)
        #expect(try await Waves.told(broker, .providerRecovered).isEmpty)
        let damaged = try #require(try await broker.store.read(whole[4].id))
        try await Self.replace(broker, damaged, by: whole[4])
        broker.transport.always(Waves.alive)
        broker.time.advance(by: .seconds(10))
        await Waves.work(broker)
        #expect(Self.presented(broker, after: calls) == ["r4"])
        #expect(try await Waves.told(broker, .providerRecovered).count == 1)
    }
}

/// A store that does not take what a refused refresh has it store, for longer than its caller waits.
@Suite(.timeLimit(.minutes(2))) struct `A wave with a store that is away` {
    private typealias Waves = `A wave of refusals`

    @Test func `stores each refusal once the store answers, however often that was tried`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Waves.make(6, store: store)
        for index in 0..<4 { _ = await Waves.get(broker, index) }
        for (index, kind) in [(4, RecordKind.wave), (5, .held)] {
            store.disturb(Array(repeating: .refuse, count: 40)) { $0.writes(kind) }
            let answer = await Waves.get(broker, index)
            #expect((answer.status, answer.code) == (503, "storage_unavailable"))
            await broker.broker.core.renewer.finish()
            #expect(store.remainingFaults == 0)
            #expect(await Waves.get(broker, index).status == 424)
        }
        #expect(broker.transport.seen.count == 6)
        #expect(try await Waves.told(broker, .providerDegraded).count == 1)
        await Waves.work(broker)
        #expect(await Waves.list(broker, "held") == (0..<6).map(Waves.key))
    }
}
