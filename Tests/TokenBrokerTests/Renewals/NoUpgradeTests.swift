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

/// Only TIDAL's provider has the grant `update_client`.
@Suite struct `Credentials of a provider without an upgrade` {
    // A refresh shows the secret that is configured now, and names neither scopes nor a unique key.
    @Test(
        arguments: [
            (#""client_id": "c1", "scopes": ["a", "b"]"#, "scopes", ["scopes"]),
            (#""client_id": "c1", "client_secret": "s1", "scopes": ["a"]"#, "client_secret", nil),
            (
                #""client_id": "c1", "client_unique_key": "u1", "scopes": ["a"]"#, "client_unique_key",
                ["client_unique_key"]
            ),
        ] as [(String, String, [String]?)])
    func `the same client's credentials serve as stored, are told to differ, and are refreshed when due`(
        members: String, difference: String, afterwards: [String]?
    ) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c1", "scopes": ["a"]}"#)
        await broker.set("a1", refresh: "r1", lifetime: .seconds(100))
        await broker.makeTenant("t1", "{" + BrokerHarness.oidc + members + "}")
        #expect(await broker.get().token == "a1")
        #expect(await broker.status().differences == [difference])
        #expect(broker.transport.seen.isEmpty)
        broker.time.advance(by: .seconds(41))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        let answer = await broker.get()
        #expect((answer.token, answer.level) == ("a2", "user"))
        #expect(broker.transport.seen.map(\.form["grant_type"]) == ["refresh_token"])
        #expect(await broker.status().differences == afterwards)
        #expect(answer.json["requested_scopes"] == .array([.string("a")]))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `credentials that differ in scopes are refreshed once, however short the new token lives`() async throws
    {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c1", "scopes": ["a"]}"#)
        await broker.set("a1", refresh: "r1", lifetime: .seconds(10))
        await broker.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c1", "scopes": ["a", "b"]}"#)
        broker.transport.always(.json(200, BrokerHarness.token("a2", expiresIn: 30)))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.count == 1)
        #expect(await broker.get("api_error_sub_status=11003").token == "a2")
        #expect(broker.transport.seen.count == 2)
    }

    @Test(arguments: [false, true])
    func `another client's credentials serve until they expire and are then kept where they are`(
        hasSecret: Bool
    ) async throws {
        let secret = hasSecret ? #", "client_secret": "s2""# : ""
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c1"}"#)
        await broker.set("a1", refresh: "r1", lifetime: .seconds(100))
        await broker.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c2"\#(secret)}"#)
        broker.time.advance(by: .seconds(40))
        #expect(await broker.get().token == "a1")
        #expect(await broker.get("policy=local_force_refresh").token == "a1")
        #expect(await broker.get("min_ttl=3600").token == "a1")
        #expect(broker.transport.seen.isEmpty)
        broker.time.advance(by: .milliseconds(1))
        // The client's credentials would take their place.
        let answer = await broker.get()
        #expect((answer.status, answer.level) == (hasSecret ? 424 : 200, hasSecret ? nil : "basic"))
        #expect(broker.transport.seen.isEmpty)
        #expect(try await broker.causes() == ["set"])
        #expect(try await broker.quarantined() == nil)

        // The configuration was the mistake: nothing is lost.
        await broker.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c1"}"#)
        broker.transport.always(.json(200, BrokerHarness.token("a2")))
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.last?.form["refresh_token"] == "r1")
    }

    @Test func `another client's credentials that the API refuses are kept where they are`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c1"}"#)
        await broker.set("a1", refresh: "r1")
        await broker.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c2"}"#)
        #expect(await broker.get("api_error_sub_status=6001").level == "basic")
        #expect(broker.transport.seen.isEmpty)
        #expect(try await broker.quarantined() == nil)
        await broker.makeTenant("t1", "{" + BrokerHarness.oidc + #""client_id": "c1"}"#)
        #expect(await broker.get().token == "a1")
    }
}
