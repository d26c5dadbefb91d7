import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

/// `POST /credentials/restore` with `verify`, `dry_run` and `ended_until`.
@Suite struct `Restoring after a look` {
    private static let granted = ScriptedTransport.Step.json(200, BrokerHarness.token("a2", refresh: "r2"))
    private static let refused = ScriptedTransport.Step.json(400, #"{"error": "invalid_grant"}"#)
    private static let lost = ScriptedTransport.Step.failure(.connectionLost(requestSent: true))

    /// Users `u0`, `u1` and so on, whose sessions the provider has just ended, with the refresh tokens `r1-u0` and so on.
    private static func ended(
        _ count: Int = 1, store: (any RecordStore)? = nil, time: ManualTime = ManualTime()
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, time: time)
        await broker.makeTenant(
            "t1",
            "{" + BrokerHarness.oidc
                + #""client_id": "c1", "rotation": "always", "wave": {"users": 0}}"#
        )
        for index in 0..<count {
            let key = "u\(index)"
            await broker.set("a1", refresh: "r1-\(key)", lifetime: .zero, storageKey: key)
            broker.transport.enqueue(refused)
            #expect(await broker.get("storage_key=\(key)&level=user").status == 424)
            broker.time.advance(by: .seconds(10))
        }
        return broker
    }

    private static func restore(_ broker: BrokerHarness, _ members: String) async -> BrokerHarness.Answer {
        await broker.call(.post, "/credentials/restore", tenant: "t1", body: "{\(members)}")
    }

    /// Each outcome as `u0 restored` or `u1 conflict`.
    private static func outcomes(_ answer: BrokerHarness.Answer) -> [String] {
        let outcomes = answer.json["outcomes"]?.array ?? []
        return outcomes.map { outcome in
            let result = outcome["code"]?.text ?? outcome["outcome"]?.text ?? ""
            return (outcome["storage_key"]?.text ?? "") + " " + result
        }
    }

    /// The refresh tokens that the provider has seen since its first `count` calls.
    private static func presented(_ broker: BrokerHarness, after count: Int) -> [String?] {
        broker.transport.seen.dropFirst(count).map { $0.form["refresh_token"] }
    }

    // MARK: Verified

