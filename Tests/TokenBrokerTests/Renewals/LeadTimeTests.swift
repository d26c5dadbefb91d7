internal import BrokerCore
internal import BrokerTesting
internal import CredentialStore
internal import HTTPCodec
internal import HTTPSClient
internal import JSON
internal import OAuth
internal import Testing
internal import TokenBroker

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

    @Test(arguments: [(600_001, false), (600_000, true), (599_999, true), (60_000, true), (59_999, true)])
    func `begins when the lead time is left`(left: Int, isRefreshed: Bool) async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3600) - .milliseconds(left))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == (isRefreshed ? "a2" : "a1"))
        #expect(broker.transport.seen.count == (isRefreshed ? 1 : 0))
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
        for _ in 0..<3 { #expect(await broker.get().token == "a1") }
        broker.time.advance(by: .milliseconds(29_999))
        #expect(await broker.get().token == "a1")
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .milliseconds(1))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.count == 2)
    }

    @Test func `asks again at once after an answer that cannot be read`() async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3100))
        broker.transport.enqueue(.json(200, "{}"), .json(200, BrokerHarness.token("a2")))
        async let answer = broker.get()
        // The caller's patience, and the wait before the second call.
        await broker.time.sleepers(of: .seconds(2), .milliseconds(500))
        broker.time.advance(by: .milliseconds(500))
        #expect(await answer.token == "a2")
        #expect(broker.transport.seen.map(\.form["refresh_token"]) == ["r1", "r1"])
    }

    @Test func `the pause ends when the token would not do any more`() async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3530))
        broker.transport.enqueue(.json(403, ""))
        #expect(await broker.get().token == "a1")
        broker.time.advance(by: .seconds(11))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
    }

    @Test func `the pause is of one token and not of the next`() async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3100))
        broker.transport.enqueue(.json(403, ""))
        #expect(await broker.get().token == "a1")
        await broker.set("b1", refresh: "r2", lifetime: .seconds(500))
        broker.transport.enqueue(.json(200, BrokerHarness.token("b2")))
        #expect(await broker.get().token == "b2")
    }

    @Test func `the pause stops no caller who demands a refresh`() async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3100))
        broker.transport.enqueue(.json(403, ""), .json(403, ""), .json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a1")
        #expect(await broker.get("policy=local_force_refresh").code == "unexpected_error")
        #expect(await broker.get("min_ttl=501").token == "a2")
    }

    @Test func `keeps no caller waiting for a provider that does not answer`() async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3100))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        async let reader = broker.get()
        await gate.arrivals()
        await broker.time.sleepers(of: .seconds(2))
        broker.time.advance(by: .seconds(5))
        #expect(await reader.token == "a1")
        #expect(await broker.get(fields: ["Prefer": "wait=0"]).token == "a1")
        async let joined = broker.get()
        gate.open()
        #expect(["a1", "a2"].contains(await joined.token))
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
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (424, "illegal_configuration"))
    }

    @Test func `ends the session like any refresh when the provider says so`() async throws {
        let broker = try await Self.make()
        broker.time.advance(by: .seconds(3100))
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
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
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `pauses for a store that can be read and not written to`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.make(store: store)
        broker.time.advance(by: .seconds(3100))
        store.disturb([.refuse, .refuse]) { if case .claim = $0 { true } else { false } }
        #expect(await broker.get().token == "a1")
        #expect(store.remainingFaults == 1)
        broker.time.advance(by: .milliseconds(29_999))
        #expect(await broker.get().token == "a1")
        #expect(store.remainingFaults == 1)
        broker.time.advance(by: .milliseconds(1))
        #expect(await broker.get().token == "a1")
        #expect(store.remainingFaults == 0)
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `a token that never lives longer than the lead time is not refreshed at every read`() async throws {
        let broker = try await Self.make(lead: 7200, lifetime: .seconds(100))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", expiresIn: 1000)))
        #expect(await broker.get().token == "a2")
        for _ in 0..<10 { #expect(await broker.get().token == "a2") }
        broker.time.advance(by: .milliseconds(499_999))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .milliseconds(1))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", expiresIn: 1000)))
        #expect(await broker.get().token == "a3")
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
