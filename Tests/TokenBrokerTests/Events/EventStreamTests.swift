import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth
import Synchronization
import Testing
import TokenBroker

/// `GET /events` without sockets. Time stands still unless a test moves it.
@Suite(.timeLimit(.minutes(2))) struct `Stream of events` {
    private static func broker(
        store: any RecordStore = MemoryRecordStore(), time: ManualTime = ManualTime(skipsSleeps: false),
        _ adjust: (inout Broker.Settings) -> Void = { _ in }
    ) async throws -> BrokerHarness {
        try await BrokerHarness(store: store, time: time, adjust)
    }

    private static func keys(_ events: [SSEParser.Event]) -> [String?] { events.map(\.storageKey) }

    @Test func `begins with the time to wait before coming back, and with what happens from then on`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        await broker.set("a0", storageKey: "before")
        let listener = await broker.listen(tenant: "t1")
        #expect(listener.answer.status == 200)
        #expect(listener.answer.fields["Content-Type"] == "text/event-stream")
        #expect(listener.answer.fields["Cache-Control"] == "no-store")
        #expect(listener.answer.fields["X-Accel-Buffering"] == "no")
        #expect(listener.text == "retry: 3000\nid: 1-9999\n\n")
        await broker.set("a1", storageKey: "after")
        let events = await listener.events(1)
        #expect(Self.keys(events) == ["after"])
        #expect(events[0].id == "2-0")
        #expect(listener.text.hasPrefix("retry: 3000\nid: 1-9999\n\nid: 2-0\nevent: credentials.updated\ndata: {"))
        #expect(listener.text.hasSuffix("}\n\n"))
        #expect(listener.faults == [])
        await listener.close()
    }

    @Test func `misses nothing between the request and the running of its answer`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        let request = Request(
            method: .get, path: "/events", fields: ["Authorization": "Bearer \(BrokerHarness.adminKey)"])
        let response = await broker.service.respond(to: request)
        await broker.set("a1", storageKey: "between")
        let listener = SSEListener(response)
        #expect(Self.keys(await listener.events(1)) == ["between"])
        await listener.close()
    }

    @Test func `goes on behind every id, in the middle of a commit too`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        await broker.logIn()
        await broker.set("a1", storageKey: "one")
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        _ = await broker.get("policy=local_force_refresh")
        let all = try await broker.loggedEvents()
        #expect(all.count == 9)
        for (index, event) in all.enumerated() {
            let listener = await broker.listen(tenant: "t1", lastID: event.id)
            let rest = Array(all[(index + 1)...])
            await broker.set("a3", storageKey: "live-\(index)")
            let told = await listener.events(rest.count + index + 1)
            #expect(Array(told.prefix(rest.count)) == rest)
            #expect(Self.keys(Array(told.dropFirst(rest.count))) == (0...index).map { "live-\($0)" })
            await listener.close()
        }
    }

    @Test func `passes from what is stored to what happens without a gap, over many pages`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        let count = 2 * EventFeed.pageLength + 10
        for number in 0..<count { await broker.set("a", storageKey: "k\(number)") }
        let listener = await broker.listen(tenant: "t1", lastID: "0-9999")
        for number in count..<(count + 50) { await broker.set("a", storageKey: "k\(number)") }
        #expect(Self.keys(await listener.events(count + 50)) == (0..<(count + 50)).map { "k\($0)" })
        await listener.close()
    }

    @Test func `a listener that comes back late reads the store, and a quiet tenant's stays in touch`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        await broker.makeTenant("t2")
        let quiet = await broker.listen(tenant: "t2")
        let first = await broker.listen(tenant: "t1")
        let count = EventFeed.tailLength + 100
        for number in 0..<count { await broker.set("a", storageKey: "k\(number % 10)") }
        #expect(await first.events(count).count == count)
        let second = await broker.listen(tenant: "t1", lastID: first.events[4].id)
        #expect(await second.events(count - 5) == Array(first.events[5...]))
        await broker.set("a", tenant: "t2")
        #expect(await quiet.events(1).map(\.tenant) == ["t2"])
        for listener in [quiet, first, second] { await listener.close() }
    }

    @Test func `a burst of others' events of more than a page does not hold up a listener`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        await broker.makeTenant("t2")
        let listener = await broker.listen(tenant: "t2")
        // The feed has read and waits; an event without a listener does not wake it.
        await broker.time.sleepers(of: .seconds(1))
        for number in 0..<(3 * EventFeed.pageLength) { await broker.set("a", storageKey: "k\(number)") }
        await broker.set("a", tenant: "t2")
        #expect(await listener.events(1).map(\.tenant) == ["t2"])
        await listener.close()
    }

    @Test
    func `a listener that comes back late has the one writer's store read a page at a time, whichever tenant's it is`()
        async throws
    {
        let store = PageRecordingStore()
        let broker = try await Self.broker(store: store)
        await broker.makeTenant()
        await broker.makeTenant("t2")
        await broker.set("a", tenant: "t2", storageKey: "first")
        for number in 0..<(2 * EventFeed.pageLength) { await broker.set("a", storageKey: "k\(number)") }
        await broker.set("a", tenant: "t2", storageKey: "last")
        let listener = await broker.listen(tenant: "t2", lastID: "0-9999")
        #expect(Self.keys(await listener.events(2)) == ["first", "last"])
        await listener.close()
        #expect(store.pages.count >= 3)
        // With a filter the store would skip any number of entries in one call, and all other callers would wait.
        #expect(store.pages.allSatisfy { $0.tenant == nil && $0.limit <= EventFeed.pageLength })
    }

    @Test func `zero stands for the beginning`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        await broker.set("a", storageKey: "k1")
        for id in ["0-0", "0-9999", "0-7"] {
            let listener = await broker.listen(tenant: "t1", lastID: id)
            #expect(Self.keys(await listener.events(1)) == ["k1"])
            await listener.close()
        }
    }

    @Test func `tells a key of its tenant, a narrowed key of its storage keys, the admin of all or of one`()
        async throws
    {
        let broker = try await Self.broker()
        await broker.makeTenant()
        await broker.makeTenant("t2")
        let key = await broker.makeKey()
        let narrowed = await broker.makeKey(
            "t1", #"{"name": "k", "permissions": ["events"], "storage_keys": ["b", "c"]}"#)
        let patterns = await broker.makeKey(
            "t1", #"{"name": "k", "permissions": ["events"], "storage_keys": ["b*", "c"]}"#)
        let listeners = [
            await broker.listen(key: key), await broker.listen(key: narrowed), await broker.listen(),
            await broker.listen(tenant: "t2"), await broker.listen(key: key, tenant: "t1"),
            await broker.listen(key: patterns),
        ]
        for (tenant, storageKey) in [("t1", "a"), ("t2", "b"), ("t1", "b"), ("t2", "x"), ("t1", "c")] {
            await broker.set("token", tenant: tenant, storageKey: storageKey)
        }
        let live = [
            await listeners[0].events(3), await listeners[1].events(2), await listeners[2].events(5),
            await listeners[3].events(2), await listeners[4].events(3), await listeners[5].events(2),
        ]
        let expected = [
            ["a", "b", "c"], ["b", "c"], ["a", "b", "b", "x", "c"], ["b", "x"], ["a", "b", "c"], ["b", "c"],
        ]
        #expect(live.map(Self.keys) == expected)
        for listener in listeners { await listener.close() }

        // The same from the store.
        let stored = [
            await broker.listen(key: key, lastID: "0-9999"), await broker.listen(key: narrowed, lastID: "0-9999"),
            await broker.listen(lastID: "0-9999"), await broker.listen(tenant: "t2", lastID: "0-9999"),
        ]
        for (listener, expected) in zip(stored, expected) {
            #expect(Self.keys(await listener.events(expected.count)) == expected)
            await listener.close()
        }
    }

    @Test func `who may not listen is refused`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        let other = await broker.makeKey("t1", #"{"name": "k", "permissions": ["login", "credentials:read"]}"#)
        let key = await broker.makeKey()
        #expect(await broker.listen(key: nil).answer.code == "unauthorized")
        #expect(await broker.listen(key: other).answer.code == "forbidden")
        #expect(await broker.listen(key: key, tenant: "t2").answer.code == "forbidden")
        #expect(await broker.listen(tenant: "t2").answer.code == "not_found")
        #expect(await broker.listen(tenant: "t1", target: "/events?last_event_id=1-0").answer.code == "invalid_request")
        #expect(await broker.call(.post, "/events", tenant: "t1").code == "method_not_allowed")
        #expect(broker.broker.events.listenerCount == 0)
    }

    @Test(arguments: [
        "0-0", "1-0", "3-0", "2-9999", "44-0", "9223372036854775807-9999", "0", "4", "4-", "-1", "4-10000", "4-00000",
        "4-0-0", "+4-0", "4 -0", "later", "9223372036854775808-0", "99999999999999999999-0",
        String(repeating: "4", count: 4000),
    ])
    func `an id that is not kept gets a reset, then everything that is`(id: String) async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        for number in 1...5 { await broker.set("a", storageKey: "k\(number)") }
        #expect(try await broker.vault.trimLog(before: .latest, keeping: 5, limit: 3) == 3)
        for tenant in ["t1", nil] {
            let listener = await broker.listen(tenant: tenant, lastID: id)
            let events = await listener.events(3)
            #expect(events.map(\.name) == ["stream.reset", "credentials.updated", "credentials.updated"])
            #expect(events[0].id == "3-9999")
            let named = tenant == nil ? "" : #""tenant":"t1","#
            #expect(events[0].data == "{" + named + #""time":"2026-11-21T09:00:00Z"}"#)
            #expect(Self.keys(events) == [nil, "k4", "k5"])
            await listener.close()
            // What the reset names is a place to come back to.
            let again = await broker.listen(tenant: tenant, lastID: events[0].id)
            #expect(Self.keys(await again.events(2)) == ["k4", "k5"])
            await again.close()
        }
    }

    @Test func `an empty id is none, and two are refused`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        await broker.set("a", storageKey: "k1")
        let listener = await broker.listen(tenant: "t1", lastID: "")
        await broker.set("a", storageKey: "k2")
        #expect(Self.keys(await listener.events(1)) == ["k2"])
        await listener.close()
        var fields: Fields = ["X-Tenant": "t1", "Last-Event-ID": "1-0"]
        fields.append("Last-Event-ID", "2-0")
        let refused = await broker.call(.get, "/events", fields: fields)
        #expect((refused.status, refused.code) == (400, "invalid_request"))
    }

    @Test func `a heartbeat comes when nothing was sent for fifteen seconds`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        let listener = await broker.listen(tenant: "t1")
        await broker.time.sleepers(of: .seconds(1))
        broker.time.advance(by: .seconds(14))
        await broker.set("a1")
        #expect(await listener.events(1).count == 1)
        await broker.time.sleepers(of: .seconds(1))
        broker.time.advance(by: .seconds(14))
        await broker.set("a2")
        #expect(await listener.events(2).count == 2)
        #expect(!listener.text.contains("heartbeat"))
        await broker.time.sleepers(of: .seconds(1))
        broker.time.advance(by: .seconds(15))
        #expect(await listener.comments(1) == ["heartbeat"])
        #expect(listener.text.hasSuffix("\n\n: heartbeat\n\n"))
        await listener.close()
    }

    @Test func `more listeners of a tenant than allowed are refused, and the place of one that leaves is free`()
        async throws
    {
        let broker = try await Self.broker { $0.core.listenersPerTenant = 2 }
        await broker.makeTenant()
        await broker.makeTenant("t2")
        let first = await broker.listen(tenant: "t1")
        let second = await broker.listen(tenant: "t1")
        let refused = await broker.listen(tenant: "t1")
        #expect(refused.answer.status == 429)
        #expect(refused.answer.code == "too_many_requests")
        #expect(refused.answer.retryAfter == 10)
        let other = await broker.listen(tenant: "t2")
        #expect(other.answer.status == 200)
        #expect(broker.broker.events.listenerCount == 3)
        let metrics = await broker.call(.get, "/metrics", key: nil).text
        #expect(metrics.contains("\ntoken_broker_event_listeners 3\n"))
        await second.close()
        // An answer whose stream never runs, and HEAD, hold no place either.
        _ = await broker.call(.get, "/events", tenant: "t2")
        for _ in 0..<3 {
            let head = await broker.call(.head, "/events", tenant: "t1")
            #expect(head.status == 200)
            #expect(head.fields["Content-Type"] == "text/event-stream")
        }
        let third = await broker.listen(tenant: "t1")
        #expect(third.answer.status == 200)
        for listener in [first, third, other] { await listener.close() }
        #expect(broker.broker.events.listenerCount == 0)
    }

    @Test func `a thousand listeners that come at once are few questions to the store, one at a time`()
        async throws
    {
        let store = ReachStore()
        let broker = try await Self.broker(store: store)
        await broker.makeTenant()
        await broker.set("a", storageKey: "before")
        store.hold()
        let listeners = await withTaskGroup(of: SSEListener.self) { group in
            for number in 0..<1000 {
                group.addTask { await broker.listen(tenant: "t1", lastID: number % 2 == 0 ? nil : "1-9999") }
                // The first one's question is under way when the others come.
                if number == 0 { await store.held() }
            }
            while broker.broker.events.listenerCount < 1000 { await Task.yield() }
            store.release()
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(listeners.allSatisfy { $0.answer.status == 200 })
        // The first, one for all listeners that came while it was held, and some for those that were counted but had not
        // asked yet.
        #expect((2...10).contains(store.questions))
        await broker.set("a", storageKey: "after")
        for listener in listeners {
            #expect(Self.keys(await listener.events(1)) == ["after"])
            await listener.close()
        }
    }

    @Test func `a listener does not begin before what was committed while another one's question was under way`()
        async throws
    {
        let store = ReachStore()
        let broker = try await Self.broker(store: store)
        await broker.makeTenant()
        store.hold()
        async let first = broker.listen(tenant: "t1")
        // The store has looked, and its answer is on its way.
        await store.held()
        await broker.set("a", storageKey: "between")
        async let second = broker.listen(tenant: "t1")
        while broker.broker.events.listenerCount < 2 { await Task.yield() }
        store.release()
        let (early, late) = await (first, second)
        #expect(early.text.hasPrefix("retry: 3000\nid: 0-9999\n\n"))
        #expect(Self.keys(await early.events(1)) == ["between"])
        await broker.set("a", storageKey: "after")
        #expect(Self.keys(await late.events(1)) == ["after"])
        #expect(late.text.hasPrefix("retry: 3000\nid: 1-9999\n\n"))
        for listener in [early, late] { await listener.close() }
    }

    @Test func `a store that is away refuses all who came while it was asked, and their places are free`() async throws
    {
        let store = BrokerFaultyStore()
        let broker = try await Self.broker(store: store) { $0.core.listenersPerTenant = 50 }
        await broker.makeTenant()
        await broker.listen(tenant: "t1").close()
        store.isAway = true
        let refused = await withTaskGroup(of: SSEListener.self) { group in
            for _ in 0..<50 { group.addTask { await broker.listen(tenant: "t1") } }
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(refused.allSatisfy { $0.answer.status == 503 && $0.answer.code == "storage_unavailable" })
        #expect(broker.broker.events.listenerCount == 0)
        store.isAway = false
        let listener = await broker.listen(tenant: "t1")
        #expect(listener.answer.status == 200)
        await listener.close()
    }

    @Test func `each event is counted by its kind for each listener`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        let listeners = [await broker.listen(tenant: "t1"), await broker.listen()]
        await broker.logIn()
        for listener in listeners {
            _ = await listener.events(2)
            await listener.close()
        }
        let metrics = await broker.call(.get, "/metrics", key: nil).text
        #expect(metrics.contains("\ntoken_broker_events_sent_total{kind=\"credentials.updated\"} 2\n"))
        #expect(metrics.contains("\ntoken_broker_events_sent_total{kind=\"login.completed\"} 2\n"))
        #expect(metrics.contains("\ntoken_broker_events_sent_total{kind=\"login.failed\"} 0\n"))
    }

    // MARK: Ends

    @Test func `every stream ends when the broker is being stopped, and later ones at once`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        let listeners = [await broker.listen(tenant: "t1"), await broker.listen()]
        broker.broker.beginDraining()
        for listener in listeners { await listener.end() }
        let late = await broker.listen(tenant: "t1")
        await late.end()
        await broker.broker.core.finish()
    }

    /// What ends the right to listen.
    enum Loss: String, CaseIterable {
        case keyDeleted
        case keyExpired
        case tenantDeleted
    }

    @Test(arguments: Loss.allCases)
    func `a stream ends within a second of its caller's right`(loss: Loss) async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        let created = await broker.call(
            .post, "/tenants/t1/api-keys", body: #"{"name": "k", "permissions": ["events"], "expires_in": 5}"#)
        let key = try #require(created.json["api_key"]?.text)
        let id = try #require(created.json["id"]?.text)
        let listener = await broker.listen(key: key)
        switch loss {
        case .keyDeleted: _ = await broker.call(.delete, "/tenants/t1/api-keys/\(id)")
        case .keyExpired:
            await broker.time.sleepers(of: .seconds(1))
            broker.time.advance(by: .seconds(5))
        case .tenantDeleted: _ = await broker.call(.delete, "/tenants/t1")
        }
        await listener.end()
        #expect(listener.events == [])
    }

    @Test func `the admin's stream of a tenant ends with the tenant`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        let listener = await broker.listen(tenant: "t1")
        let all = await broker.listen()
        _ = await broker.call(.delete, "/tenants/t1")
        await listener.end()
        #expect(!all.isOver)
        await all.close()
    }

    // MARK: The store

    @Test func `a store that is away ends no stream, and nothing is missed`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.broker(store: store)
        await broker.makeTenant()
        let listener = await broker.listen(tenant: "t1")
        await broker.set("a1", storageKey: "k1")
        #expect(await listener.events(1).count == 1)
        store.isAway = true
        await broker.time.sleepers(of: .seconds(1))
        broker.time.advance(by: .seconds(15))
        #expect(await listener.comments(1) == ["heartbeat"])
        let refused = await broker.listen(tenant: "t1")
        #expect(refused.answer.code == "storage_unavailable")
        store.isAway = false
        await broker.set("a2", storageKey: "k2")
        #expect(Self.keys(await listener.events(2)) == ["k1", "k2"])
        await listener.close()
    }

    @Test func `another replica's events are found by looking once a second`() async throws {
        let base = MemoryRecordStore()
        let time = ManualTime(skipsSleeps: false)
        let writer = try await Self.broker(store: BrokerFaultyStore(base, revalidateAfter: .seconds(5)), time: time)
        let reader = try await Self.broker(store: BrokerFaultyStore(base, revalidateAfter: .seconds(5)), time: time)
        await writer.makeTenant()
        let listener = await reader.listen(tenant: "t1")
        await time.sleepers(of: .seconds(1))
        await writer.set("a1", storageKey: "k1")
        await writer.set("a2", storageKey: "k2")
        time.advance(by: .seconds(1))
        #expect(Self.keys(await listener.events(2)) == ["k1", "k2"])
        await listener.close()
    }

    @Test func `an entry that does not open is passed over and logged once`() async throws {
        let broker = try await Self.broker()
        await broker.makeTenant()
        let listeners = [await broker.listen(tenant: "t1"), await broker.listen()]
        let tenant = try #require(TenantName("t1"))
        try await broker.store.commit([
            .append(
                StoredLogEntry(tenant: tenant, key: "k1", version: 1, time: broker.time.now, sealed: [1, 2, 3]))
        ])
        await broker.set("a2", storageKey: "k2")
        for listener in listeners {
            #expect(Self.keys(await listener.events(1)) == ["k2"])
            await listener.close()
        }
        let late = await broker.listen(tenant: "t1", lastID: "0-9999")
        #expect(Self.keys(await late.events(1)) == ["k2"])
        await late.close()
        let lines = broker.log.filter { $0.contains("event_unreadable") }
        #expect(lines.count == 1)
        #expect(lines[0].contains(#""level":"error""#))
    }

    @Test func `events outlive the process, and an id from before leads on`() async throws {
        let directory = StoreFixtureDirectory()
        var store = try await FileRecordStore(directory: directory.path)
        var broker = try await Self.broker(store: store)
        await broker.makeTenant()
        let listener = await broker.listen(tenant: "t1")
        for number in 1...3 { await broker.set("a", storageKey: "k\(number)") }
        let id = await listener.events(3)[1].id
        broker.broker.beginDraining()
        await listener.end()
        await broker.broker.core.finish()
        await broker.vault.close()

        store = try await FileRecordStore(directory: directory.path)
        broker = try await Self.broker(store: store)
        let resumed = await broker.listen(tenant: "t1", lastID: id)
        #expect(Self.keys(await resumed.events(1)) == ["k3"])
        await broker.set("a", storageKey: "k4")
        #expect(Self.keys(await resumed.events(2)) == ["k3", "k4"])
        broker.broker.beginDraining()
        await resumed.end()
        await broker.broker.core.finish()
        await broker.vault.close()
    }

    @Test func `events go when they are too old or too many`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let broker = try await Self.broker(time: time) { settings in
            settings.core.eventRetention = .seconds(86_400)
            settings.core.eventLimit = 10
        }
        await broker.makeTenant()
        for number in 0..<1025 { await broker.set("a", storageKey: "k\(number)", members: #""level": "client", "#) }
        broker.broker.core.start()
        // Housekeeping, the poller of device logins and the notices of expiry.
        await time.sleepers(of: .seconds(60), .seconds(5))
        // The marker of those that are gone is an entry as well.
        while try await broker.vault.entries(after: 0, limit: 12).count > 11 { await Task.yield() }
        #expect(try await broker.loggedEvents().count == 10)
        time.advance(by: .seconds(86_401))
        while try await broker.vault.logBounds().trimmed < 1025 { await Task.yield() }
        broker.broker.beginDraining()
        await broker.broker.core.finish()
    }
}

