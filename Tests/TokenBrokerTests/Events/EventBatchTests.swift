import BrokerCore
import BrokerTesting
import CredentialStore
import HTTPCodec
import HTTPServer
import OAuth
import Synchronization
import Testing
import TokenBroker

/// How events leave together: `Settings.eventSpan`. Time stands still unless a test moves it.
@Suite(.timeLimit(.minutes(2))) struct `Batches of events` {
    private static let span: Duration = .milliseconds(100)

    private static func broker(store: any RecordStore = MemoryRecordStore()) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, time: ManualTime(skipsSleeps: false)) {
            $0.core.eventSpan = span
        }
        await broker.makeTenant()
        return broker
    }

    private static func keys(_ events: [SSEParser.Event]) -> [String?] { events.map(\.storageKey) }

    /// Behind the beginning of the stream, the storage keys of the events of each write.
    private static func writes(_ listener: SSEListener) -> [[String?]] {
        listener.writes.dropFirst().map { write in
            var parser = SSEParser()
            parser.consume(Array(write.utf8))
            return keys(parser.events)
        }
    }

    /// Suspends until the feed has nothing to do before time moves on.
    private static func settle(_ broker: BrokerHarness) async {
        await broker.time.sleepers(of: .exactly(span))
        for _ in 0..<100 { await Task.yield() }
    }

    @Test func `the first after quiet leaves at once, and what comes within the span after it in one write at its end`()
        async throws
    {
        let broker = try await Self.broker()
        let listeners = [await broker.listen(tenant: "t1"), await broker.listen(tenant: "t1"), await broker.listen()]
        await broker.set("a", storageKey: "k0")
        for listener in listeners { #expect(Self.keys(await listener.events(1)) == ["k0"]) }
        for number in 1...3 { await broker.set("a", storageKey: "k\(number)") }
        await Self.settle(broker)
        for listener in listeners { #expect(listener.events.count == 1) }
        broker.time.advance(by: Self.span)
        for listener in listeners { _ = await listener.events(4) }
        // What comes after that write waits for the span, too.
        for number in 4...5 { await broker.set("a", storageKey: "k\(number)") }
        await Self.settle(broker)
        for listener in listeners { #expect(listener.events.count == 4) }
        broker.time.advance(by: Self.span)
        for listener in listeners {
            _ = await listener.events(6)
            #expect(Self.writes(listener) == [["k0"], ["k1", "k2", "k3"], ["k4", "k5"]])
            await listener.close()
        }
    }

    @Test(arguments: [99, 100, 101]) func `quiet has lasted when the span is over`(milliseconds: Int) async throws {
        let broker = try await Self.broker()
        let listener = await broker.listen(tenant: "t1")
        await broker.set("a", storageKey: "k0")
        _ = await listener.events(1)
        await broker.time.sleepers(of: .milliseconds(100))
        broker.time.advance(by: .milliseconds(milliseconds))
        await broker.set("a", storageKey: "k1")
        if milliseconds < 100 {
            await Self.settle(broker)
            #expect(listener.events.count == 1)
            broker.time.advance(by: .milliseconds(100 - milliseconds))
        }
        #expect(Self.keys(await listener.events(2)) == ["k0", "k1"])
        await listener.close()
    }

    @Test func `what comes in a pause while the look at its end is under way waits for nothing else`() async throws {
        let store = LookCountingStore()
        let broker = try await Self.broker(store: store)
        await broker.makeTenant("t2")
        let listener = await broker.listen(tenant: "t1")
        await broker.set("a", storageKey: "k0")
        _ = await listener.events(1)
        await Self.settle(broker)
        // No listener gets this event: the feed has entries to read, and none to send.
        await broker.set("a", tenant: "t2")
        let gate = store.hold()
        broker.time.advance(by: Self.span)
        await gate.arrivals()
        await broker.set("a", storageKey: "k1")
        store.release()
        #expect(Self.keys(await listener.events(2)) == ["k0", "k1"])
        await listener.close()
    }

    @Test func `one tenant's pause holds up no other's listeners, and those to all have their own`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant("t2")
        let (one, two) = (await broker.listen(tenant: "t1"), await broker.listen(tenant: "t2"))
        let all = await broker.listen()
        await broker.set("a", storageKey: "k1")
        _ = await one.events(1)
        _ = await all.events(1)
        await broker.set("a", storageKey: "k2")
        await broker.set("a", tenant: "t2", storageKey: "k3")
        #expect(Self.keys(await two.events(1)) == ["k3"])
        await Self.settle(broker)
        #expect((one.events.count, all.events.count) == (1, 1))
        broker.time.advance(by: Self.span)
        _ = await one.events(2)
        _ = await all.events(3)
        #expect(Self.writes(one) == [["k1"], ["k2"]])
        #expect(Self.writes(two) == [["k3"]])
        #expect(Self.writes(all) == [["k1"], ["k2", "k3"]])
        for listener in [one, two, all] { await listener.close() }
    }

    @Test func `one who joins during a pause begins where it asked to, and has no event twice`() async throws {
        let broker = try await Self.broker()
        let first = await broker.listen(tenant: "t1")
        await broker.set("a", storageKey: "k0")
        _ = await first.events(1)
        await broker.set("a", storageKey: "k1")
        let (new, resumed) = (await broker.listen(tenant: "t1"), await broker.listen(tenant: "t1", lastID: "1-0"))
        await broker.set("a", storageKey: "k2")
        await broker.time.sleepers(of: .milliseconds(100))
        broker.time.advance(by: Self.span)
        #expect(Self.keys(await first.events(3)) == ["k0", "k1", "k2"])
        #expect(Self.keys(await new.events(1)) == ["k2"])
        #expect(Self.keys(await resumed.events(2)) == ["k1", "k2"])
        await broker.time.sleepers(of: .milliseconds(100))
        broker.time.advance(by: Self.span)
        await broker.set("a", storageKey: "k3")
        #expect(Self.keys(await first.events(4)).last == "k3")
        #expect(Self.keys(await new.events(2)) == ["k2", "k3"])
        #expect(Self.keys(await resumed.events(3)) == ["k1", "k2", "k3"])
        for listener in [first, new, resumed] { await listener.close() }
    }

    @Test func `what is held is one look at the store, at the end of the pause`() async throws {
        let store = LookCountingStore()
        let broker = try await Self.broker(store: store)
        let listener = await broker.listen(tenant: "t1")
        await broker.set("a", storageKey: "k0")
        _ = await listener.events(1)
        await Self.settle(broker)
        let looks = store.looks
        for number in 1...50 { await broker.set("a", storageKey: "k\(number)") }
        await Self.settle(broker)
        #expect(store.looks == looks)
        broker.time.advance(by: Self.span)
        #expect(await listener.events(51).count == 51)
        #expect(Self.writes(listener).count == 2)
        #expect(store.looks == looks + 1)
        await listener.close()
    }

    @Test func `what piles up is given out before the newest entries no longer hold it`() async throws {
        let broker = try await Self.broker()
        let listener = await broker.listen(tenant: "t1")
        await broker.set("a", storageKey: "first")
        _ = await listener.events(1)
        await Self.settle(broker)
        let count = EventFeed.tailLength + 10
        for number in 0..<count { await broker.set("a", storageKey: "k\(number)") }
        // The first page at the end of the pause, then a quarter of the tail at a time, without time moving on.
        broker.time.advance(by: Self.span)
        let atOnce = 1 + EventFeed.pageLength + 3 * EventFeed.tailLength / 4
        #expect(await listener.events(atOnce).count >= atOnce)
        await Self.settle(broker)
        broker.time.advance(by: Self.span)
        #expect(Self.keys(await listener.events(count + 1)) == ["first"] + (0..<count).map { "k\($0)" })
        await listener.close()
    }

    @Test func `nothing is lost, sent twice or out of order, although listeners come and go`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant("t2")
        let narrowed = await broker.makeKey(
            "t1", #"{"name": "k", "permissions": ["events"], "storage_keys": ["k0", "k3"]}"#)
        var staying: [SSEListener] = []
        for tenant in ["t1", "t1", "t2", nil, nil] { staying.append(await broker.listen(tenant: tenant)) }
        let few = await broker.listen(key: narrowed)
        // Comes and goes, always from where it was.
        var (returning, heard) = (await broker.listen(tenant: "t1"), [SSEParser.Event]())
        var (chance, counts) = (SystemRandomNumberGenerator(), (t1: 0, t2: 0))
        for round in 0..<300 {
            for _ in 0..<Int.random(in: 0...4, using: &chance) {
                let isFirst = Bool.random(using: &chance)
                await broker.set(
                    "a", tenant: isFirst ? "t1" : "t2", storageKey: "k\(Int.random(in: 0...4, using: &chance))")
                if isFirst { counts.t1 += 1 } else { counts.t2 += 1 }
            }
            broker.time.advance(by: .milliseconds(Int64.random(in: 0...60, using: &chance)))
            if round % 10 == 9 {
                await returning.close()
                heard += returning.events
                returning = await broker.listen(tenant: "t1", lastID: returning.lastID)
            }
        }
        let all = try await broker.loggedEvents()
        #expect(all.count == counts.t1 + counts.t2)
        let (one, two) = (all.filter { $0.tenant == "t1" }, all.filter { $0.tenant == "t2" })
        // The feed may have to look several times.
        let clock = Task {
            while !Task.isCancelled {
                await broker.time.sleeper()
                broker.time.advance(by: Self.span)
            }
        }
        defer { clock.cancel() }
        let expected = [one, one, two, all, all]
        for (listener, expected) in zip(staying, expected) {
            #expect(await listener.events(expected.count) == expected)
            #expect(listener.faults == [])
            await listener.close()
        }
        let some = one.filter { ["k0", "k3"].contains($0.storageKey) }
        #expect(await few.events(some.count) == some)
        await few.close()
        #expect(await heard + returning.events(one.count - heard.count) == one)
        await returning.close()
    }

    @Test func `one that does not take what it is sent is held nothing for, and gets all of it in bounded pieces`()
        async throws
    {
        let broker = try await Self.broker()
        let (gate, isComplete) = (Gate(), Gate())
        let taken = Mutex((parser: SSEParser(), sizes: [Int]()))
        let count = EventFeed.tailLength + 100
        let request = Request(
            method: .get, path: "/events",
            fields: ["Authorization": "Bearer \(BrokerHarness.adminKey)", "X-Tenant": "t1"])
        let response = await broker.service.respond(to: request)
        let slow = Task {
            await response.stream?(
                ResponseStream { bytes throws(StreamEnded) in
                    gate.arrive()
                    await gate.opened()
                    if Task.isCancelled { throw StreamEnded() }
                    let isThere = taken.withLock { taken in
                        taken.sizes.append(bytes.count)
                        taken.parser.consume(bytes)
                        return taken.parser.events.count == count
                    }
                    if isThere { isComplete.open() }
                })
        }
        await gate.arrivals()
        let other = await broker.listen(tenant: "t1")
        for number in 0..<count { await broker.set("a", storageKey: "k\(number)") }
        while other.events.count < count {
            await broker.time.sleeper()
            broker.time.advance(by: Self.span)
            for _ in 0..<100 { await Task.yield() }
        }
        gate.open()
        await isComplete.opened()
        let expected = try await broker.loggedEvents()
        #expect(taken.withLock { $0.parser.events } == expected)
        #expect(other.events == expected)
        // A piece ends with the event with which it is full.
        let longest = 32_768 + 1024
        #expect(taken.withLock { $0.sizes.allSatisfy { $0 < longest } })
        #expect(other.writes.allSatisfy { $0.utf8.count < longest })
        slow.cancel()
        await slow.value
        await other.close()
    }
}

/// Counts how often it is asked for what lies behind a place in its log. Its answers can be held back.
private final class LookCountingStore: ForwardingStore {
    let inner: any RecordStore = MemoryRecordStore()
    private let state = Mutex((count: 0, gate: Gate?.none))

    var looks: Int { state.withLock { $0.count } }
    var revalidateAfter: Duration? { nil }

    func admit() throws(StoreError) {}

    /// From now on answers wait for `release`. A call that waits has arrived at the gate.
    func hold() -> Gate {
        let gate = Gate()
        state.withLock { $0.gate = gate }
        return gate
    }

    func release() {
        let gate = state.withLock { state in
            defer { state.gate = nil }
            return state.gate
        }
        gate?.open()
    }

    func entries(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) async throws(StoreError) -> [PlacedLogEntry] {
        let gate = state.withLock { state in
            state.count += 1
            return state.gate
        }
        let entries = try await inner.entries(after: sequence, tenant: tenant, limit: limit)
        gate?.arrive()
        await gate?.opened()
        return entries
    }
}
