import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// Pauses that a provider has asked for, and what ends them before their time.
@Suite struct `A provider's pause` {
    private static let tenant = "{" + BrokerHarness.oidc + #""client_id": "c1"}"#

    /// Has the provider ask for an hour, by an answer to the first replica.
    private static func pause(_ broker: BrokerHarness, tenant: String = "t1") async {
        await broker.set("old", refresh: "r1", lifetime: .zero, tenant: tenant)
        broker.time.advance(by: .seconds(2))
        broker.transport.enqueue(.json(429, "", fields: ["Retry-After": "3600"]))
        #expect(await broker.get(tenant: tenant).retryAfter == 3600)
    }

    private static func isSpared(_ broker: BrokerHarness, tenant: String = "t1") async -> Bool {
        let count = broker.transport.seen.count
        let answer = await broker.get(tenant: tenant)
        #expect((answer.status == 503) == (broker.transport.seen.count == count))
        return broker.transport.seen.count == count
    }

    @Test func `ends when the tenant is put again`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        await Self.pause(broker)
        #expect(await Self.isSpared(broker))
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.enqueue(.json(200, BrokerHarness.token("new")))
        #expect(await broker.get().token == "new")
    }

    @Test func `goes on when the tenant of another client or another provider is put`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        await Self.pause(broker)
        await broker.makeTenant("t2", Self.tenant.replacing("c1", with: "c2"))
        await broker.makeTenant("t3", Self.tenant.replacing("id.example/t", with: "id.example/other"))
        #expect(await Self.isSpared(broker))
        // It is the client's: any tenant of the same one will do.
        await broker.makeTenant("t4", Self.tenant)
        broker.transport.enqueue(.json(200, BrokerHarness.token("new")))
        #expect(await broker.get().token == "new")
    }

    @Test func `of a provider that is known by its metadata ends, too`() async throws {
        let tenant = #"{"provider": "oidc", "client_id": "c1", "issuer": "https://op.example"}"#
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", tenant)
        broker.transport.enqueue(
            .json(
                200,
                #"""
                {"issuer": "https://op.example", "authorization_endpoint": "https://op.example/a",
                 "token_endpoint": "https://op.example/t"}
                """#))
        await Self.pause(broker)
        #expect(await Self.isSpared(broker))
        await broker.makeTenant("t1", tenant)
        broker.transport.enqueue(.json(200, BrokerHarness.token("new")))
        #expect(await broker.get().token == "new")
    }

    /// Whether the replica is told of the change, or finds it when it believes what it has read no longer.
    @Test(arguments: [true, false])
    func `ends at every replica`(isTold: Bool) async throws {
        let time = ManualTime()
        let records = MemoryRecordStore { time.monotonic }
        let group = ReplicaStore.Group()
        let stores = (ReplicaStore(records, in: group), ReplicaStore(records, in: group))
        let one = try await BrokerHarness(store: stores.0, time: time)
        let two = try await BrokerHarness(store: stores.1, time: time)
        if isTold {
            stores.0.follow()
            stores.1.follow()
        } else {
            stores.1.setDelivery(.fails)
        }
        await one.makeTenant("t1", Self.tenant)
        await Self.pause(two)
        #expect(await Self.isSpared(two))
        await one.makeTenant("t1", Self.tenant)
        if !isTold {
            #expect(await Self.isSpared(two))
            time.advance(by: .seconds(5))
        }
        two.transport.enqueue(.json(200, BrokerHarness.token("new")))
        #expect(await two.get().token == "new")
    }

    /// The store tells a replica of what it has written itself as well.
    @Test func `that begins after the tenant was put goes on`() async throws {
        let time = ManualTime()
        let store = ReplicaStore(MemoryRecordStore { time.monotonic }, in: ReplicaStore.Group())
        let broker = try await BrokerHarness(store: store, time: time)
        store.follow()
        await broker.makeTenant("t1", Self.tenant)
        await Self.pause(broker)
        for _ in 0..<100 {
            #expect(await Self.isSpared(broker))
            time.advance(by: .seconds(10))
            store.follow()
        }
    }

    /// The user of one client is not kept waiting for an hour by a server that is in trouble for a moment.
    @Test func `after a 503 lasts a minute for all users of the client`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        await broker.set("other", refresh: "r2", lifetime: .zero, storageKey: "other")
        await broker.set("old", refresh: "r1", lifetime: .zero)
        broker.time.advance(by: .seconds(2))
        broker.transport.enqueue(.json(503, "", fields: ["Retry-After": "3600"]))
        #expect(await broker.get().retryAfter == 60)
        #expect(await broker.get("storage_key=other").retryAfter == 60)
        broker.time.advance(by: .seconds(60))
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("new")), .json(200, BrokerHarness.token("another")))
        #expect(await broker.get().token == "new")
        #expect(await broker.get("storage_key=other").token == "another")
    }

    // MARK: 429

    private static let withSecret = #"{"client_id": "c1", "client_secret": "s1"}"#

    // T32 H092
    @Test(
        arguments: [
            ("1", 1), ("7", 7), ("3600", 3600), ("3601", 3600), (nil, 5), ("x", 5),
            ("Sat, 21 Nov 2026 09:00:09 GMT", 9),
        ] as [(String?, Int)])
    func `a 429 is answered at once and the provider is spared until then`(value: String?, seconds: Int) async throws {
        let broker = try await BrokerHarness.expired()
        var fields: Fields = [:]
        if let value { fields.append("Retry-After", value) }
        broker.transport.enqueue(
            .json(429, #"{"error": "slow_down"}"#, fields: fields), .json(200, BrokerHarness.token("a2")))
        let answer = await broker.get()
        #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", seconds))
        #expect(answer.json["error_code"] == .string("slow_down"))
        #expect(broker.time.slept == [])

        broker.time.advance(by: .seconds(seconds) - .milliseconds(1))
        let spared = await broker.get()
        #expect((spared.status, spared.code, spared.retryAfter) == (503, "retryable_error", 1))
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .milliseconds(1))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.count == 2)
    }

    @Test func `a 429 with a Retry-After of 0 spares no call`() async throws {
        let broker = try await BrokerHarness.expired()
        broker.transport.enqueue(
            .json(429, "", fields: ["Retry-After": "0"]), .json(200, BrokerHarness.token("a2")))
        let answer = await broker.get()
        #expect((answer.status, answer.retryAfter) == (503, 1))
        #expect(await broker.get().token == "a2")
    }

    // H091
    @Test func `a pause holds for the client at its provider and for no other`() async throws {
        let broker = try await BrokerHarness.expired()
        await broker.set("b1", refresh: "r2", lifetime: .zero, storageKey: "other")
        await broker.makeTenant("t2", #"{"client_id": "c2"}"#)
        await broker.set("x1", refresh: "r3", lifetime: .zero, tenant: "t2", clientID: "c2")
        broker.transport.enqueue(.json(429, "", fields: ["Retry-After": "60"]))
        #expect(await broker.get().code == "retryable_error")
        #expect(await broker.get("storage_key=other").code == "retryable_error")
        #expect(broker.transport.seen.count == 1)
        broker.transport.enqueue(.json(200, BrokerHarness.token("x2")))
        #expect(await broker.get(tenant: "t2").token == "x2")
        // What is good needs no provider.
        await broker.set("b2", refresh: "r2", storageKey: "other")
        #expect(await broker.get("storage_key=other").token == "b2")
    }

    /// Two users of one client: the first one's refresh has failed and waits for its retry, when the second one's is
    /// answered 429.
    private static func pausedUnderRetry(
        _ failure: ScriptedTransport.Step = .json(503, ""), retryAfter: String
    ) async throws -> (broker: BrokerHarness, first: Task<BrokerHarness.Answer, Never>) {
        let broker = try await BrokerHarness.expired(#"{"client_id": "c1", "rotation": "always"}"#)
        for user in ["other", "third"] { await broker.set("b1", refresh: "r2", lifetime: .zero, storageKey: user) }
        broker.time.holdSleeps()
        broker.transport.enqueue(failure)
        let first = Task { await broker.get() }
        while !broker.time.slept.contains(.milliseconds(500)) { await Task.yield() }
        // Two users, so that all are paused.
        let (gate, limited) = (Gate(), ScriptedTransport.Step.json(429, "", fields: ["Retry-After": .init(retryAfter)]))
        broker.transport.enqueue(.after(gate, limited))
        async let third = broker.get("storage_key=third")
        await gate.arrivals()
        broker.transport.enqueue(limited)
        #expect(await broker.get("storage_key=other").code == "retryable_error")
        gate.open()
        #expect(await third.code == "retryable_error")
        #expect(broker.transport.seen.count == 3)
        return (broker, first)
    }

    @Test func `a retry waits for the end of a pause that another call has met`() async throws {
        let (broker, first) = try await Self.pausedUnderRetry(.failure(.connectFailed), retryAfter: "10")
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        broker.time.advance(by: .milliseconds(500))
        // What is left of the pause.
        while !broker.time.slept.contains(.milliseconds(9500)) { await Task.yield() }
        #expect(broker.transport.seen.count == 3)
        broker.time.advance(by: .milliseconds(9500))
        #expect(await first.value.token == "a2")
        #expect(broker.transport.seen.count == 4)
    }

    @Test(arguments: ["10", "31"])
    func `a refresh token that may be spent is tried again whatever another call has met`(retryAfter: String)
        async throws
    {
        let (broker, first) = try await Self.pausedUnderRetry(.json(503, ""), retryAfter: retryAfter)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        broker.time.advance(by: .milliseconds(500))
        #expect(await first.value.token == "a2")
        #expect(broker.transport.seen.count == 4)
    }

    @Test func `a retry is given up for a pause that lasts longer than a call waits`() async throws {
        let (broker, first) = try await Self.pausedUnderRetry(.failure(.connectFailed), retryAfter: "31")
        broker.time.advance(by: .milliseconds(500))
        let answer = await first.value
        #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", 31))
        #expect(broker.transport.seen.count == 3)
    }

    @Test func `client credentials that get 429 are retryable_error`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        broker.transport.enqueue(.json(429, "", fields: ["Retry-After": "7"]))
        let answer = await broker.get()
        #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", 7))
        #expect(await broker.get().code == "retryable_error")
        #expect(broker.transport.seen.count == 1)
    }

    // MARK: Whom it concerns

    /// Strangers can bring made-up codes.
    @Test(arguments: [429, 503])
    func `is not asked for by the exchange of a code`(status: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        await broker.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "client_secret": "0123456789abcdef"}"#
        )
        await broker.set("a1", refresh: "r1", storageKey: "user")
        for _ in 0..<3 {
            let login = await broker.beginAppLogin()
            broker.transport.enqueue(.json(status, "", fields: ["Retry-After": "3600"]))
            let answer = await broker.bring("code=made-up", for: login)
            #expect(answer.fields["Location"]?.text.contains("error=temporarily_unavailable") == true)
        }
        #expect(broker.transport.seen.count == 3)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get("policy=local_force_refresh&storage_key=user").token == "a2")
    }

    @Test func `is one user's, and after five seconds no other's, until another user's call is answered likewise`()
        async throws
    {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        await broker.makeTenant("t1", Self.tenant)
        for user in ["one", "two", "three"] { await broker.set("a-\(user)", refresh: "r-\(user)", storageKey: user) }
        func force(_ user: String) async -> BrokerHarness.Answer {
            await broker.get("policy=local_force_refresh&storage_key=\(user)")
        }
        broker.transport.enqueue(.json(429, "", fields: ["Retry-After": "3600"]))
        #expect(await force("one").retryAfter == 3600)
        let paused = await force("two")
        #expect((paused.status, paused.code, paused.retryAfter) == (503, "retryable_error", 5))
        #expect(paused.json["detail"]?.text?.contains("2026-11-21T09:00:05Z") == true)
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .seconds(5))
        broker.transport.enqueue(.json(200, BrokerHarness.token("b-two", refresh: "s-two")))
        #expect(await force("two").token == "b-two")
        let own = await force("one")
        #expect((own.status, own.retryAfter) == (503, 3595))
        #expect(own.json["detail"]?.text?.contains("2026-11-21T10:00:00Z") == true)
        broker.transport.enqueue(.json(429, "", fields: ["Retry-After": "60"]))
        #expect(await force("three").retryAfter == 60)
        #expect(await force("two").retryAfter == 60)
        #expect(broker.transport.seen.count == 3)
    }

    /// Answers that decide nothing, and when the provider is asked again.
    @Test(
        arguments: [
            (408, "", nil, 5), (425, "", nil, 5), (429, "", nil, 5), (425, "", "7", 7),
            (400, #"{"error": "temporarily_unavailable"}"#, nil, 5), (400, #"{"error": "server_error"}"#, "9", 9),
            (400, #"{"error": "slow_down"}"#, nil, 5), (403, #"{"error": "temporarily_unavailable"}"#, "1", 1),
        ] as [(Int, String, String?, Int)])
    func `is made of every refusal that will pass, which ends no session`(
        status: Int, body: String, retryAfter: String?, seconds: Int
    ) async throws {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        await broker.makeTenant("t1", Self.tenant)
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        let fields: Fields = retryAfter.map { ["Retry-After": .init($0)] } ?? [:]
        broker.transport.enqueue(.json(status, body, fields: fields))
        for _ in 0..<2 {
            let answer = await broker.get()
            #expect((answer.status, answer.code, answer.retryAfter) == (503, "retryable_error", seconds))
        }
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .seconds(seconds))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
    }
}
