import BrokerTesting
import CredentialStore
import HTTPCodec
import JSON
import OAuth
import Postgres
import Reactor
import Synchronization
import Testing
import TokenBroker
import Waiting

@testable import BrokerCore

/// Brokers whose own work has begun, on a store that tells what it is asked for.
@Suite(.timeLimit(.minutes(1))) struct `Cache revalidation` {
    private struct Pair {
        let one: BrokerHarness
        let two: BrokerHarness
        /// Of the second replica.
        let store: QuestionStore
        let feed: ReplicaStore
        let time: ManualTime
        let key: String

        /// - Parameter follows: whether the feed of the second replica does.
        init(follows: Bool = true) async throws {
            time = ManualTime(skipsSleeps: false)
            let (base, group) = (MemoryRecordStore(), ReplicaStore.Group())
            let first = ReplicaStore(base, in: group)
            feed = ReplicaStore(base, in: group)
            store = QuestionStore(feed)
            one = try await BrokerHarness(store: first, time: time)
            two = try await BrokerHarness(store: store, time: time)
            first.follow()
            if follows { feed.follow() }
            await one.makeTenant("t1", #"{"client_id": "c1"}"#)
            key = await one.makeKey()
            await one.set("a1", refresh: "r1", lifetime: .seconds(86_400))
            two.broker.core.start()
            await time.sleepers(of: SleepLength.jobsOfReplica)
        }

        /// As many seconds go by, in which the feed is seen alive.
        func pass(_ seconds: Int, isAlive: Bool = true) async {
            for _ in 0..<seconds {
                await time.pass(.seconds(1))
                if isAlive { feed.tell(.alive) }
            }
        }

        func get() async -> BrokerHarness.Answer { await two.call(.get, "/credentials", key: key) }
    }

    @Test func `keeps callers from ever waiting for what they use to be read again`() async throws {
        let pair = try await Pair()
        // Every second, and now and then.
        for pause in [1, 100] {
            #expect(await pair.get().token == "a1")
            let reads = pair.store.reads
            for _ in 0..<600 / pause {
                await pair.pass(pause)
                #expect(await pair.get().token == "a1")
            }
            // One in a minute: which public base URL the replicas have.
            #expect(pair.store.reads == reads + 10)
        }
        // The API key, its tenant and the credentials, in each of 24 rounds.
        #expect((69...82).contains(pair.store.asked.count))
        #expect(pair.two.broker.core.cacheRevalidation.missedChangeCount == 0)
        await pair.two.broker.core.finish()
    }

    @Test func `lets entries expire that are not used`() async throws {
        let pair = try await Pair()
        #expect(await pair.get().token == "a1")
        await pair.pass(600)
        let (asked, reads) = (pair.store.asked.count, pair.store.reads)
        #expect((1...4 * 7).contains(asked))
        await pair.pass(120)
        #expect(pair.store.asked.count == asked)
        #expect(await pair.get().token == "a1")
        // The key, its tenant and the credentials; and twice the replicas' base URL.
        #expect(pair.store.reads == reads + 3 + 2)
        await pair.two.broker.core.finish()
    }

    @Test(arguments: [false, true])
    func `finds a change within a minute that no feed reported`(isUsed: Bool) async throws {
        let pair = try await Pair()
        await pair.pass(17)
        #expect(await pair.get().token == "a1")
        #expect(await pair.two.get("storage_key=other").level == "basic")
        await pair.pass(30)
        pair.feed.setDelivery(.fails)
        #expect(await pair.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        await pair.one.set("b1", refresh: "r2", storageKey: "other")
        #expect(await pair.get().token == "a1")
        for _ in 0..<59 {
            await pair.pass(1)
            if isUsed { _ = await pair.get() }
        }
        #expect(pair.two.broker.core.cacheRevalidation.missedChangeCount == 2)
        #expect(await pair.get().level == "basic")
        #expect(await pair.two.get("storage_key=other").token == "b1")
        await pair.two.broker.core.finish()
    }

    @Test func `finds that a tenant or an API key is gone that no feed reported`() async throws {
        let pair = try await Pair()
        #expect(await pair.get().token == "a1")
        pair.feed.setDelivery(.fails)
        let id = await pair.one.call(.get, "/tenants/t1/api-keys").json["api_keys"]?.array?[0]["id"]?.text ?? ""
        #expect(await pair.one.call(.delete, "/tenants/t1/api-keys/\(id)").status == 204)
        await pair.pass(61)
        #expect(await pair.get().status == 401)
        #expect(await pair.two.get().token == "a1")
        #expect(await pair.one.call(.delete, "/tenants/t1").status == 204)
        await pair.pass(61)
        #expect(await pair.two.get().status == 404)
        await pair.two.broker.core.finish()
    }

    @Test func `wakes tasks that wait for a change that no feed reported`() async throws {
        let pair = try await Pair()
        #expect(await pair.get().token == "a1")
        let id = CredentialsID(tenant: TenantName("t1")!, storageKey: .default)
        let changes = pair.two.broker.core.bus.changes
        let ticket = changes.ticket(id)
        pair.feed.setDelivery(.fails)
        await pair.one.set("a2", refresh: "r2")
        await pair.pass(61)
        await changes.wait(for: id, since: ticket) { _ = try? await Task.sleep(for: .seconds(600)) }
        #expect(await pair.get().token == "a2")
        await pair.two.broker.core.finish()
    }

    @Test func `pauses while no feed covers anything`() async throws {
        let pair = try await Pair(follows: false)
        #expect(await pair.get().token == "a1")
        await pair.pass(120)
        #expect(pair.store.asked.isEmpty)
        pair.feed.follow()
        // What was read before is not asked for.
        await pair.pass(120)
        #expect(pair.store.asked.isEmpty)
        #expect(await pair.get().token == "a1")
        await pair.pass(60)
        #expect(pair.store.asked.count >= 3)
        pair.feed.cut()
        let asked = pair.store.asked.count
        #expect(await pair.get().token == "a1")
        await pair.pass(120, isAlive: false)
        #expect(pair.store.asked.count == asked)
        await pair.two.broker.core.finish()
    }

    @Test func `renews nothing while the store fails, and tries it one question at a time`() async throws {
        let pair = try await Pair()
        #expect(await pair.get().token == "a1")
        pair.store.setFailing(true)
        await pair.pass(60)
        // One part finds something to ask for, then the next try comes after a pause.
        #expect((1...12).contains(pair.store.questions))
        #expect(pair.two.log.contains { $0.contains("store_failed") })
        pair.store.setFailing(false)
        let reads = pair.store.reads
        #expect(await pair.get().token == "a1")
        // It ran out as it would have without all of this.
        #expect(pair.store.reads == reads + 3)
        await pair.pass(120)
        #expect(pair.store.asked.count >= 3)
        await pair.two.broker.core.finish()
    }

    @Test func `does not take for true what was told before the feed was lost and came back`() async throws {
        let pair = try await Pair()
        #expect(await pair.get().token == "a1")
        let gate = Gate()
        pair.store.holdAnswers(gate)
        // Entries that are alone in their shards stand in the first slots, whose turn comes with each round.
        await pair.pass(49)
        #expect(pair.store.questions == 0)
        pair.time.advance(by: .seconds(1))
        await gate.arrivals()
        pair.feed.cut()
        #expect(await pair.one.call(.delete, "/credentials", tenant: "t1").status == 204)
        pair.time.advance(by: .milliseconds(1))
        pair.feed.follow()
        gate.open()
        await pair.pass(1)
        #expect(await pair.get().level == "basic")
        await pair.two.broker.core.finish()
    }

    /// The other replica announces none of its commits, like a replica that dies after each one.
    // H087
    @Test func `finds on PostgreSQL what another replica has changed without a word`() async throws {
        let server = try await PostgresServer.shared.value
        let configuration = try PostgresServer.configuration(server.uri(database: try await server.makeDatabase()))
        var heartbeat = PostgresListener.Settings()
        heartbeat.interval = .milliseconds(20)
        let store = QuestionStore(
            try await PostgresRecordStore.open(
                configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver, heartbeat: heartbeat))
        let silent = try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver, listening: .off)
        let time = ManualTime(skipsSleeps: false)
        let one = try await BrokerHarness(store: store, time: time)
        let other = try await BrokerHarness(store: silent, time: time)
        await other.makeTenant("t1", #"{"client_id": "c1"}"#)
        for number in 0..<600 {
            await other.set("a\(number)", lifetime: .seconds(86_400), storageKey: "k\(number)")
        }
        one.broker.core.start()
        await time.sleepers(of: SleepLength.jobsOfReplica)
        func pass(_ seconds: Int) async {
            var life = store.life.makeAsyncIterator()
            for _ in 0..<seconds {
                await time.pass(.seconds(1))
                // The first may be from before.
                for _ in 1...2 { _ = await life.next() }
            }
        }
        await pass(1)
        for number in 0..<600 { #expect(await one.get("storage_key=k\(number)").token == "a\(number)") }
        let reads = store.reads
        await pass(55)
        #expect(Set(store.asked).count == 601, "with the tenant")
        #expect(await other.call(.delete, "/credentials?storage_key=k17", tenant: "t1").status == 204)
        await other.set("b1", storageKey: "k18")
        await pass(60)
        // The replicas' public base URL.
        #expect(store.reads == reads + 1)
        #expect(one.broker.core.cacheRevalidation.missedChangeCount == 2)
        for number in 0..<600 where number != 17 {
            #expect(await one.get("storage_key=k\(number)").token == (number == 18 ? "b1" : "a\(number)"))
        }
        #expect(await one.get("storage_key=k17").level == "basic")
        // The user who has logged out, and the one who has logged in anew.
        #expect(store.reads == reads + 1 + 2)
        await one.broker.core.finish()
        await store.close()
        await silent.close()
    }

    @Test func `is over when the broker has finished`() async throws {
        let pair = try await Pair()
        #expect(await pair.get().token == "a1")
        await pair.two.broker.core.finish()
        let questions = pair.store.questions
        for _ in 0..<120 {
            pair.time.advance(by: .seconds(1))
            pair.feed.tell(.alive)
        }
        #expect(pair.store.questions == questions)
    }

    @Test func `is not done where no other process writes to the store`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let store = QuestionStore(MemoryRecordStore())
        let broker = try await BrokerHarness(store: store, time: time)
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .seconds(86_400))
        broker.broker.core.start()
        await time.sleepers(of: .housekeeping, .expiryNotices, .leaseSearchAlone)
        await time.pass(.seconds(120))
        #expect(await broker.get().token == "a1")
        #expect(store.questions == 0)
        await broker.broker.core.finish()
    }
}

