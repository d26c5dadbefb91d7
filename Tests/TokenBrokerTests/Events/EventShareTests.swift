import BrokerCore
import BrokerTesting
import CredentialStore
import OAuth
import Testing
import TokenBroker

/// `GET /events` when the log has had too many events.
@Suite(.timeLimit(.minutes(2))) struct `Stream of events that were too many` {
    /// The storage key of each event, or its name where it is a reset.
    private static func names(_ events: [SSEParser.Event]) -> [String] {
        events.map { $0.storageKey ?? $0.name }
    }

    private static func trim(_ broker: BrokerHarness, keeping count: Int) async throws -> Int {
        try await broker.vault.trimLog(before: Timestamp(seconds: 0), keeping: count, limit: 1000)
    }

    /// Stores the credentials; the first letter of a storage key is that of its tenant: of the busy one, or of the quiet one.
    private static func write(_ names: [String], _ broker: BrokerHarness) async {
        for name in names { await broker.set("a", tenant: name.hasPrefix("b") ? "busy" : "quiet", storageKey: name) }
    }

    private static func broker(
        store: any RecordStore = MemoryRecordStore(), time: ManualTime = ManualTime(skipsSleeps: false),
        _ adjust: (inout Broker.Settings) -> Void = { _ in }
    ) async throws -> BrokerHarness {
        try await BrokerHarness(store: store, time: time, adjust)
    }

    @Test func `a busy tenant does not push out the events of a quiet one`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let broker = try await Self.broker(time: time) { $0.core.eventLimit = 10 }
        for tenant in ["busy", "quiet"] { await broker.makeTenant(tenant) }
        let many = (1...1200).map { "b\($0)" }
        await Self.write(["q1", "q2"] + many + ["q3"], broker)
        broker.broker.core.start()
        await time.sleepers(of: .seconds(60), .seconds(5))
        while try await broker.vault.entries(after: 0, limit: 12).count > 11 { await Task.yield() }
        let quiet = await broker.listen(tenant: "quiet", lastID: "0-9999")
        #expect(Self.names(await quiet.events(3)) == ["q1", "q2", "q3"])
        let busy = await broker.listen(tenant: "busy", lastID: "0-9999")
        let kept = (1194...1200).map { "b\($0)" }
        #expect(Self.names(await busy.events(8)) == ["stream.reset"] + kept)
        for listener in [quiet, busy] { await listener.close() }
        broker.broker.beginDraining()
        await broker.broker.core.finish()
        #expect(!broker.log.contains { $0.contains("event_unreadable") })
    }

    struct Case: Sendable {
        let tenant: String?
        let lastID: String
        let told: [String]
    }

    /// The log then has q1 (1), a marker (4), b4 (5), b5 (6) and q2 (7).
    @Test(arguments: [
        Case(tenant: "busy", lastID: "0-9999", told: ["stream.reset", "b4", "b5"]),
        Case(tenant: "busy", lastID: "2-0", told: ["stream.reset", "b4", "b5"]),
        Case(tenant: "busy", lastID: "3-9999", told: ["stream.reset", "b4", "b5"]),
        // Whether the entry had another event is not known any more.
        Case(tenant: "busy", lastID: "4-0", told: ["stream.reset", "b4", "b5"]),
        Case(tenant: "busy", lastID: "4-9999", told: ["b4", "b5"]),
        Case(tenant: "busy", lastID: "5-0", told: ["b5"]),
        Case(tenant: "quiet", lastID: "0-9999", told: ["q1", "q2"]),
        Case(tenant: "quiet", lastID: "1-0", told: ["q2"]),
        Case(tenant: "quiet", lastID: "3-9999", told: ["q2"]),
        Case(tenant: nil, lastID: "0-9999", told: ["q1", "stream.reset", "b4", "b5", "q2"]),
        Case(tenant: nil, lastID: "1-9999", told: ["stream.reset", "b4", "b5", "q2"]),
        Case(tenant: nil, lastID: "4-9999", told: ["b4", "b5", "q2"]),
    ])
    func `a listener behind what its tenant lost gets a reset in that place`(check: Case) async throws {
        let broker = try await Self.broker()
        for tenant in ["busy", "quiet"] { await broker.makeTenant(tenant) }
        await Self.write(["q1", "b1", "b2", "b3", "b4", "b5", "q2"], broker)
        #expect(try await Self.trim(broker, keeping: 4) == 3)
        let listener = await broker.listen(tenant: check.tenant, lastID: check.lastID)
        await Self.write(["b6", "q3"], broker)
        let live = check.tenant == nil ? ["b6", "q3"] : [check.tenant == "busy" ? "b6" : "q3"]
        let events = await listener.events(check.told.count + live.count)
        #expect(Self.names(events) == check.told + live)
        await listener.close()
        guard let reset = events.first(where: { $0.name == "stream.reset" }) else { return }
        #expect(reset.id == "4-9999")
        let named = check.tenant.map { #""tenant":"\#($0)","# } ?? ""
        #expect(reset.data == "{" + named + #""time":"2026-11-21T09:00:00Z"}"#)
        // What it names is a place to come back to.
        let again = await broker.listen(tenant: check.tenant, lastID: reset.id)
        #expect(Self.names(await again.events(1)).first == "b4")
        await again.close()
    }

    @Test func `a key of other storage keys gets the reset too, since nothing tells which ones were lost`() async throws
    {
        let broker = try await Self.broker()
        await broker.makeTenant()
        let key = await broker.makeKey("t1", #"{"name": "k", "permissions": ["events"], "storage_keys": ["k9"]}"#)
        for number in 1...9 { await broker.set("a", storageKey: "k\(number)") }
        #expect(try await Self.trim(broker, keeping: 3) == 6)
        let listener = await broker.listen(key: key, lastID: "0-9999")
        #expect(Self.names(await listener.events(2)) == ["stream.reset", "k9"])
        await listener.close()
    }

    @Test func `the admin gets one reset for what several tenants have lost in one place`() async throws {
        let broker = try await Self.broker()
        for tenant in ["busy", "quiet"] { await broker.makeTenant(tenant) }
        await Self.write(["b1", "b2", "q1", "q2", "b3", "q3"], broker)
        #expect(try await Self.trim(broker, keeping: 2) == 4)
        let listener = await broker.listen(lastID: "0-9999")
        let events = await listener.events(3)
        #expect(Self.names(events) == ["stream.reset", "b3", "q3"])
        #expect(events[0].id == "4-9999")
        await listener.close()
    }

    @Test func `a listener that is connected is told of what went before this process has read it`() async throws {
        let base = MemoryRecordStore()
        let time = ManualTime(skipsSleeps: false)
        let writer = try await Self.broker(store: BrokerFaultyStore(base, revalidateAfter: .seconds(5)), time: time)
        let reader = try await Self.broker(store: BrokerFaultyStore(base, revalidateAfter: .seconds(5)), time: time)
        for tenant in ["busy", "quiet"] { await writer.makeTenant(tenant) }
        let listeners = [
            await reader.listen(tenant: "busy"), await reader.listen(tenant: "quiet"), await reader.listen(),
        ]
        await time.sleepers(of: .seconds(1))
        await Self.write(["q1", "b1", "b2", "b3", "b4", "q2"], writer)
        #expect(try await Self.trim(writer, keeping: 4) == 2)
        time.advance(by: .seconds(1))
        let told = [["stream.reset", "b3", "b4"], ["q1", "q2"], ["q1", "stream.reset", "b3", "b4", "q2"]]
        for (listener, told) in zip(listeners, told) {
            #expect(Self.names(await listener.events(told.count)) == told)
            await listener.close()
        }
        #expect(!reader.log.contains { $0.contains("event_unreadable") })
    }
}
