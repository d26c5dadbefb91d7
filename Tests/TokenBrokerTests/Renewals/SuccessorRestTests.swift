import BrokerCore
import BrokerTesting
import CredentialStore
import HTTPCodec
import HTTPSClient
import OAuth
import Testing
import TokenBroker

/// A provider that comes late to a call which was given up takes the refresh token in it for stolen, once the successor
/// has been used: RFC 9700, 4.14.2.
@Suite struct `A refresh token whose predecessor may still be on its way to the provider` {
    private static let row = RecordID(.credentials, TenantName("t1")!, key: "default")

    private static let tenant = #"{"client_id": "c1", "rotation": "always"}"#

    /// A tenant whose user's token has to be refreshed.
    private static func expired() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        await broker.set("a1", refresh: "r1", lifetime: .seconds(1))
        return broker
    }

    /// For how long a refresh waits that is asked for now.
    private static func wait(_ broker: BrokerHarness, _ query: String = "policy=local_force_refresh") async -> Duration
    {
        broker.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
        broker.time.forgetSleeps()
        #expect(await broker.get(query).token == "a3")
        return broker.time.slept.reduce(.zero, +)
    }

    @Test(
        arguments: [
            (.failure(.timedOut(.firstByte, requestSent: true)), 10),
            (.failure(.timedOut(.response, requestSent: true)), 10),
            (.failure(.connectionLost(requestSent: true)), 10),
            (.failure(.timedOut(.connect, requestSent: false)), 0),
            (.failure(.connectionLost(requestSent: false)), 0),
            (.failure(.malformedResponse), 0),
            (.json(503, ""), 0),
            (.json(200, "{}"), 0),
        ] as [(ScriptedTransport.Step, Int)])
    func `is not used for as long as a call may take after one was given up`(
        step: ScriptedTransport.Step, seconds: Int
    ) async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(step, .json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get().token == "a2")
        #expect(await Self.wait(broker) == .seconds(seconds))
        #expect(broker.transport.seen.map { $0.form["refresh_token"] } == ["r1", "r1", "r2"])
        // Its own successor came at once.
        #expect(await Self.wait(broker) == .zero)
    }

    @Test(arguments: [(9, 1), (10, 0), (11, 0)])
    func `is used when that time is over`(passed: Int, seconds: Int) async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(
            .failure(.connectionLost(requestSent: true)), .json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get().token == "a2")
        broker.time.advance(by: .seconds(passed))
        #expect(await Self.wait(broker) == .seconds(seconds))
    }

    @Test func `rests at every replica`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .seconds(5))
        await one.makeTenant("t1", Self.tenant)
        await one.set("a1", refresh: "r1", lifetime: .seconds(1))
        one.transport.enqueue(
            .failure(.connectionLost(requestSent: true)), .json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await one.get().token == "a2")
        #expect(await Self.wait(two) == .seconds(10))
    }

    @Test func `rests before an upgrade, too`() async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(
            .failure(.connectionLost(requestSent: true)), .json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get().token == "a2")
        await broker.makeTenant("t1", #"{"client_id": "c1", "rotation": "always", "scopes": ["more"]}"#)
        #expect(await Self.wait(broker, "") == .seconds(10))
    }

    @Test func `does not rest where it is the same one`() async throws {
        let broker = try await Self.expired()
        broker.transport.enqueue(
            .failure(.connectionLost(requestSent: true)), .json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(await Self.wait(broker) == .zero)
    }

    /// The lease that a dead replica left lasts for 3.3 s; its calls end with it.
    @Test(arguments: [(4, 10), (13, 10), (14, 0)])
    func `rests after a takeover as long as a call of the dead replica may last`(age: Int, seconds: Int) async throws {
        let (_, broker) = try await BrokerHarness.replicas(cacheValidity: .seconds(5))
        await broker.makeTenant("t1", #"{"client_id": "c1", "reuse_grace": 60}"#)
        await broker.set("a1", refresh: "r1", lifetime: .seconds(1))
        let version = try #require(try await broker.vault.read(Self.row)).version
        try await broker.vault.commit([
            .claim(Self.row, version: version, LeaseClaim(holder: "dead", for: .seconds(10) / 3, marksUse: true))
        ])
        broker.time.advance(by: .seconds(age))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.count == 1)
        #expect(await Self.wait(broker) == .seconds(seconds))
    }
}
