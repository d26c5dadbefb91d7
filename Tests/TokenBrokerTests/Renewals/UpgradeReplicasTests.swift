import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `Upgrades by several replicas` {
    private static let first =
        #"{"client_id": "c1", "client_secret": "s1", "client_unique_key": "u1", "scopes": ["a"]}"#

    /// Two replicas that believe for an hour what they have read, with a user of `first`.
    private static func replicas(
        _ tenant: String = first, members: String = #""level": "user", "client_unique_key": "u1", "#
    ) async throws -> (BrokerHarness, BrokerHarness) {
        let time = ManualTime()
        let records = MemoryRecordStore { time.monotonic }
        let stores = (0..<2).map { _ in FaultyStore(records, revalidateAfter: .seconds(3600)) }
        return try await replicas(stores, time, tenant, members: members)
    }

    private static func replicas(
        _ stores: [any RecordStore], _ time: ManualTime, _ tenant: String = first,
        members: String = #""level": "user", "client_unique_key": "u1", "#
    ) async throws -> (BrokerHarness, BrokerHarness) {
        let one = try await BrokerHarness(store: stores[0], time: time)
        let two = try await BrokerHarness(store: stores[1], time: time)
        await one.makeTenant("t1", tenant)
        await one.set("a1", refresh: "r1", lifetime: .seconds(7200), members: members)
        #expect(await two.get().token == "a1")
        return (one, two)
    }

    @Test func `a replica with an outdated tenant does not carry the session back`() async throws {
        let (one, two) = try await Self.replicas()
        await one.makeTenant("t1", #"{"client_id": "c2"}"#)
        one.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2", expiresIn: 7200)))
        #expect(await one.get().token == "a2")
        let answer = await two.get("policy=local_force_refresh")
        #expect((answer.status, answer.token, answer.json["client_id"]) == (200, "a2", .string("c2")))
        #expect(two.transport.seen.isEmpty)
        #expect(await one.get().token == "a2")
    }

    @Test func `a replica with an outdated secret ends no session`() async throws {
        let (one, two) = try await Self.replicas()
        await one.makeTenant("t1", Self.first.replacing(#""s1""#, with: #""s2""#))
        two.transport.enqueue(
            .json(401, #"{"error": "invalid_client"}"#), .json(200, BrokerHarness.token("a2", refresh: "r2")))
        let answer = await two.get("policy=local_force_refresh")
        #expect((answer.status, answer.level, answer.token) == (200, "user", "a2"))
        #expect(two.transport.seen.map(\.form["client_secret"]) == ["s1", "s2"])
        #expect(two.transport.seen.map(\.form["grant_type"]) == ["refresh_token", "update_client"])
    }

    @Test func `a replica with an outdated tenant puts nothing away`() async throws {
        let right = "{" + BrokerHarness.oidc + #""client_id": "c1"}"#
        let (one, two) = try await Self.replicas(right, members: #""level": "user", "#)
        await one.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c2"}"#)
        one.time.advance(by: .seconds(3600))
        #expect(await two.get().token == "a1")
        // Now both know of the mistake, and only one of its correction.
        await one.makeTenant("t1", right)
        one.time.advance(by: .seconds(3599))
        two.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        let answer = await two.get("min_ttl=60")
        #expect((answer.level, answer.token) == ("user", "a2"))
        #expect(try await one.quarantined() == nil)
    }

    @Test func `two replicas that upgrade at once agree on what was stored first`() async throws {
        let time = ManualTime()
        let records = MemoryRecordStore { time.monotonic }
        let store = BrokerFaultyStore(records, revalidateAfter: .seconds(3600))
        let (one, two) = try await Self.replicas([FaultyStore(records, revalidateAfter: .seconds(3600)), store], time)
        await one.makeTenant("t1", #"{"client_id": "c2"}"#)
        one.time.advance(by: .seconds(3600))
        let gate = Gate()
        two.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("late", refresh: "late-r"))))
        async let late = two.get()
        await gate.arrivals()
        // Its lease is extended no more, so that the other replica can take it over.
        store.disturb(Array(repeating: .refuse, count: 10_000)) { if case .claim = $0 { true } else { false } }
        one.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        let first = await one.get()
        #expect(first.token == "a2")
        gate.open()
        let answer = await late
        #expect((answer.token, answer.tag) == ("a2", first.tag))
    }
}