/// Notes which pages of the log it was asked for.
private final class PageRecordingStore: ForwardingStore {
    let inner: any RecordStore = MemoryRecordStore()
    private let asked = Mutex<[(tenant: TenantName?, limit: Int)]>([])

    var pages: [(tenant: TenantName?, limit: Int)] { asked.withLock { $0 } }
    var revalidateAfter: Duration? { nil }

    func admit() throws(StoreError) {}

    func entries(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) async throws(StoreError) -> [PlacedLogEntry] {
        asked.withLock { $0.append((tenant, limit)) }
        return try await inner.entries(after: sequence, tenant: tenant, limit: limit)
    }
}

/// Counts how often it is asked how far its log reaches, and refuses to be asked twice at a time, as a pool with one
/// connection and no call in its queue does. Its answers can be held back.
private final class ReachStore: ForwardingStore {
    let inner: any RecordStore = MemoryRecordStore()
    private let state = Mutex((gate: Gate?.none, questions: 0, underWay: 0))

    var questions: Int { state.withLock { $0.questions } }
    var revalidateAfter: Duration? { nil }

    func admit() throws(StoreError) {}

    /// From now on answers wait for `release`.
    func hold() { state.withLock { $0.gate = Gate() } }

    /// Suspends until an answer is held.
    func held() async { await state.withLock { $0.gate }?.arrivals() }

    func release() {
        let gate = state.withLock { state in
            defer { state.gate = nil }
            return state.gate
        }
        gate?.open()
    }

    func logBounds() async throws(StoreError) -> LogBounds {
        let (isFree, gate) = state.withLock { state in
            state.questions += 1
            state.underWay += 1
            return (state.underWay == 1, state.gate)
        }
        defer { state.withLock { $0.underWay -= 1 } }
        guard isFree else { throw .unavailable }
        let bounds = try await inner.logBounds()
        gate?.arrive()
        await gate?.opened()
        return bounds
    }
}