    @Test func `a session that the provider accepts is back with what it has granted`() async throws {
        let broker = try await Self.ended()
        broker.transport.enqueue(Self.granted)
        let answer = await Self.restore(broker, #""storage_key": "u0", "verify": true"#)
        #expect((answer.status, answer.json["storage_key"]?.text) == (200, "u0"))
        #expect(answer.fields["ETag"] != nil)
        #expect(Self.presented(broker, after: 1) == ["r1-u0"])
        // The provider is not asked again.
        #expect(await broker.get("storage_key=u0").token == "a2")
        #expect(try await broker.causes() == ["set", "revoked", "restored"])
        #expect(try await broker.count(.quarantine) == 0)
        broker.time.advance(by: .seconds(3600))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        #expect(await broker.get("storage_key=u0").token == "a3")
        #expect(Self.presented(broker, after: 2) == ["r2"])
    }

    @Test func `a session that the provider refuses stays as it was, and nothing is told of it`() async throws {
        let broker = try await Self.ended()
        let (before, events) = (try await broker.quarantined(storageKey: "u0"), try await broker.events().count)
        broker.time.advance(by: .seconds(60))
        broker.transport.enqueue(Self.refused, Self.refused)
        let one = await Self.restore(broker, #""storage_key": "u0", "verify": true"#)
        #expect((one.status, one.code) == (424, "invalid_token_request"))
        #expect(one.json["error_code"]?.text == "invalid_grant")
        let many = await Self.restore(broker, #""storage_keys": ["u0"], "verify": true"#)
        let outcome = try #require(many.json["outcomes"]?.array?.first)
        #expect(many.status == 200)
        #expect(outcome["outcome"]?.text == "failed")
        #expect(outcome["code"]?.text == "invalid_token_request")
        #expect(outcome["error_code"]?.text == "invalid_grant")
        #expect(try await broker.quarantined(storageKey: "u0") == before)
        #expect(try await broker.events().count == events)
        // The refresh token was not spent, and can be presented again.
        broker.transport.enqueue(Self.granted)
        #expect(await Self.restore(broker, #""storage_key": "u0", "verify": true"#).status == 200)
    }

    @Test(arguments: [lost, .failure(.connectFailed), .json(503, "")])
    func `a session stays aside while the provider gives no answer that decides`(step: ScriptedTransport.Step)
        async throws
    {
        let broker = try await Self.ended()
        let before = try await broker.quarantined(storageKey: "u0")
        broker.transport.always(step)
        let answer = await Self.restore(broker, #""storage_key": "u0", "verify": true"#)
        #expect(answer.status == 503, "\(answer.text)")
        #expect(try await broker.quarantined(storageKey: "u0") == before)
        #expect(await broker.status(storageKey: "u0").isLoggedIn == false)
        // Once it answers, the next call succeeds, whatever the first one may have spent.
        broker.time.advance(by: .seconds(60))
        broker.transport.always(Self.granted)
        let again = await Self.restore(broker, #""storage_key": "u0", "verify": true"#)
        #expect(again.status == 200, "\(again.text)")
    }

    @Test func `tokens of another user stay aside with their refresh token`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .zero, members: #""level": "user", "user_id": "42", "#)
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("a2", refresh: "r2", userID: 42)), Self.refused,
            .json(200, BrokerHarness.token("canary", refresh: "r3", userID: 43)))
        #expect(await broker.get().token == "a2")
        broker.time.advance(by: .seconds(3600))
        #expect(await broker.get("level=user").status == 424)
        let answer = await Self.restore(broker, #""verify": true"#)
        #expect((answer.status, answer.code) == (502, "token_response_error"))
        let aside = try #require(try await broker.quarantined())
        #expect(aside.credentials.refreshToken?.revealedText == "r3")
        #expect(aside.credentials.userID == "42")
        #expect(aside.session?.cause == .revoked)
        #expect(await broker.status().isLoggedIn == false)
    }

    @Test func `what has no refresh token cannot be verified, and can be restored`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1")
        _ = await broker.get("api_error_sub_status=11003")
        #expect(try await broker.count(.quarantine) == 1)
        let answer = await Self.restore(broker, #""verify": true"#)
        #expect((answer.status, answer.code) == (404, "not_found"))
        #expect(answer.text.contains("without verify"))
        #expect(broker.transport.seen.isEmpty)
        #expect(await broker.restore().status == 200)
    }

    // MARK: At the same time

    @Test func `of two replicas one presents the refresh token`() async throws {
        let broker = try await Self.ended(store: FaultyStore(MemoryRecordStore(), revalidateAfter: .seconds(5)))
        let other = try await BrokerHarness(store: broker.store, time: broker.time)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, Self.granted))
        async let first = Self.restore(broker, #""storage_key": "u0", "verify": true"#)
        await gate.arrivals()
        for members in [#""storage_key": "u0", "verify": true"#, #""storage_key": "u0""#] {
            let second = await Self.restore(other, members)
            #expect((second.status, second.code) == (503, "retryable_error"), "\(members)")
        }
        #expect(other.transport.seen.isEmpty)
        gate.open()
        #expect(await first.status == 200)
        #expect(await Self.restore(other, #""storage_key": "u0", "verify": true"#).status == 409)
    }

    @Test func `a logout meanwhile counts`() async throws {
        let broker = try await Self.ended()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, Self.granted))
        async let restored = Self.restore(broker, #""storage_key": "u0", "verify": true"#)
        await gate.arrivals()
        #expect(await broker.logOut(storageKey: "u0").status == 204)
        gate.open()
        #expect(await restored.status == 404)
        #expect(await broker.status(storageKey: "u0").isLoggedIn == false)
        #expect(try await broker.count(.quarantine) == 0)
    }

    @Test func `a login meanwhile stays`() async throws {
        let broker = try await Self.ended()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, Self.granted))
        async let restored = Self.restore(broker, #""storage_key": "u0", "verify": true"#)
        await gate.arrivals()
        await broker.set("b1", refresh: "s1", storageKey: "u0")
        gate.open()
        #expect(await restored.status == 409)
        #expect(await broker.get("storage_key=u0").token == "b1")
    }

