import BrokerCore
import BrokerTesting
import CredentialStore
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Refreshing ahead of time` {
    private static func make(
        lead: Int = 600, lifetime: Duration = .seconds(3600), refresh: String? = "r1",
        store: any RecordStore = MemoryRecordStore(), tenant: String = #""client_id": "c1""#
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, time: ManualTime(skipsSleeps: false))
        await broker.makeTenant("t1", #"{"refresh_lead_time": \#(lead), \#(tenant)}"#)
        await broker.set("a1", refresh: refresh, lifetime: lifetime)
        return broker
    }

    /// What the next caller gets once the refresh behind this answer has ended.
    private static func next(_ broker: BrokerHarness, after query: String = "") async -> BrokerHarness.Answer {
        #expect(await broker.get(query).status == 200)
        await broker.broker.core.renewer.finish()
        return await broker.get("policy=local")
    }

    /// The time that is left, whether the caller waits for a refresh, and whether the next one gets its token.
    @Test(
        arguments: [
            (600_001, false, false), (600_000, false, true), (599_999, false, true), (60_000, false, true),
            (59_999, true, true),
        ])
    func `begins when the lead time is left, and keeps no caller waiting while a minute is left`(
        left: Int, waits: Bool, isRefreshed: Bool
    ) async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3600) - .milliseconds(left))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == (waits ? "a2" : "a1"))
        await broker.broker.core.renewer.finish()
        #expect(await broker.get("policy=local").token == (isRefreshed ? "a2" : "a1"))
        #expect(broker.transport.seen.count == (isRefreshed ? 1 : 0))
    }

    /// The lead time, what is left of the token, and whether the caller waits for a refresh.
    @Test(
        arguments: [
            (0, 1, false), (0, 0, true), (45, 45_000, false), (45, 44_999, true), (60, 60_000, false),
            (60, 59_999, true), (61, 60_000, false), (61, 59_999, true),
        ])
    func `a caller that names no min_ttl asks for a minute, or for the lead time where that is less`(
        lead: Int, left: Int, waits: Bool
    ) async throws {
        let broker = try await Self.make(lead: lead)
        broker.time.advance(by: .seconds(3600) - .milliseconds(left))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == (waits ? "a2" : "a1"))
        await broker.broker.core.renewer.finish()
    }

    @Test func `one refresh runs behind any number of answers`() async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3100))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        for _ in 0..<20 { #expect(await broker.get().token == "a1") }
        await gate.arrivals()
        gate.open()
        await broker.broker.core.renewer.finish()
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.count == 1)
    }

    /// A query, the time after which it is made, and the trigger of its refresh.
    @Test(
        arguments: [
            ("", 3100, "ahead"), ("", 3550, "request"), ("min_ttl=3500", 200, "request"),
            ("policy=local_force_refresh", 0, "forced"), ("api_error_sub_status=11003", 0, "api_error"),
            ("policy=local_force_refresh&api_error_sub_status=11003", 0, "api_error"),
        ])
    func `every event of a refresh says why it began`(query: String, after: Int, trigger: String) async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(after))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")), .json(403, ""))
        _ = await broker.get(query)
        await broker.broker.core.renewer.finish()
        let told = try await broker.events().filter { $0.kind.rawValue.hasPrefix("refresh.") }
        #expect(told.count == 5)
        #expect(told.allSatisfy { $0.data["trigger"]?.text == trigger })
        _ = await broker.get("policy=local_force_refresh")
        #expect(try await broker.events().last?.kind == .refreshFailed)
        #expect(try await broker.events().last?.data["trigger"]?.text == "forced")
    }

    @Test func `is not done where nothing can be refreshed, asked for locally, or configured`() async throws {
        let bare = try await Self.make(refresh: nil)
        bare.time.advance(by: .seconds(3500))
        #expect(await bare.get().token == "a1")
        let local = try await Self.make()
        local.time.advance(by: .seconds(3500))
        #expect(await local.get("policy=local").token == "a1")
        let off = try await Self.make(lead: 0)
        off.time.advance(by: .seconds(3540))
        #expect(await off.get().token == "a1")
        for broker in [bare, local, off] { #expect(broker.transport.seen.isEmpty) }
    }

    @Test(
        arguments: [
            .json(403, ""), .json(400, #"{"error": "invalid_scope"}"#), .json(429, ""), .failure(.untrusted(.pin)),
        ] as [ScriptedTransport.Step])
    func `serves the stored token when it fails, and pauses for 30 seconds`(
        step: ScriptedTransport.Step
    ) async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3100))
        broker.transport.enqueue(step)
        let answer = await broker.get()
        #expect((answer.status, answer.token) == (200, "a1"))
        #expect(answer.json["expires_in"] == .integer(500))
        await broker.broker.core.renewer.finish()
        for _ in 0..<3 { #expect(await broker.get().token == "a1") }
        broker.time.advance(by: .milliseconds(29_999))
        #expect(await broker.get().token == "a1")
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .milliseconds(1))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await Self.next(broker).token == "a2")
        #expect(broker.transport.seen.count == 2)
    }

    @Test func `asks again at once after an answer that cannot be read`() async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3100))
        broker.transport.enqueue(.json(200, "{}"), .json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a1")
        // The wait before the second call.
        await broker.time.sleepers(of: .milliseconds(500))
        broker.time.advance(by: .milliseconds(500))
        await broker.broker.core.renewer.finish()
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == ["r1", "r1"])
    }

    @Test func `the pause ends when the token would not do any more`() async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3530))
        broker.transport.enqueue(.json(403, ""))
        #expect(await Self.next(broker).token == "a1")
        broker.time.advance(by: .seconds(11))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
    }

    @Test func `the pause is of one token and not of the next`() async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3100))
        broker.transport.enqueue(.json(403, ""))
        #expect(await Self.next(broker).token == "a1")
        await broker.set("b1", refresh: "r2", lifetime: .seconds(500))
        broker.transport.enqueue(.json(200, BrokerHarness.token("b2")))
        #expect(await Self.next(broker).token == "b2")
    }

    @Test func `the pause stops no caller who demands a refresh`() async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3100))
        broker.transport.enqueue(.json(403, ""), .json(403, ""), .json(200, BrokerHarness.token("a2")))
        #expect(await Self.next(broker).token == "a1")
        #expect(await broker.get("policy=local_force_refresh").code == "unexpected_error")
        #expect(await broker.get("min_ttl=501").token == "a2")
    }

    @Test func `keeps no caller waiting for a provider that does not answer`() async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3100))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        #expect(await broker.get().token == "a1")
        await gate.arrivals()
        broker.time.advance(by: .seconds(5))
        #expect(await broker.get().token == "a1")
        #expect(await broker.get(fields: ["Prefer": "wait=0"]).token == "a1")
        // A caller that needs more joins the refresh that is under way.
        async let joined = broker.get("min_ttl=1000")
        await broker.time.sleepers(of: .seconds(2))
        gate.open()
        #expect(await joined.token == "a2")
        await broker.broker.core.renewer.finish()
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `does not serve a user who has logged out meanwhile`() async throws {
        let base = MemoryRecordStore()
        let broker = try await Self.make(
            store: FaultyStore(base, revalidateAfter: .seconds(7200)),
            tenant: #""client_id": "c1", "client_secret": "s1""#)
        #expect(await broker.get().token == "a1")
        let sibling = try await BrokerHarness(store: base, time: broker.time)
        await sibling.logOut()
        broker.time.advance(by: .seconds(3100))
        broker.transport.always(.json(401, #"{"error": "invalid_client"}"#))
        // The refresh behind this answer finds the logout.
        #expect(await broker.get().token == "a1")
        await broker.broker.core.renewer.finish()
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
    }

    @Test func `ends the session like any refresh when the provider says so`() async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3100))
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get().token == "a1")
        await broker.broker.core.renewer.finish()
        #expect(await broker.get().level == "basic")
        #expect(try await broker.quarantined() != nil)
    }

    @Test func `asks no provider while the store is away, and serves what is good`() async throws {
        let store = FaultyStore()
        let broker = try await Self.make(store: store)
        #expect(await broker.get().token == "a1")
        broker.time.advance(by: .seconds(3100))
        store.setDown(true)
        #expect(await broker.get().token == "a1")
        await broker.broker.core.renewer.finish()
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `pauses for a store that can be read and not written to`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.make(store: store)
        broker.time.advance(by: .seconds(3100))
        store.disturb([.refuse, .refuse]) { if case .claim = $0 { true } else { false } }
        #expect(await Self.next(broker).token == "a1")
        #expect(store.remainingFaults == 1)
        broker.time.advance(by: .milliseconds(29_999))
        #expect(await Self.next(broker).token == "a1")
        #expect(store.remainingFaults == 1)
        broker.time.advance(by: .milliseconds(1))
        #expect(await Self.next(broker).token == "a1")
        #expect(store.remainingFaults == 0)
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `a token that never lives longer than the lead time is not refreshed at every read`() async throws {
        let broker = try await Self.make(lead: 7200, lifetime: .seconds(100))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", expiresIn: 1000)))
        #expect(await Self.next(broker).token == "a2")
        for _ in 0..<10 { #expect(await broker.get().token == "a2") }
        broker.time.advance(by: .milliseconds(499_999))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .milliseconds(1))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", expiresIn: 1000)))
        #expect(await Self.next(broker).token == "a3")
        #expect(await broker.get().token == "a3")
        #expect(broker.transport.seen.count == 2)
    }

    // MARK: A caller's min_ttl

    @Test(arguments: [61, 3600, 86_400])
    func `a caller's large min_ttl takes no live token away that cannot be refreshed`(minimum: Int) async throws {
        let broker = try await Self.make(lead: 0, lifetime: .seconds(61), refresh: nil)
        let tag = await broker.get("policy=local").tag
        broker.time.advance(by: .seconds(1))
        for _ in 0..<2 { #expect(await broker.get("min_ttl=\(minimum)").token == "a1") }
        #expect(await broker.get().tag == tag)
        broker.time.advance(by: .milliseconds(1))
        #expect(await broker.get("min_ttl=1").token == "a1")
        #expect(await broker.get("min_ttl=\(minimum)").level == "basic")
    }

    // MARK: Without a suspension

    @Test func `what is in memory and good is served without a suspension`() async throws {
        let broker = try await Self.make()
        #expect(await broker.get().token == "a1")
        let answers = AnswerBox()
        let reader = Task.immediate { answers.put(await broker.get()) }
        #expect(answers.value?.token == "a1")
        await reader.value
    }
}
