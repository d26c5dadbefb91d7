import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@testable import BrokerCore

/// Profiles that an earlier version has stored, with an address of a request of the provider's own that cannot be filled.
@Suite(.timeLimit(.minutes(1))) struct `An address that cannot be filled` {
    private static let own = #"{"endpoint": "https://r.acme.example/r/{nope}", "parameters": {"t": "{refresh_token}"}}"#

    /// A broker whose store has the profile, with a tenant of it.
    private static func broker(_ member: String, _ more: String = "") async throws -> BrokerHarness {
        let document = try JSONValue(
            parsing: Array(
                #"""
                {"name": "acme", "documentation": "https://acme.example", "as_of": "2026-11-29", "required": ["client_id"],
                 "notes": [], "\#(member)": \#(own),
                 "endpoints": {"authorization": "https://acme.example/a", "token": "https://acme.example/t"}}
                """#.utf8))
        let broker = try await BrokerHarness()
        let record = OpenRecord(
            id: OperatorProfile.id("acme"), version: 1,
            content: SecretBytes(OperatorProfile.content(document, isRemoved: false)))
        try await broker.vault.commit([.insert(record)])
        await broker.makeTenant("t1", #"{"provider": "acme", "client_id": "c1", "client_secret": "s1"\#(more)}"#)
        await broker.logIn()
        return broker
    }

    @Test func `is a fault of the configuration, and the request goes nowhere else`() async throws {
        let broker = try await Self.broker("refresh")
        let before = broker.transport.seen.count
        broker.time.advance(by: .seconds(3600))
        let answer = await broker.get("level=user")
        #expect((answer.status, answer.code) == (424, "illegal_configuration"), "\(answer.text)")
        #expect(broker.transport.seen.count == before)
        // The session is there once the configuration can be used.
        let repaired = await broker.call(
            .patch, "/tenants/t1", body: #"{"refresh": {"endpoint": "https://r.acme.example/r/1"}}"#)
        #expect(repaired.status == 200, "\(repaired.text)")
        broker.time.advance(by: .seconds(31))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        #expect(await broker.get("level=user").token == "access-2")
        #expect(broker.transport.seen.last?.url == "https://r.acme.example/r/1")
        #expect(broker.transport.seen.last?.form["t"] == "refresh-1")
    }

    @Test func `keeps the token of a login from being exchanged elsewhere`() async throws {
        let broker = try await Self.broker("exchange_for_long_lived")
        let before = broker.transport.seen.count
        _ = await broker.get()
        #expect(broker.transport.seen.count == before)
    }

    @Test func `does not matter where the tenant has a token endpoint of its own`() async throws {
        let broker = try await Self.broker(
            "refresh",
            #", "endpoints": {"authorization": "https://id.example/a", "token": "https://id.example/t"}"#)
        broker.time.advance(by: .seconds(3600))
        broker.transport.enqueue(.json(200, BrokerHarness.token("access-2", refresh: "refresh-2")))
        #expect(await broker.get().token == "access-2")
        #expect(broker.transport.seen.last?.url == "https://id.example/t")
        #expect(broker.transport.seen.last?.form["t"] == "refresh-1")
    }
}
