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

/// The calls that an import makes to have a refresh token exchanged.
@Suite struct `Presenting imported refresh tokens` {
    private static let line = #"{"storage_key": "alice", "refresh_token": "r1"}"#
    private static let granted = ScriptedTransport.Step.json(200, BrokerHarness.token("a2", refresh: "r2"))
    private static let lost = ScriptedTransport.Step.failure(.connectionLost(requestSent: true))

    private static func broker(
        store: (any RecordStore)? = nil, time: ManualTime = ManualTime(), _ members: String = ""
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(store: store, time: time)
        await broker.makeTenant(
            "t1", "{" + BrokerHarness.oidc + #""client_id": "c1", "rotation": "always"\#(members)}"#)
        return broker
    }

    private static func importing(_ broker: BrokerHarness) async -> LinesAnswer {
        await broker.importing(line, query: "verify=true")
    }

    /// The refresh tokens that the provider has seen.
    private static func presented(_ broker: BrokerHarness) -> [String?] {
        broker.transport.seen.map { $0.form["refresh_token"] }
    }

    private static func stored(_ broker: BrokerHarness) async throws -> HeldCredentials? {
        let tenant = try #require(TenantName("t1"))
        return try await broker.vault.read(RecordID(.credentials, tenant, key: "alice"))
            .flatMap { CredentialRecord(decoding: $0.content.revealedBytes) }?.granted
    }

    @Test(arguments: [
        lost, .failure(.timedOut(.firstByte, requestSent: true)), .failure(.connectFailed),
        .failure(.malformedResponse), .json(500, ""), .json(502, "<html>"), .json(200, "{}"),
        .json(503, "", fields: ["Retry-After": "3"]),
    ])
    func `a call without an answer that decides is repeated with the same token`(first: ScriptedTransport.Step)
        async throws
    {
        let broker = try await Self.broker()
        broker.transport.enqueue(first, first, Self.granted)
        #expect(await Self.importing(broker).outcomes == ["1 alice imported"])
        #expect(Self.presented(broker) == ["r1", "r1", "r1"])
        #expect(await broker.get("storage_key=alice").token == "a2")
    }

    @Test func `a provider that loses every answer is called within its grace, and the line says what may be`()
        async throws
    {
        let broker = try await Self.broker()
        broker.transport.always(Self.lost)
        let answer = await Self.importing(broker)
        #expect(answer.outcomes == ["1 alice network_error"])
        #expect(answer.values[0]["detail"]?.text?.contains("may have exchanged the refresh token") == true)
        #expect(Self.presented(broker).count == 6)
        let sum = broker.time.slept.reduce(.zero, +)
        #expect(sum > .seconds(8) && sum <= .seconds(10), "\(broker.time.slept)")
        #expect(await broker.status(storageKey: "alice").isLoggedIn == false)
    }

    @Test func `a provider that is not reached is not said to have exchanged anything`() async throws {
        let broker = try await Self.broker()
        broker.transport.always(.failure(.connectFailed))
        let answer = await Self.importing(broker)
        #expect(answer.outcomes[0].hasPrefix("1 alice "))
        #expect(answer.values[0]["outcome"]?.text == "failed")
        #expect(answer.values[0]["detail"]?.text?.contains("may have exchanged") == false)
    }

    @Test(arguments: [(2, ["1 alice imported"]), (31, ["1 alice retryable_error"])])
    func `a line waits once for a provider that limits its rate`(seconds: Int, outcomes: [String]) async throws {
        let broker = try await Self.broker()
        let limited = ScriptedTransport.Step.json(429, "", fields: ["Retry-After": "\(seconds)"])
        broker.transport.enqueue(limited, Self.granted)
        #expect(await Self.importing(broker).outcomes == outcomes)
        #expect(Self.presented(broker).count == (seconds < 30 ? 2 : 1))
    }

    @Test func `a second limit ends the line`() async throws {
        let broker = try await Self.broker()
        let limited = ScriptedTransport.Step.json(429, "", fields: ["Retry-After": "2"])
        broker.transport.enqueue(limited, limited)
        #expect(await Self.importing(broker).outcomes == ["1 alice retryable_error"])
        #expect((Self.presented(broker).count, broker.transport.unforeseen) == (2, 0))
    }

    @Test(arguments: [(lost, true), (.json(500, ""), false)])
    func `the new token waits for a call that the provider may still process`(
        first: ScriptedTransport.Step, isHeldBack: Bool
    ) async throws {
        let broker = try await Self.broker()
        broker.transport.enqueue(first, Self.granted)
        #expect(await Self.importing(broker).outcomes == ["1 alice imported"])
        let held = try #require(try await Self.stored(broker))
        #expect((held.refreshableFrom.map { $0 > broker.time.now } ?? false) == isHeldBack)
    }

    @Test func `a client that the provider does not accept is asked about once for all lines`() async throws {
        let broker = try await Self.broker()
        broker.transport.always(.json(401, #"{"error": "invalid_client"}"#))
        #expect(await Self.importing(broker).outcomes == ["1 alice illegal_configuration"])
        let count = broker.transport.seen.count
        #expect(await Self.importing(broker).outcomes == ["1 alice illegal_configuration"])
        #expect(broker.transport.seen.count == count)
    }

    @Test func `a token that may be spent is presented again while the broker drains`() async throws {
        let broker = try await Self.broker()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, Self.lost), Self.granted)
        async let answer = Self.importing(broker)
        await gate.arrivals()
        broker.broker.core.beginDraining()
        gate.open()
        #expect(await answer.outcomes == ["1 alice imported"])
        #expect(Self.presented(broker) == ["r1", "r1"])
    }
}
