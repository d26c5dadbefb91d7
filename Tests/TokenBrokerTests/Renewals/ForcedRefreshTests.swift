import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

@Suite struct `A forced refresh` {
    @Test(arguments: [3600, 30, -1])
    func `without a refresh token is missing_token_container, however old the token`(left: Int) async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
        await broker.set("a1", lifetime: .seconds(left))
        let answer = await broker.get("policy=local_force_refresh")
        #expect((answer.status, answer.code) == (404, "missing_token_container"))
        #expect(answer.json["detail"]?.text?.contains("refresh token") == true)
        // What is stored is left as it is.
        #expect(await broker.get("policy=local").token == "a1")
        #expect(broker.transport.seen.isEmpty)
        #expect(try await broker.causes() == ["set"])
    }

    @Test func `of a token that an API refused ends no session that has no refresh token`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
        let tag = await broker.set("a1")
        for fields: Fields in [[:], ["If-None-Match": tag]] {
            let answer = await broker.get("policy=local_force_refresh&api_error_sub_status=11003", fields: fields)
            #expect((answer.status, answer.code) == (404, "missing_token_container"))
        }
        #expect(await broker.get("policy=local").tag == tag)
        #expect(try await broker.causes() == ["set"])
        #expect(try await broker.quarantined() == nil)
        #expect(broker.transport.seen.isEmpty)
        // Who forces nothing is told of the refusal in another way: by the next level.
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get("api_error_sub_status=11003").level == "client")
    }

    @Test func `of the client's token obtains another one`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("client-1")), .json(200, BrokerHarness.token("client-2")))
        #expect(await broker.get().token == "client-1")
        #expect(await broker.get("policy=local_force_refresh").token == "client-2")
    }

    @Test func `has a UUID for its refresh_id in every event and in the log`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1")
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")), .json(200, BrokerHarness.token("a3")))
        #expect(await broker.get("policy=local_force_refresh").token == "a2")
        #expect(await broker.get("policy=local_force_refresh").token == "a3")
        let identifiers = try await broker.events().compactMap { $0.data["refresh_id"]?.text }
        #expect(identifiers.count == 12)
        #expect(Set(identifiers).count == 2)
        // RFC 9562 §5.4.
        for text in identifiers {
            #expect(text.wholeMatch(of: /[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}/) != nil)
        }
        #expect(identifiers.allSatisfy { text in broker.log.contains { $0.contains(text) } })
    }
}

/// The client's own token, once the tenant's registration is another one.
@Suite struct `The token of a client that is no longer configured` {
    /// A client's token, and then the tenant anew.
    private static func broker(then tenant: String) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"client_id": "c1", "client_secret": "s1"}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().token == "client-1")
        await broker.makeTenant("t1", tenant)
        return broker
    }

    @Test(arguments: [#"{"client_id": "c2"}"#, #"{"client_id": "c1", "client_secret": null}"#])
    func `is not given out where the secret went: the next level is`(tenant: String) async throws {
        for query in ["", "policy=create_if_needed"] {
            let broker = try await Self.broker(then: tenant)
            let answer = await broker.get(query)
            #expect((answer.status, answer.level) == (200, "basic"), "\(query)")
            #expect(answer.json["client_id"]?.text == (tenant.contains("c2") ? "c2" : "c1"))
            #expect(await broker.get("level=client").code == "level_not_available")
            #expect(broker.transport.seen.count == 1)
        }
    }

    @Test func `gives way to that of another client that has a secret`() async throws {
        let broker = try await Self.broker(then: #"{"client_id": "c2", "client_secret": "s2"}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-2")))
        #expect(await broker.get().token == "client-2")
    }

    @Test func `is what a local read finds, as it is stored`() async throws {
        let broker = try await Self.broker(then: #"{"client_id": "c2"}"#)
        #expect(await broker.get("policy=local").token == "client-1")
        #expect(await broker.get().level == "basic")
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }
}
