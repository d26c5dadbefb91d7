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

/// A token that lives, and a renewal that fails or takes long.
@Suite struct `A token that lives` {
    private static func make(
        lifetime: Duration = .seconds(40), tenant: String = #"{"client_id": "c1"}"#, skipsSleeps: Bool = true,
        store: any RecordStore = MemoryRecordStore()
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, time: ManualTime(skipsSleeps: skipsSleeps))
        await broker.makeTenant("t1", tenant)
        await broker.set("a1", refresh: "r1", lifetime: lifetime)
        return broker
    }

    private static func degraded(_ answer: BrokerHarness.Answer) -> JSONValue? { answer.json["degraded"] }

    // MARK: A provider that fails

    @Test(
        arguments: [
            (.json(503, ""), "retryable_error"), (.json(429, "", fields: ["Retry-After": "7"]), "retryable_error"),
            (.failure(.connectFailed), "network_error"),
            (.failure(.timedOut(.firstByte, requestSent: true)), "network_error"),
            (.failure(.untrusted(.expired)), "provider_untrusted"), (.json(403, ""), "unexpected_error"),
            (.json(400, #"{"error": "invalid_scope"}"#), "unexpected_error"),
            (.json(200, "<html>"), "token_response_error"), (.json(302, ""), "token_response_error"),
            (.failure(.forbiddenAddress), "illegal_configuration"),
        ] as [(ScriptedTransport.Step, String)])
    func `is given although it cannot be renewed, and the answer says so`(
        step: ScriptedTransport.Step, code: String
    ) async throws {
        let broker = try await Self.make()
        let tag = await broker.get("policy=local").tag
        broker.transport.always(step)
        let answer = await broker.get("level=user")
        #expect((answer.status, answer.token, answer.tag) == (200, "a1", tag))
        let left = ManualTime.beginning.advanced(by: .seconds(40)).milliseconds - broker.time.now.milliseconds
        #expect(answer.json["expires_in"] == .integer(left / 1000))
        let degraded = try #require(Self.degraded(answer)?.object)
        #expect(Set(degraded.keys) == ["since", "code", "retry_at"])
        #expect(degraded["code"] == .string(WireText(code)))
        let since = try #require(Timestamp(rfc3339: degraded["since"]?.text ?? ""))
        let retry = try #require(Timestamp(rfc3339: degraded["retry_at"]?.text ?? ""))
        #expect(since <= broker.time.now && retry > broker.time.now)
        let metrics = await broker.call(.get, "/metrics").text
        #expect(metrics.contains(#"token_broker_token_reads_total{provider="tidal",outcome="degraded"} 1"#))
    }

    @Test func `is given without another call until it is time to try again, and then the new one is`() async throws {
        let broker = try await Self.make()
        broker.transport.always(.json(403, ""))
        let first = await broker.get()
        for _ in 0..<5 { #expect(Self.degraded(await broker.get()) == Self.degraded(first)) }
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .milliseconds(4999))
        #expect(await broker.get().token == "a1")
        #expect(broker.transport.seen.count == 1)
        broker.time.advance(by: .milliseconds(1))
        let second = await broker.get()
        #expect(broker.transport.seen.count == 2)
        // The trouble has lasted since the first failure.
        #expect(Self.degraded(second)?["since"] == Self.degraded(first)?["since"])
        #expect(Self.degraded(second)?["retry_at"] != Self.degraded(first)?["retry_at"])
        broker.time.advance(by: .seconds(5))
        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        let renewed = await broker.get()
        #expect((renewed.token, Self.degraded(renewed)) == ("a2", nil))
    }

    // H082
    @Test func `is given until it dies and not an instant longer`() async throws {
        let broker = try await Self.make()
        broker.transport.always(.json(403, ""))
        broker.time.advance(by: .milliseconds(39_999))
        #expect(await broker.get().token == "a1")
        broker.time.advance(by: .milliseconds(1))
        let answer = await broker.get()
        #expect((answer.status, answer.code) == (502, "unexpected_error"))
    }

    @Test func `is given to a caller that wants more time than there is`() async throws {
        let broker = try await Self.make(lifetime: .seconds(3600))
        broker.transport.always(.json(403, ""))
        let answer = await broker.get("min_ttl=7200")
        #expect((answer.token, Self.degraded(answer)?["code"]) == ("a1", .string("unexpected_error")))
        // For others it is as good as ever.
        #expect(Self.degraded(await broker.get()) == nil)
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `is not given to a caller that has refused it or demands another`() async throws {
        let broker = try await Self.make(lifetime: .seconds(3600))
        let tag = await broker.get().tag
        broker.transport.always(.json(403, ""))
        #expect(await broker.get("policy=local_force_refresh").code == "unexpected_error")
        #expect(await broker.get("api_error_sub_status=11003").code == "unexpected_error")
        let refused = await broker.get("api_error_sub_status=11003", fields: ["If-None-Match": tag])
        #expect(refused.code == "unexpected_error")
        #expect(broker.transport.seen.count == 3)
        // The others' token is as good as it was, and its version too: a failure is no new set.
        #expect(await broker.get().tag == tag)
    }

    @Test func `is not given where the session has ended`() async throws {
        let broker = try await Self.make()
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(await broker.get().level == "basic")
    }

    @Test func `is not given where the configuration has changed and the session cannot be carried over`() async throws
    {
        let broker = try await Self.make(lifetime: .seconds(3600))
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        broker.transport.always(.json(403, ""))
        #expect(await broker.get().code == "retryable_error")
    }

    @Test func `is no answer where the store does not take the renewal`() async throws {
        let store = BrokerFaultyStore()
        let broker = try await Self.make(store: store)
        store.isAway = true
        #expect(await broker.get().code == "storage_unavailable")
        #expect(broker.transport.seen.isEmpty)
    }

    @Test func `that is the client's is given as well`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1", expiresIn: 100)), .json(403, ""))
        #expect(await broker.get().token == "client-1")
        broker.time.advance(by: .seconds(60))
        let answer = await broker.get()
        #expect((answer.level, answer.token) == ("client", "client-1"))
        #expect(Self.degraded(answer)?["code"] == .string("illegal_configuration"))
    }

    @Test func `is renewed at once when the tenant is put again`() async throws {
        let broker = try await Self.make()
        broker.transport.enqueue(.json(429, "", fields: ["Retry-After": "3600"]), .json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a1")
        await broker.makeTenant()
        #expect(await broker.get().token == "a2")
    }

    // MARK: A provider that takes its time

    /// How long a caller waits, from its `Prefer: wait`.
    @Test(
        arguments: [
            (nil, .seconds(2)), (60, .seconds(2)), (2, .seconds(2)), (1, .seconds(1)), (0, .zero),
        ] as [(Int?, Duration)])
    func `is given to a caller whose patience has ended, and the renewal goes on`(
        preference: Int?, patience: Duration
    ) async throws {
        let broker = try await Self.make(skipsSleeps: false)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        let fields: Fields = preference.map { ["Prefer": "wait=\($0)"] } ?? [:]
        let answers = AnswerBox()
        let reader = Task { answers.put(await broker.get(fields: fields)) }
        await gate.arrivals()
        if patience > .zero {
            await broker.time.sleepers(of: .exactly(patience))
            broker.time.advance(by: patience - .milliseconds(1))
            #expect(answers.value == nil)
            broker.time.advance(by: .milliseconds(1))
        }
        await reader.value
        let answer = try #require(answers.value)
        #expect((answer.status, answer.token) == (200, "a1"))
        #expect(Self.degraded(answer)?["code"] == .string("retryable_error"))
        // For the next second no other caller waits.
        #expect(await broker.get().token == "a1")
        gate.open()
        await broker.broker.core.renewer.finish()
        let renewed = await broker.get()
        #expect((renewed.token, Self.degraded(renewed)) == ("a2", nil))
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `that is over is waited for as long as it takes`() async throws {
        let broker = try await Self.make(lifetime: .zero, skipsSleeps: false)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        async let answer = broker.get()
        await gate.arrivals()
        broker.time.advance(by: .seconds(5))
        gate.open()
        #expect(await answer.token == "a2")
    }

    @Test func `is waited for by a caller that has refused it`() async throws {
        let broker = try await Self.make(lifetime: .seconds(3600), skipsSleeps: false)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        async let answer = broker.get("api_error_sub_status=6001")
        await gate.arrivals()
        broker.time.advance(by: .seconds(5))
        gate.open()
        #expect(await answer.token == "a2")
    }

    @Test(arguments: [0, 7])
    func `is given after the patience that the operator has set`(seconds: Int) async throws {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false)) {
            $0.core.renewalPatience = .seconds(seconds)
        }
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .seconds(40))
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        async let answer = broker.get()
        await gate.arrivals()
        if seconds > 0 {
            await broker.time.sleepers(of: .seconds(7))
            broker.time.advance(by: .seconds(seconds))
        }
        #expect(await answer.token == "a1")
        gate.open()
        await broker.broker.core.renewer.finish()
        #expect(await broker.get().token == "a2")
    }
}
