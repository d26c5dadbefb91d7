import BrokerCore
import BrokerTesting
import CredentialStore
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@Suite(.timeLimit(.minutes(2))) struct `Refreshing without a request` {
    private static func tenant(_ lead: Int?) -> String {
        #"{"client_id": "c1"\#(lead.map { #", "proactive_refresh": \#($0)"# } ?? "")}"#
    }

    /// A broker whose time stands still, and whose provider grants `access-of-<refresh token>` for an hour.
    private static func make(
        lead: Int? = 1800, store: any RecordStore = MemoryRecordStore(),
        time: ManualTime = ManualTime(skipsSleeps: false), isFirst: Bool = true
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, time: time)
        broker.transport.always(
            .decide { seen in
                .json(200, BrokerHarness.token("access-of-\(seen.form["refresh_token"] ?? "")", refresh: "next"))
            })
        if isFirst { await broker.makeTenant("t1", tenant(lead)) }
        return broker
    }

    /// Looks at what is due, and waits until that is done.
    private static func look(_ broker: BrokerHarness) async {
        _ = await broker.broker.core.expiryJob.handleAllDue()
        await broker.broker.core.expiryJob.finish()
    }

    private static func notices(_ broker: BrokerHarness) async throws -> Int {
        try await broker.loggedEvents().count { $0.name == "credentials.expiring" }
    }

    /// When the record is due, from the beginning of time; nil without a mark.
    private static func mark(_ broker: BrokerHarness, _ key: String = "default") async throws -> Duration? {
        let id = RecordID(.credentials, try #require(TenantName("t1")), key: key)
        return try await broker.vault.read(id)?.due.map { ManualTime.beginning.duration(to: $0) }
    }

    private static func advance(_ broker: BrokerHarness, to elapsed: Duration) {
        broker.time.advance(by: elapsed - ManualTime.beginning.duration(to: broker.time.now))
    }

    // MARK: When

    // H081
    @Test(
        arguments: [
            (1800, 3600, 1440, 1800), (1799, 3600, 1441, 1801), (301, 3600, 3238, 3299), (300, 3600, 3240, 3300),
            // The notice would come before the lead.
            (60, 3600, 3240, 3300),
            // Half of a short life is left alone.
            (86_400, 3600, 1440, 1800), (600, 100, 40, 50), (600, 61, 30, 31), (600, 60, 30, 30),
            // Too short to be worth it: the notice's time, but not at once, since its successor would be due then, too.
            (600, 59, 30, 30), (600, 29, 29, 29), (60, 1, 1, 1),
        ])
    func `falls due ahead of the expiry, by lot up to a fifth earlier`(
        lead: Int, lifetime: Int, earliest: Int, latest: Int
    ) async throws {
        let broker = try await Self.make(lead: lead)
        var marks: [Duration] = []
        for number in 0..<40 {
            await broker.set("a", refresh: "r", lifetime: .seconds(lifetime), storageKey: "k\(number)")
            marks.append(try #require(try await Self.mark(broker, "k\(number)")))
        }
        let range = Duration.seconds(earliest)...Duration.seconds(latest)
        #expect(marks.allSatisfy(range.contains), "\(marks)")
        if latest - earliest > 5 {
            // One in millions of runs would have them closer together.
            let spread = try #require(marks.max()) - (try #require(marks.min()))
            #expect(spread >= .seconds(latest - earliest) / 3)
        }
    }

    @Test func `is off by default, and for what cannot be refreshed`() async throws {
        let off = try await Self.make(lead: nil)
        await off.set("a1", refresh: "r1")
        let bare = try await Self.make()
        await bare.set("a1")
        let client = try await Self.make()
        await client.set("a1", members: #""level": "client", "#)
        for broker in [off, bare, client] {
            #expect(try await Self.mark(broker) == .seconds(3300))
            Self.advance(broker, to: .milliseconds(3_300_001))
            await Self.look(broker)
            #expect(broker.transport.seen.isEmpty)
            #expect(try await Self.notices(broker) == 1)
            #expect(try await Self.mark(broker) == nil)
        }
    }

    @Test func `another client's credentials are not touched`() async throws {
        let broker = try await Self.make()
        await broker.set("a1", refresh: "r1")
        await broker.makeTenant("t1", #"{"client_id": "c2", "proactive_refresh": 1800}"#)
        Self.advance(broker, to: .seconds(1801))
        await Self.look(broker)
        #expect(try await Self.mark(broker) == .seconds(3300))
        for elapsed in [3301, 3700, 7200, 86_400] {
            Self.advance(broker, to: .seconds(elapsed))
            await Self.look(broker)
            #expect(broker.transport.seen.isEmpty)
            #expect(try await Self.notices(broker) == 1)
            #expect(try #require(try await Self.mark(broker)) > .seconds(elapsed))
        }
        // The mistake in the configuration is mended.
        await broker.makeTenant("t1", Self.tenant(1800))
        Self.advance(broker, to: .seconds(86_400 + 1200))
        await Self.look(broker)
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == ["r1"])
    }

    @Test func `is tried again while the tenant's record cannot be read, and the notice comes once`() async throws {
        let broker = try await Self.make()
        await broker.set("a1", refresh: "r1")
        let id = RecordID(.tenant, try #require(TenantName("t1")))
        let good = try #require(try await broker.store.read(id))
        try await broker.store.commit([
            .replace(
                StoredRecord(id: id, version: good.version + 1, sealed: [1, 2, 3]), version: good.version)
        ])
        // It has the tenant from the store alone.
        let other = try await Self.make(store: broker.store, time: broker.time, isFirst: false)
        for elapsed in [3301, 3700] {
            Self.advance(broker, to: .seconds(elapsed))
            await Self.look(other)
            #expect(try await Self.notices(other) == 1)
            #expect(try #require(try await Self.mark(other)) > .seconds(elapsed))
        }
        #expect(other.transport.seen.isEmpty)
        #expect(other.log.contains { $0.contains("tenant_unreadable") })
    }

    @Test func `a record of failures that cannot be read holds up neither its token nor others`() async throws {
        let broker = try await Self.make()
        let tenant = try #require(TenantName("t1"))
        for key in ["k1", "k2"] { await broker.set("a1", refresh: "r-\(key)", lifetime: .seconds(20), storageKey: key) }
        try await broker.store.commit([
            .insert(StoredRecord(id: RecordID(.trouble, tenant, key: "k1"), version: 1, sealed: [1, 2, 3]))
        ])
        Self.advance(broker, to: .seconds(21))
        await Self.look(broker)
        #expect(try await Self.notices(broker) == 2)
        Self.advance(broker, to: .seconds(200))
        await Self.look(broker)
        #expect(Set(broker.transport.seen.compactMap { $0.form["refresh_token"] }) == ["r-k1", "r-k2"])
    }

    // MARK: Success

    @Test func `is done once, and no listener is told of an expiry`() async throws {
        let broker = try await Self.make()
        await broker.set("a1", refresh: "r1")
        let mark = try #require(try await Self.mark(broker))
        Self.advance(broker, to: mark)
        await Self.look(broker)
        #expect(broker.transport.seen.isEmpty)
        broker.time.advance(by: .milliseconds(1))
        await Self.look(broker)
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == ["r1"])
        #expect(await broker.get().token == "access-of-r1")
        #expect(try await broker.causes() == ["set", "refresh"])
        let metrics = await broker.call(.get, "/metrics").text
        #expect(metrics.contains(#"token_broker_proactive_refresh_total{outcome="renewed"} 1"#))
        // The next one is due in its turn.
        let next = try #require(try await Self.mark(broker)) - mark
        #expect((Duration.seconds(1440)...Duration.seconds(1801)).contains(next))
        Self.advance(broker, to: mark + next + .milliseconds(1))
        await Self.look(broker)
        #expect(try await Self.notices(broker) == 0)
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == ["r1", "next"])
    }

    @Test func `the job does it by itself`() async throws {
        let broker = try await Self.make()
        await broker.set("a1", refresh: "r1", lifetime: .seconds(61))
        let listener = await broker.listen(tenant: "t1")
        let job = Task { await broker.broker.core.expiryJob.run() }
        // The job's sleep, and the listener's.
        await broker.time.sleepers(of: .expiryNotices, .seconds(1))
        await broker.time.pass(.seconds(40))
        // The job goes on to the next look while a renewal is under way.
        await broker.broker.core.renewer.finish()
        #expect(await broker.get("policy=local").token == "access-of-r1")
        job.cancel()
        await job.value
        await listener.close()
    }

    @Test func `joins a renewal that a caller waits for`() async throws {
        let broker = try await Self.make()
        await broker.set("a1", refresh: "r1")
        Self.advance(broker, to: .seconds(1801))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        async let asked = broker.get("policy=local_force_refresh")
        await gate.arrivals()
        async let looked: Void = Self.look(broker)
        gate.open()
        #expect(await asked.token == "a2")
        await looked
        #expect(broker.transport.seen.count == 1)
    }

    // MARK: Failure

    @Test func `is tried again after half of what remains, and told at the notice's time`() async throws {
        let broker = try await Self.make()
        broker.transport.always(.json(403, ""))
        await broker.set("a1", refresh: "r1")
        var marks: [Duration] = []
        while try await Self.notices(broker) == 0 {
            let mark = try #require(try await Self.mark(broker))
            marks.append(mark)
            Self.advance(broker, to: mark + .milliseconds(1))
            await Self.look(broker)
            #expect(broker.transport.seen.count == marks.count)
        }
        for (mark, next) in zip(marks, marks.dropFirst()) {
            let half = (.seconds(3600) - mark) / 2
            let exact = mark...mark + .milliseconds(1)
            #expect(next == .seconds(3300) || exact.contains(next - half), "\(marks)")
        }
        #expect(marks.last == .seconds(3300))
        #expect(try await Self.notices(broker) == 1)
    }

    /// How long the provider is away from the notice on.
    // H090
    @Test(arguments: [40, 290, 310, 600, 7200, 90_000])
    func `goes on after an outage, however long that outlives the token`(outage: Int) async throws {
        let broker = try await Self.make()
        broker.transport.always(.json(403, ""))
        await broker.set("a1", refresh: "r1")
        let end = Duration.seconds(3300 + outage)
        var (last, longest) = (Duration.zero, Duration.zero)
        while true {
            let mark = try #require(try await Self.mark(broker))
            if mark > .seconds(3300) { longest = max(longest, mark - last) }
            if mark >= end { break }
            Self.advance(broker, to: mark + .milliseconds(1))
            await Self.look(broker)
            last = mark
        }
        // From 30 s to a quarter of an hour, and a fifth by lot.
        #expect(longest >= .seconds(30) && longest <= .seconds(1081))
        #expect(try await Self.notices(broker) == 1)
        let calls = broker.transport.seen.count
        broker.transport.always(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        Self.advance(broker, to: try #require(try await Self.mark(broker)) + .milliseconds(1))
        await Self.look(broker)
        #expect(await broker.get("policy=local").token == "a2")
        #expect(broker.transport.seen.count == calls + 1)
        // The new token is looked after as any other.
        let mark = try #require(try await Self.mark(broker))
        broker.transport.always(.json(403, ""))
        while try await Self.notices(broker) == 1 {
            Self.advance(broker, to: try #require(try await Self.mark(broker)) + .milliseconds(1))
            await Self.look(broker)
        }
        #expect(mark < ManualTime.beginning.duration(to: broker.time.now))
        #expect(try await Self.notices(broker) == 2)
    }

    @Test func `a session that has ended, or whose tenant wants it no longer, is not tried for ever`() async throws {
        let broker = try await Self.make()
        broker.transport.always(.json(403, ""))
        await broker.set("a1", refresh: "r1")
        await broker.set("b1", refresh: "r2", storageKey: "other")
        Self.advance(broker, to: .seconds(3301))
        await Self.look(broker)
        #expect(try await Self.notices(broker) == 2)
        broker.transport.always(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get("level=user&storage_key=other&policy=local_force_refresh").status == 424)
        #expect(try await Self.mark(broker, "other") == nil)
        await broker.makeTenant("t1", Self.tenant(nil))
        let calls = broker.transport.seen.count
        Self.advance(broker, to: .seconds(3600))
        await Self.look(broker)
        #expect(try await Self.mark(broker) == nil)
        #expect((broker.transport.seen.count, try await Self.notices(broker)) == (calls, 2))
    }

    @Test func `a failure whose notice cannot be written is told once later`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.make(store: store)
        broker.transport.always(.json(403, ""))
        await broker.set("a1", refresh: "r1", lifetime: .seconds(100))
        // The attempt itself moves the mark by exactly half a minute.
        let owned = ManualTime.beginning.advanced(by: .seconds(81))
        store.disturb([.refuse, .loseAnswer]) { change in
            if case .settleDue(_, _, _, let next) = change { next != owned } else { false }
        }
        for _ in 0..<4 {
            broker.time.advance(by: .seconds(51))
            await Self.look(broker)
        }
        #expect(store.remainingFaults == 0)
        #expect(try await Self.notices(broker) == 1)
    }

    @Test func `a session that the provider ends expires no more`() async throws {
        let broker = try await Self.make()
        broker.transport.always(.json(400, #"{"error": "invalid_grant"}"#))
        await broker.set("a1", refresh: "r1")
        Self.advance(broker, to: .seconds(1801))
        await Self.look(broker)
        #expect(try await broker.causes() == ["set", "revoked"])
        Self.advance(broker, to: .seconds(3500))
        await Self.look(broker)
        #expect(try await Self.notices(broker) == 0)
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `one that is cut short by the end of the process is told by the next`() async throws {
        let broker = try await Self.make()
        await broker.set("a1", refresh: "r1", lifetime: .seconds(100))
        broker.time.advance(by: .seconds(51))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(403, "")))
        let job = Task { await broker.broker.core.expiryJob.run() }
        await gate.arrivals()
        job.cancel()
        await job.value
        #expect(try await Self.notices(broker) == 0)
        gate.open()
        await broker.broker.core.finish()
        #expect(try await Self.notices(broker) == 0)
        let next = try await Self.make(store: broker.store, time: broker.time, isFirst: false)
        next.time.advance(by: .seconds(31))
        await Self.look(next)
        // Hardly anything is left of it.
        #expect(try await Self.notices(next) == 1)
        #expect(next.transport.seen.isEmpty)
    }

    // MARK: Changes of mind

    @Test func `switched on later, it finds what was stored before`() async throws {
        let broker = try await Self.make(lead: nil)
        await broker.set("a1", refresh: "r1")
        await broker.makeTenant("t1", Self.tenant(1800))
        Self.advance(broker, to: .seconds(3299))
        await Self.look(broker)
        #expect(broker.transport.seen.isEmpty)
        Self.advance(broker, to: .seconds(3301))
        await Self.look(broker)
        #expect(await broker.get("policy=local").token == "access-of-r1")
        #expect(try await Self.notices(broker) == 0)
    }

    @Test func `switched off, it leaves the notice where it belongs`() async throws {
        let broker = try await Self.make()
        await broker.set("a1", refresh: "r1")
        await broker.makeTenant("t1", Self.tenant(nil))
        Self.advance(broker, to: .seconds(1801))
        await Self.look(broker)
        #expect(try await Self.mark(broker) == .seconds(3300))
        #expect(try await Self.notices(broker) == 0)
        Self.advance(broker, to: .seconds(3301))
        await Self.look(broker)
        #expect(try await Self.notices(broker) == 1)
        #expect(broker.transport.seen.isEmpty)
    }

    // MARK: Many

    @Test func `two replicas that look at once ask once for each`() async throws {
        let (base, time) = (MemoryRecordStore(), ManualTime(skipsSleeps: false))
        let one = try await Self.make(store: FaultyStore(base, revalidateAfter: .seconds(5)), time: time)
        let two = try await Self.make(
            store: FaultyStore(base, revalidateAfter: .seconds(5)), time: time, isFirst: false)
        for number in 0..<200 { await one.set("a", refresh: "r\(number)", storageKey: "k\(number)") }
        time.advance(by: .seconds(1801))
        await withTaskGroup { group in
            for broker in [one, two] { group.addTask { await Self.look(broker) } }
        }
        let spent = (one.transport.seen + two.transport.seen).compactMap { $0.form["refresh_token"] }
        #expect(spent.count == 200)
        #expect(Set(spent).count == 200)
        #expect(try await Self.notices(one) == 0)
    }

    @Test func `an owner that dies before it asks is followed by another`() async throws {
        let (base, time) = (MemoryRecordStore(), ManualTime(skipsSleeps: false))
        let mortal = BrokerFaultyStore(base, revalidateAfter: .seconds(5))
        let one = try await Self.make(store: mortal, time: time)
        let two = try await Self.make(
            store: FaultyStore(base, revalidateAfter: .seconds(5)), time: time, isFirst: false)
        await one.set("a1", refresh: "r1")
        time.advance(by: .seconds(1801))
        mortal.disturb([.loseAnswer]) { if case .settleDue = $0 { true } else { false } }
        await Self.look(one)
        await Self.look(two)
        #expect(one.transport.seen.isEmpty && two.transport.seen.isEmpty)
        #expect(try await Self.mark(two) == .milliseconds(2_700_500))
        time.advance(by: .seconds(900))
        await Self.look(two)
        #expect(two.transport.seen.map(\.form["refresh_token"]) == ["r1"])
        #expect(try await Self.notices(two) == 0)
    }

    // H090
    @Test func `a herd of 2000 is renewed within the budget`() async throws {
        let broker = try await Self.make()
        for number in 0..<2000 { await broker.set("a", refresh: "r\(number)", storageKey: "k\(number)") }
        Self.advance(broker, to: .seconds(1801))
        await Self.look(broker)
        let spent = broker.transport.seen.compactMap { $0.form["refresh_token"] }
        #expect(spent.count == 2000)
        #expect(Set(spent).count == 2000)
        Self.advance(broker, to: .seconds(3500))
        await Self.look(broker)
        #expect(try await Self.notices(broker) == 0)
        #expect(broker.broker.core.budget.usage == .init(inUse: 0, waiting: 0))
    }

    // H090
    @Test func `a provider is asked for no more at once than half of its places`() async throws {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false)) { $0.core.providerBudget.places = 8 }
        await broker.makeTenant("t1", Self.tenant(1800))
        let gate = Gate()
        broker.transport.always(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        for number in 0..<20 { await broker.set("a", refresh: "r", storageKey: "k\(number)") }
        Self.advance(broker, to: .seconds(1801))
        async let looked: Void = Self.look(broker)
        await gate.arrivals(4)
        await broker.time.sleepers(of: .seconds(5))
        // As many again are under way to a place.
        while broker.broker.core.budget.usage.waiting < 4 { await Task.yield() }
        #expect(broker.broker.core.budget.usage == .init(inUse: 4, waiting: 4))
        #expect(broker.transport.seen.count == 4)
        gate.open()
        await looked
        #expect(broker.transport.seen.count == 20)
    }

    @Test func `a provider that does not answer holds up no other user's notice`() async throws {
        let broker = try await Self.make()
        await broker.makeTenant("t2")
        let gate = Gate()
        broker.transport.always(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        for number in 0..<600 { await broker.set("a", refresh: "r", storageKey: "k\(number)") }
        Self.advance(broker, to: .seconds(1801))
        // It falls due after all of those.
        await broker.set("b", lifetime: .seconds(300), tenant: "t2")
        broker.time.advance(by: .milliseconds(1))
        async let looked: Void = Self.look(broker)
        // The first five hundred have no room for five seconds, then the others.
        for _ in 0..<2 {
            await broker.time.sleepers(of: .seconds(5))
            broker.time.advance(by: .seconds(5))
        }
        gate.open()
        await looked
        #expect(try await Self.notices(broker) == 1)
        let renewed = broker.transport.seen.count
        #expect(renewed < 600)
        for _ in 0..<3 {
            broker.time.advance(by: .seconds(61))
            await Self.look(broker)
        }
        #expect(broker.transport.seen.count == 600)
        #expect(try await Self.notices(broker) == 1)
    }
}
