import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

@testable import BrokerCore

/// Two replicas with journals that are killed while their store goes back, and started one after the other. The second one's
/// journal has the newest refresh token.
@Suite(.timeLimit(.minutes(1))) struct `A journal whose replica has not started again` {
    private static let force = "policy=local_force_refresh"

    private final class Setting: Sendable {
        let time = ManualTime(skipsSleeps: true)
        let store: RewindingStore
        let group = ReplicaStore.Group()
        let directories = [StoreFixtureDirectory(), StoreFixtureDirectory()]
        let wait: Duration

        init(wait: Duration = .seconds(60)) {
            self.wait = wait
            store = RewindingStore(MemoryRecordStore { [time] in time.monotonic })
        }

        func start(_ index: Int) async throws -> BrokerHarness {
            let way = ReplicaStore(store, in: group)
            let broker = try await BrokerHarness(
                store: way, time: time, journal: try await directories[index].journal()
            ) { $0.core.journalWait = self.wait }
            way.follow()
            try await broker.broker.core.takeUpJournal()
            _ = await broker.broker.core.storeRecovery.check()
            return broker
        }

        func kill(_ broker: BrokerHarness) async {
            await broker.broker.core.renewer.publisher.journal?.close()
        }

        /// Both are killed after the second one was granted "r2" for "r1", and the store has lost that.
        /// - Parameter lineage: what the store says of itself then; nil for a new timeline.
        func lose(_ lineage: StoreLineage? = nil) async throws {
            let (one, two) = (try await start(0), try await start(1))
            await one.makeTenant()
            await one.set("a1", refresh: "r1")
            store.note()
            if lineage != nil {
                store.promote()
                time.advance(by: .seconds(10))
                for broker in [one, two] { _ = await broker.broker.core.storeRecovery.check() }
                time.advance(by: .seconds(10))
            }
            #expect(await refresh(two, to: 2).token == "a2")
            for broker in [one, two] { await kill(broker) }
            time.advance(by: .seconds(1))
            store.goBack(to: lineage)
        }

        func refresh(_ broker: BrokerHarness, to token: Int) async -> BrokerHarness.Answer {
            broker.transport.enqueue(.json(200, BrokerHarness.token("a\(token)", refresh: "r\(token)")))
            return await broker.get(force)
        }

        func presented(_ broker: BrokerHarness) -> String? { broker.transport.seen.last?.form["refresh_token"] }

        func registered() async throws -> [StoredRecord] {
            try await store.list(.journal, tenant: .broker, after: nil, limit: 10)
        }
    }

    /// The store has a new timeline, as after a failover; or it is the server of before again, whose records know of no failover.
    @Test(arguments: [nil, StoreLineage(system: 1, timeline: 1, position: 0)])
    func `keeps every replica from presenting a refresh token until it is taken up`(lineage: StoreLineage?) async throws
    {
        let setting = Setting()
        try await setting.lose(lineage)
        let early = try await setting.start(0)
        let refused = await early.get(Self.force)
        #expect((refused.status, refused.code, refused.retryAfter) == (503, "storage_unavailable", 5))
        #expect(early.transport.seen.isEmpty)
        // What is valid is served meanwhile.
        #expect(await early.get("policy=local").token == "a1")
        let line = try #require(early.log.first { $0.contains("journal_awaited") })
        let registered = try await setting.registered()
        #expect(registered.count == 2 && registered.count { line.contains($0.id.key) } == 1)
        #expect(early.broker.core.journals.awaitedCount == 1)

        _ = try await setting.start(1)
        // A list of journals is good for a quarter of a second.
        setting.time.advance(by: .milliseconds(250))
        _ = await early.broker.core.storeRecovery.check()
        #expect(early.log.contains { $0.contains("journal_taken_up") })
        #expect(early.broker.core.journals.awaitedCount == 0)
        #expect(await setting.refresh(early, to: 3).token == "a3")
        #expect(setting.presented(early) == "r2")
    }

    /// The other replica has noticed it, and this one learns of it after it has stored again what an earlier loss had taken.
    @Test func `is not registered for a loss after which nothing was stored again yet`() async throws {
        let setting = Setting()
        let (one, two) = (try await setting.start(0), try await setting.start(1))
        await one.makeTenant()
        func lose(_ broker: BrokerHarness) { broker.broker.core.renewer.records.rollback.note() }
        func epochs() async throws -> Set<Int64> {
            Set(
                try await one.vault.list(.journal, tenant: .broker, limit: 10).compactMap {
                    RegisteredJournal($0)?.epoch
                })
        }
        for broker in [one, two] { lose(broker) }
        for broker in [one, two] { _ = await broker.broker.core.storeRecovery.check() }
        #expect(try await epochs().count == 1)
        setting.time.advance(by: .seconds(20))
        lose(one)
        _ = await one.broker.core.storeRecovery.check()
        #expect(try await epochs().count == 2)
        _ = await two.broker.core.storeRecovery.check()
        #expect(try await epochs().count == 2)
        _ = await two.broker.core.storeRecovery.check()
        #expect(try await epochs().count == 1)
    }

    @Test func `is waited for no longer than the operator has set`() async throws {
        let setting = Setting()
        try await setting.lose()
        let early = try await setting.start(0)
        setting.time.advance(by: .seconds(60))
        _ = await early.broker.core.storeRecovery.check()
        #expect(early.log.contains { $0.contains("journal_not_taken_up") })
        _ = await setting.refresh(early, to: 3)
        #expect(setting.presented(early) == "r1")
    }

    @Test func `is not waited for where the operator has set that`() async throws {
        let setting = Setting(wait: .zero)
        try await setting.lose()
        let early = try await setting.start(0)
        _ = await setting.refresh(early, to: 3)
        #expect(setting.presented(early) == "r1")
        #expect(!early.log.contains { $0.contains("journal_awaited") })
    }

    @Test func `is waited for no longer once an operator has it forgotten`() async throws {
        let setting = Setting()
        try await setting.lose()
        let early = try await setting.start(0)
        #expect(await early.get(Self.force).status == 503)
        let line = try #require(early.log.first { $0.contains("journal_awaited") })
        let lost = try #require(try await setting.registered().first { line.contains($0.id.key) })
        try await early.vault.commit([.remove(lost.id, version: lost.version)])
        _ = await setting.refresh(early, to: 3)
        #expect(setting.presented(early) == "r1")
    }

    /// A journal keeps grants for 15 minutes, and a replica registers its journal every minute.
    @Test(arguments: [(1019, 503), (1021, 200)])
    func `is waited for only where it may have something that the store has lost`(age: Int, status: Int) async throws {
        let setting = Setting()
        try await setting.lose()
        setting.time.advance(by: .seconds(age - 1))
        let early = try await setting.start(0)
        #expect(await setting.refresh(early, to: 3).status == status)
    }

    @Test func `is registered until a replica ends that has nothing which the store could lose`() async throws {
        let setting = Setting()
        let broker = try await setting.start(0)
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        #expect(try await setting.registered().count == 1)
        await broker.broker.core.storeRecovery.finish()
        #expect(try await setting.registered().count == 1)
        setting.time.advance(by: .seconds(900))
        await broker.broker.core.credentials.records.memory.expire()
        await broker.broker.core.storeRecovery.finish()
        #expect(try await setting.registered().isEmpty)
    }

    /// A failover that all replicas outlive costs no more than the hold.
    @Test func `is not waited for where its replica runs`() async throws {
        let setting = Setting()
        let (one, two) = (try await setting.start(0), try await setting.start(1))
        await one.makeTenant()
        await one.set("a1", refresh: "r1")
        setting.store.note()
        #expect(await setting.refresh(two, to: 2).token == "a2")
        setting.time.advance(by: .seconds(1))
        setting.store.goBack()
        let lost = setting.time.monotonic
        for broker in [one, two, one] { _ = await broker.broker.core.storeRecovery.check() }
        #expect(await setting.refresh(one, to: 3).token == "a3")
        #expect(setting.presented(one) == "r2")
        #expect(lost.duration(to: setting.time.monotonic) < .seconds(10))
        #expect(one.broker.core.journals.awaitedCount == 0)
    }
}
