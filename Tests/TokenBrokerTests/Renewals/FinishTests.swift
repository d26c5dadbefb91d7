import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Synchronization
import Testing
import TokenBroker

@Suite struct `Finishing what is under way` {
    /// A broker whose store went away while the provider granted new tokens, and which waits for it.
    private static func brokerWithoutStore(
        _ begin: (BrokerHarness) async -> Void
    ) async throws -> (BrokerHarness, BrokerFaultyStore) {
        let store = BrokerFaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await begin(broker)
        broker.time.holdSleeps()
        broker.transport.enqueue(
            .decide { _ in
                store.isAway = true
                return .json(200, BrokerHarness.token("access-2", refresh: "refresh-2"))
            })
        return (broker, store)
    }

    @Test func `a renewal that waits for its store is waited for`() async throws {
        let (broker, store) = try await Self.brokerWithoutStore { broker in
            await broker.logIn()
            broker.time.advance(by: .seconds(3600))
        }
        async let answer = broker.call(.get, "/credentials", tenant: "t1")
        await broker.time.sleepers(of: .milliseconds(200))
        async let finished: Void = broker.broker.core.finish(within: .seconds(25))
        await broker.time.sleepers(of: .milliseconds(200), .seconds(25))
        store.isAway = false
        broker.time.advance(by: .milliseconds(200))
        await finished
        #expect(await answer.json["token"]?.string == "access-2")
        #expect(!broker.log.joined().contains("work_cut_short"))
    }

    @Test func `a renewal whose store stays away is cut short when time is up`() async throws {
        let (broker, _) = try await Self.brokerWithoutStore { broker in
            await broker.logIn()
            broker.time.advance(by: .seconds(3600))
        }
        async let answer = broker.call(.get, "/credentials", tenant: "t1")
        await broker.time.sleepers(of: .milliseconds(200))
        async let finished: Void = broker.broker.core.finish(within: .seconds(25))
        await broker.time.sleepers(of: .milliseconds(200), .seconds(25))
        broker.time.advance(by: .seconds(25))
        await finished
        #expect(await answer.code == "storage_unavailable")
        #expect(broker.log.contains { $0.contains(#""event":"work_cut_short","count":1"#) })
    }

    @Test func `a redemption whose store stays away is cut short when time is up`() async throws {
        let (broker, _) = try await Self.brokerWithoutStore { _ in }
        let state = await broker.beginLogin().state
        async let answer = broker.call(.get, "/login/callback?code=c-1&state=\(state)", key: nil)
        await broker.time.sleepers(of: .milliseconds(200))
        async let finished: Void = broker.broker.core.finish(within: .seconds(25))
        await broker.time.sleepers(of: .milliseconds(200), .seconds(25))
        broker.time.advance(by: .seconds(25))
        await finished
        #expect(await answer.status == 503)
        #expect(broker.log.contains { $0.contains(#""event":"work_cut_short","count":1"#) })
    }

    @Test func `a back-off between two tries ends when time is up`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.logIn()
        broker.time.advance(by: .seconds(3600))
        broker.time.holdSleeps()
        broker.transport.always(.json(503, "{}"))
        async let answer = broker.call(.get, "/credentials", tenant: "t1")
        await broker.time.sleepers(of: .milliseconds(500))
        async let finished: Void = broker.broker.core.finish(within: .milliseconds(400))
        await broker.time.sleepers(of: .milliseconds(500), .milliseconds(400))
        broker.time.advance(by: .milliseconds(400))
        await finished
        #expect(await answer.code == "retryable_error")
        #expect(broker.transport.seen.count == 2)
    }

    @Test func `the housekeeping is over, too, so that the store can be closed`() async throws {
        let store = SlowRemovalStore()
        let broker = try await BrokerHarness(store: store, time: ManualTime(skipsSleeps: false))
        broker.broker.core.start()
        await store.gate.arrivals(1)
        await broker.broker.core.finish()
        #expect(store.isOver)
    }
}

/// A store that is slow to remove what has expired: it does so only when the caller is cancelled, and takes its time.
private final class SlowRemovalStore: ForwardingStore {
    let inner: any RecordStore = MemoryRecordStore()
    let gate = Gate()
    private let removal = Mutex(false)
    var isOver: Bool { removal.withLock { $0 } }
    var revalidateAfter: Duration? { nil }

    func admit() throws(StoreError) {}

    func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        gate.arrive()
        let (never, continuation) = AsyncStream.makeStream(of: Void.self)
        for await _ in never {}
        continuation.finish()
        for _ in 0..<1000 { await Task.yield() }
        removal.withLock { $0 = true }
        return 0
    }
}