/// A store that counts what is read for callers, and notes of which records the versions are asked for.
private final class QuestionStore: ForwardingStore {
    private struct State {
        var reads = 0
        var questions = 0
        var asked: [RecordID] = []
        var isFailing = false
        var gate: Gate?
    }

    let inner: any RecordStore
    private let state = Mutex(State())
    private let signs = AsyncStream.makeStream(of: Void.self, bufferingPolicy: .bufferingNewest(1))

    init(_ inner: any RecordStore) { self.inner = inner }

    var revalidateAfter: Duration? { inner.revalidateAfter }

    func admit() throws(StoreError) {}

    /// The feed's signs of life. Of those that no task has waited for, only the last one is kept.
    var life: AsyncStream<Void> { signs.stream }

    func watch(_ hear: @escaping @Sendable (StoreNotification) -> Void) {
        inner.watch { [signs] news in
            hear(news)
            if news == .alive { signs.continuation.yield() }
        }
    }

    var reads: Int { state.withLock { $0.reads } }

    /// How often versions were asked for.
    var questions: Int { state.withLock { $0.questions } }

    /// Of which records, those questions excepted that failed.
    var asked: [RecordID] { state.withLock { $0.asked } }

    func setFailing(_ isFailing: Bool) { state.withLock { $0.isFailing = isFailing } }

    /// The answers wait for the gate, with what was true before.
    func holdAnswers(_ gate: Gate) { state.withLock { $0.gate = gate } }

    func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
        state.withLock { $0.reads += 1 }
        return try await inner.read(id)
    }

    func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord? {
        state.withLock { $0.reads += 1 }
        return try await inner.find(kind, lookup: lookup)
    }

    func versions(of ids: [RecordID]) async throws(StoreError) -> [Int64?] {
        // Whether an API key has ended is asked when it is read.
        if ids.contains(where: { $0.kind == .tombstone }) { return try await inner.versions(of: ids) }
        let (isFailing, gate) = state.withLock { state in
            state.questions += 1
            if !state.isFailing { state.asked += ids }
            return (state.isFailing, state.gate)
        }
        if isFailing { throw .unavailable }
        let versions = try await inner.versions(of: ids)
        if let gate {
            gate.arrive()
            await gate.opened()
        }
        return versions
    }
}