    @Test func `a replica that dies meanwhile keeps others out until its lease ends`() async throws {
        let time = ManualTime()
        let store = FaultyStore(MemoryRecordStore { time.monotonic }, revalidateAfter: .seconds(5))
        let broker = try await Self.ended(store: store, time: time)
        let other = try await BrokerHarness(store: store, time: time)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, Self.lost))
        let first = Task { await Self.restore(broker, #""storage_key": "u0", "verify": true"#) }
        await gate.arrivals()
        #expect(await Self.restore(other, #""storage_key": "u0", "verify": true"#).status == 503)
        broker.time.advance(by: .seconds(600))
        other.transport.enqueue(Self.granted)
        let taken = await Self.restore(other, #""storage_key": "u0", "verify": true"#)
        #expect(taken.status == 200, "\(taken.text)")
        // The first one, which was only asleep, has lost its lease, and presents the spent token no more.
        gate.open()
        #expect(await first.value.status == 503)
        #expect(broker.transport.seen.count == 2)
        #expect(broker.transport.unforeseen == 0)
        #expect(await other.get("storage_key=u0").token == "a2")
    }

    @Test func `a session that was restored meanwhile with the spent token goes on with the new one`() async throws {
        let time = ManualTime()
        let store = FaultyStore(MemoryRecordStore { time.monotonic }, revalidateAfter: .seconds(5))
        let broker = try await Self.ended(store: store, time: time)
        let other = try await BrokerHarness(store: store, time: time)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, Self.granted))
        async let first = Self.restore(broker, #""storage_key": "u0", "verify": true"#)
        await gate.arrivals()
        time.advance(by: .seconds(600))
        let plain = await Self.restore(other, #""storage_key": "u0""#)
        #expect(plain.status == 200, "\(plain.text)")
        gate.open()
        #expect(await first.status == 200)
        time.advance(by: .seconds(10))
        #expect(await other.get("storage_key=u0").token == "a2")
        #expect(other.transport.seen.isEmpty)
    }

    @Test func `what is kept aside no longer when the provider answers is restored`() async throws {
        let broker = try await Self.ended()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, Self.granted))
        async let restored = Self.restore(broker, #""storage_key": "u0", "verify": true"#)
        await gate.arrivals()
        broker.time.advance(by: .seconds(8 * 86_400))
        _ = try await broker.vault.removeExpired(before: broker.time.now, limit: 500)
        #expect(try await broker.count(.quarantine) == 0)
        gate.open()
        #expect(await restored.status == 200)
        #expect(await broker.status(storageKey: "u0").isLoggedIn == true)
    }

    @Test func `a store that is away for a moment takes what was granted`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.ended(store: store)
        broker.transport.enqueue(Self.granted)
        store.disturb([.refuse, .loseAnswer]) { $0.writes(.credentials) }
        let answer = await Self.restore(broker, #""storage_key": "u0", "verify": true"#)
        #expect(answer.status == 200, "\(answer.text)")
        #expect(await broker.get("storage_key=u0").token == "a2")
        #expect(try await broker.count(.quarantine) == 0)
    }

    // MARK: Dry runs and times

    @Test func `a dry run tells the outcomes and changes nothing`() async throws {
        let broker = try await Self.ended(2)
        await broker.set("b1", storageKey: "u2")
        let (calls, events) = (broker.transport.seen.count, try await broker.events().count)
        let many = await Self.restore(broker, #""storage_keys": ["u0", "u1", "u2", "u3"], "dry_run": true"#)
        #expect(many.status == 200)
        #expect(Self.outcomes(many) == ["u0 restored", "u1 restored", "u2 conflict", "u3 not_found"])
        let one = await Self.restore(broker, #""storage_key": "u0", "dry_run": true"#)
        #expect((one.status, one.json["storage_key"]?.text, one.json["level"]?.text) == (200, "u0", "user"))
        #expect(one.fields["ETag"] == nil)
        #expect(await Self.restore(broker, #""storage_key": "u2", "dry_run": true"#).status == 409)
        #expect(await Self.restore(broker, #""storage_key": "u3", "dry_run": true"#).status == 404)
        #expect(try await broker.count(.quarantine) == 2)
        #expect(broker.transport.seen.count == calls)
        #expect(try await broker.events().count == events)
        #expect(await broker.status(storageKey: "u0").isLoggedIn == false)
    }

    @Test(arguments: [(-1, ["u0", "u1"]), (0, ["u0", "u1", "u2"]), (1, ["u0", "u1", "u2"])])
    func `those that ended until a time are restored`(milliseconds: Int, keys: [String]) async throws {
        let broker = try await Self.ended(4)
        let beginning = try #require(try await broker.quarantined(storageKey: "u0")?.session?.time)
        let until = try #require(try await broker.quarantined(storageKey: "u2")?.session?.time)
            .advanced(by: .milliseconds(milliseconds))
        let answer = await Self.restore(
            broker, #""ended_since": "\#(beginning)", "ended_until": "\#(until)", "dry_run": true"#)
        #expect(Self.outcomes(answer) == keys.map { "\($0) restored" }, "\(answer.text)")
    }

    @Test(arguments: [
        (#""dry_run": true, "verify": true"#, "/verify"), (#""ended_until": "2026-11-21T09:00:00Z""#, "/ended_until"),
        (#""storage_keys": ["u0"], "ended_until": "2026-11-21T09:00:00Z""#, "/ended_until"),
        (#""ended_since": "2026-11-21T09:00:00Z", "ended_until": "2026-11-21T08:59:59Z""#, "/ended_until"),
        (#""verify": "yes""#, "/verify"), (#""dry_run": 1"#, "/dry_run"),
    ])
    func `what says nothing is refused`(members: String, pointer: String) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        let answer = await Self.restore(broker, members)
        #expect((answer.status, answer.pointers) == (400, [pointer]))
    }

    // MARK: Lists

    @Test func `the list says why a session ended, and that it was the provider's answer`() async throws {
        let broker = try await Self.ended()
        let answer = await broker.call(.get, "/credentials/list?state=quarantined", tenant: "t1")
        let listed = try #require(answer.json["credentials"]?.array?.first)
        #expect(listed["cause"]?.text == "revoked")
        #expect(listed["last_error"]?["error_code"]?.text == "invalid_grant")
        #expect(listed["last_error"]?["code"]?.text == "unexpected_error")
        #expect(listed["last_error"]?["time"]?.text == listed["ended"]?.text)
    }
}
