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

/// A provider that answers no calls: it is spared, and its users are served soon after it answers again.
@Suite(.timeLimit(.minutes(1))) struct `A provider that answers no calls` {
    private static let tenant = "{" + BrokerHarness.oidc + #""client_id": "c1", "client_secret": "s1"}"#
    private static let lost = ScriptedTransport.Step.failure(.timedOut(.firstByte, requestSent: true))
    private static let unreachable = ScriptedTransport.Step.failure(.connectFailed)

    private static func make(
        users: [String] = ["user1", "user2"], store: (any RecordStore)? = nil, time: ManualTime = ManualTime()
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, time: time)
        await prepare(broker, users: users)
        return broker
    }

    private static func prepare(_ broker: BrokerHarness, users: [String] = ["user1", "user2"]) async {
        await broker.makeTenant("t1", tenant)
        for user in users { await broker.set("a-\(user)", refresh: "r-\(user)", lifetime: .zero, storageKey: user) }
    }

    /// Has the provider leave so many calls without an answer: exchanges of codes, each of which is one call.
    private static func leave(
        _ count: Int, _ broker: BrokerHarness, tenant: String = "t1", by step: ScriptedTransport.Step = lost
    ) async {
        for _ in 0..<count {
            let login = await broker.beginLogin(tenant: tenant)
            broker.transport.enqueue(step)
            _ = await broker.call(.get, "/login/callback?code=c-1&state=\(login.state)", key: nil)
        }
    }

    private static func get(_ broker: BrokerHarness, _ user: String) async -> BrokerHarness.Answer {
        await broker.get("storage_key=\(user)")
    }

    private static func count(_ broker: BrokerHarness) -> ProviderHealths.Count {
        broker.broker.core.providers.circuitCounts.first { $0.provider == "oidc" }?.count ?? ProviderHealths.Count()
    }

    private static func token(_ text: String = "new") -> ScriptedTransport.Step {
        .json(200, BrokerHarness.token(text, refresh: "r-\(text)"))
    }

    // MARK: Opening

    // H091
    @Test(arguments: [(19, false), (20, true), (21, true)])
    func `is called once in a second after twenty calls`(count: Int, isOpen: Bool) async throws {
        let broker = try await Self.make()
        await Self.leave(count, broker)
        let calls = broker.transport.seen.count
        broker.transport.always(Self.token())
        let answer = await Self.get(broker, "user1")
        #expect(answer.status == (isOpen ? 503 : 200))
        #expect(broker.transport.seen.count == calls + (isOpen ? 0 : 1))
        #expect(broker.log.filter { $0.contains("provider_circuit_opened") }.count == (isOpen ? 1 : 0))
    }

    @Test(
        arguments: [
            (.json(500, ""), "retryable_error", true), (.json(503, ""), "retryable_error", true),
            (.failure(.connectFailed), "network_error", true), (lost, "network_error", true),
            (.failure(.tlsFailed), "network_error", true), (.failure(.nameNotFound), "network_error", true),
            (.failure(.untrusted(.expired)), "provider_untrusted", false),
            (.failure(.forbiddenAddress), "illegal_configuration", false),
            (.json(400, #"{"error": "invalid_scope"}"#), "illegal_configuration", false),
        ] as [(ScriptedTransport.Step, String, Bool)])
    func `fails callers at once with what the last call met`(
        step: ScriptedTransport.Step, code: String, isOutage: Bool
    ) async throws {
        let broker = try await Self.make()
        await Self.leave(19, broker)
        broker.transport.always(step)
        let calls = broker.transport.seen.count
        // Asks for client credentials, which no call can spend.
        let answer = await Self.get(broker, "nobody")
        #expect(answer.code == code)
        #expect(broker.transport.seen.count == calls + 1)
        #expect((Self.count(broker).open == 1) == isOutage)
        guard isOutage else { return }
        #expect(answer.retryAfter == 1)
        let second = await Self.get(broker, "user1")
        #expect((second.status, second.code, second.retryAfter) == (503, code, 1))
        #expect(second.json["detail"]?.text?.contains("once in a second") == true)
        #expect(broker.transport.seen.count == calls + 1)
    }

    @Test(
        arguments: [
            .json(200, BrokerHarness.token("new")), .json(400, #"{"error": "invalid_scope"}"#), .json(404, ""),
            .json(429, "", fields: ["Retry-After": "0"]), .json(200, "<html>"),
        ] as [ScriptedTransport.Step])
    func `has answered where it refuses or asks for patience`(step: ScriptedTransport.Step) async throws {
        let broker = try await Self.make()
        await Self.leave(19, broker)
        broker.transport.enqueue(step)
        broker.transport.always(Self.token())
        _ = await Self.get(broker, "user1")
        await Self.leave(19, broker)
        #expect(Self.count(broker) == .init())
        await Self.leave(1, broker)
        #expect(Self.count(broker).open == 1)
    }

    @Test func `is not known by the codes that browsers without a key bring`() async throws {
        let broker = try await Self.make()
        await broker.makeClient(
            "app", of: "t1",
            #"{"redirect_uris": ["https://app.example/cb"], "storage_key": "default", "client_secret": "0123456789abcdef"}"#
        )
        for _ in 0..<25 {
            let login = await broker.beginAppLogin()
            broker.transport.enqueue(Self.lost)
            _ = await broker.bring("code=made-up", for: login)
        }
        #expect(broker.transport.seen.count == 25)
        #expect(Self.count(broker) == .init())
        broker.transport.always(Self.token())
        #expect(await Self.get(broker, "user1").status == 200)
    }

    @Test func `begins no renewal for a caller that is told so`() async throws {
        let broker = try await Self.make()
        await Self.leave(20, broker)
        // The event of the outage itself is written beside the calls.
        await broker.broker.core.renewer.outages.settle()
        let events = try await broker.events().count
        for user in ["user1", "user2", "user1"] { #expect(await Self.get(broker, user).status == 503) }
        await broker.broker.core.renewer.outages.settle()
        #expect(try await broker.events().count == events)
        #expect(broker.log.filter { $0.contains("renewal_failed") }.isEmpty)
        for user in ["user1", "user2"] { #expect(await broker.status(storageKey: user).isLoggedIn == true) }
        let spared = await broker.metric(#"token_broker_provider_calls_spared_total{provider="oidc"}"#)
        #expect(spared == 3)
    }

    @Test func `leaves callers the tokens that live`() async throws {
        let broker = try await Self.make()
        await broker.set("a-live", refresh: "r-live", lifetime: .seconds(40), storageKey: "live")
        await Self.leave(20, broker)
        let answer = await Self.get(broker, "live")
        #expect((answer.status, answer.token) == (200, "a-live"))
        #expect(answer.json["degraded"]?["code"] == .string("network_error"))
        #expect(answer.json["degraded"]?["retry_at"] == .string("2026-11-21T09:00:01Z"))
    }

    // MARK: Whose

    @Test(arguments: [
        tenant, tenant.replacing("c1", with: "c2"), tenant.replacing(#"/t""#, with: #"/u""#),
    ])
    func `is that for one tenant's client only`(other: String) async throws {
        let broker = try await Self.make()
        await broker.makeTenant("t2", other)
        let client = other.contains("c2") ? "c2" : "c1"
        await broker.set("b1", refresh: "r", lifetime: .zero, tenant: "t2", clientID: client)
        await Self.leave(20, broker)
        broker.transport.always(Self.token("b2"))
        #expect(await broker.get(tenant: "t2").token == "b2")
        // Its answer says nothing about the first tenant's calls.
        #expect(await Self.get(broker, "user1").status == 503)
    }

    @Test func `is called again when the tenant is put again`() async throws {
        let broker = try await Self.make()
        await Self.leave(20, broker)
        #expect(await Self.get(broker, "user1").status == 503)
        await broker.makeTenant("t1", Self.tenant)
        broker.transport.always(Self.token())
        #expect(await Self.get(broker, "user1").token == "new")
        #expect(broker.log.filter { $0.contains("provider_circuit_closed") }.count == 1)
    }

    // MARK: Trials

    @Test func `serves every user from its first answer on`() async throws {
        let users = (1...30).map { "user\($0)" }
        let broker = try await Self.make(users: users)
        await Self.leave(20, broker)
        broker.transport.always(.decide { Self.token("new-\($0.form["refresh_token"] ?? "")") })
        broker.time.advance(by: .milliseconds(999))
        #expect(await Self.get(broker, "user1").status == 503)
        broker.time.advance(by: .milliseconds(1))
        for user in users { #expect(await Self.get(broker, user).token == "new-r-\(user)") }
        #expect(Self.count(broker) == .init())
        #expect(broker.log.filter { $0.contains("provider_circuit_closed") }.count == 1)
    }

    @Test func `is tried again a second and a half after a trial at the latest`() async throws {
        let time = ManualTime()
        let broker = try await Self.make(time: time)
        await Self.leave(20, broker)
        broker.transport.always(Self.unreachable)
        let calls = broker.transport.seen.count
        for round in 0..<5 {
            time.advance(by: .milliseconds(round == 0 ? 1000 : 1500))
            // Its own second try comes half a second later, which is too soon.
            #expect(await Self.get(broker, "user1").code == "network_error")
            #expect(broker.transport.seen.count == calls + round + 1)
            #expect(await Self.get(broker, "user2").code == "network_error")
            #expect(broker.transport.seen.count == calls + round + 1)
        }
        #expect(await broker.metric(#"token_broker_provider_circuit{provider="oidc",state="open"}"#) == 1)
    }

    @Test func `is tried by one call at a time`() async throws {
        let broker = try await Self.make()
        await Self.leave(20, broker)
        broker.time.advance(by: .seconds(1))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, Self.token("one")), Self.token("two"))
        async let first = Self.get(broker, "user1")
        await gate.arrivals()
        #expect(Self.count(broker).halfOpen == 1)
        #expect(await broker.metric(#"token_broker_provider_circuit{provider="oidc",state="half_open"}"#) == 1)
        #expect(await Self.get(broker, "user2").status == 503)
        gate.open()
        #expect(await first.token == "one")
        #expect(await Self.get(broker, "user2").token == "two")
    }

    @Test func `is tried by another call where a trial hangs`() async throws {
        let broker = try await Self.make()
        await Self.leave(20, broker)
        broker.time.advance(by: .seconds(1))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, Self.lost), Self.token("two"), Self.token("one"))
        async let first = Self.get(broker, "user1")
        await gate.arrivals()
        broker.time.advance(by: .milliseconds(1500))
        #expect(await Self.get(broker, "user2").token == "two")
        gate.open()
        #expect(await first.token == "one")
    }

    /// By an answer that may have spent the refresh token, or by none.
    @Test(arguments: [ScriptedTransport.Step.json(503, ""), lost, unreachable])
    func `is tried by one call, whose caller waits for no other`(step: ScriptedTransport.Step) async throws {
        let time = ManualTime(skipsSleeps: false)
        let broker = try await Self.make(store: MemoryRecordStore { time.monotonic }, time: time)
        await Self.leave(20, broker)
        time.advance(by: .seconds(1))
        broker.transport.always(step)
        let calls = broker.transport.seen.count
        for round in 1...3 {
            // The trial of the same user, whose token may be spent by now, and one who is no trial.
            #expect(await Self.get(broker, "user1").status == 503)
            let other = await Self.get(broker, "user2")
            #expect((other.status, other.retryAfter) == (503, 1))
            #expect(await Self.get(broker, "user1").status == 503)
            #expect(broker.transport.seen.count == calls + round)
            #expect(time.slept.isEmpty)
            time.advance(by: .milliseconds(1500))
        }
    }

    // MARK: What is not held back

    @Test(
        arguments: [
            (lost, "new"), (.json(503, ""), "new"), (.failure(.connectionLost(requestSent: true)), "new"),
            (unreachable, nil),
        ] as [(ScriptedTransport.Step, String?)])
    func `is called at once with a refresh token that may be spent`(
        step: ScriptedTransport.Step, token: String?
    ) async throws {
        let time = ManualTime(skipsSleeps: false)
        let broker = try await Self.make(store: MemoryRecordStore { time.monotonic }, time: time)
        broker.transport.enqueue(step)
        async let answer = Self.get(broker, "user1")
        await time.sleepers(of: .milliseconds(500))
        await Self.leave(20, broker)
        #expect(Self.count(broker).open == 1)
        broker.transport.enqueue(Self.token())
        time.advance(by: .milliseconds(500))
        #expect(await answer.token == token)
        if token == nil { #expect(await answer.code == "network_error") }
    }

    @Test func `is called at once with the code of a login, whose answer ends the outage`() async throws {
        let broker = try await Self.make()
        await Self.leave(20, broker)
        await broker.logIn(storageKey: "user3")
        #expect(Self.count(broker) == .init())
        broker.transport.always(Self.token())
        #expect(await Self.get(broker, "user1").token == "new")
    }

    /// Without the circuit it would be called after the rest of the two seconds.
    @Test func `is called at once by renewals that wait when it answers again`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let broker = try await Self.make(store: MemoryRecordStore { time.monotonic }, time: time)
        broker.transport.enqueue(Self.unreachable, Self.unreachable, Self.unreachable)
        async let answer = Self.get(broker, "user1")
        await time.sleepers(of: .milliseconds(500))
        time.advance(by: .milliseconds(500))
        await time.sleepers(of: .seconds(1))
        time.advance(by: .seconds(1))
        await time.sleepers(of: .seconds(2))
        await Self.leave(20, broker)
        broker.transport.always(Self.token())
        await broker.logIn(storageKey: "user3")
        #expect(await answer.token == "new")
    }

    @Test func `is not called before the time that it has asked for when it answers again`() async throws {
        let time = ManualTime(skipsSleeps: false)
        let broker = try await Self.make(store: MemoryRecordStore { time.monotonic }, time: time)
        broker.transport.enqueue(.json(503, "", fields: ["Retry-After": "3"]))
        async let answer = Self.get(broker, "user1")
        await time.sleepers(of: .seconds(3))
        await Self.leave(20, broker)
        await broker.logIn(storageKey: "user3")
        let calls = broker.transport.seen.count
        broker.transport.always(Self.token())
        #expect(await Self.get(broker, "user2").token == "new")
        #expect(broker.transport.seen.count == calls + 1)
        await time.sleepers(of: .seconds(3))
        time.advance(by: .seconds(3))
        #expect(await answer.token == "new")
    }

    // MARK: Upgrades

    /// The failure of an upgrade is remembered for half a minute, unless the provider was not called.
    @Test func `is asked for an upgrade as soon as it answers again`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1"}"#)
        await broker.set("a1", refresh: "r1")
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        await Self.leave(20, broker)
        #expect(await broker.get().status == 503)
        broker.transport.always(Self.token())
        broker.time.advance(by: .seconds(1))
        #expect(await broker.get().token == "new")
    }
}
