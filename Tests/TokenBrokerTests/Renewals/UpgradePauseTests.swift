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

/// What callers, listeners and operators are told while an upgrade that has failed is not tried again.
@Suite struct `The pause after a failed upgrade` {
    private static let first =
        #"{"client_id": "c1", "client_secret": "s1", "client_unique_key": "u1", "scopes": ["a"]}"#

    /// The first caller, the second one, one at another replica and the event are told the same end of the pause.
    @Test(
        arguments: [
            (.json(429, "", fields: ["Retry-After": "90"]), 90), (.json(503, "", fields: ["Retry-After": "31"]), 31),
            (.json(429, "", fields: ["Retry-After": "29"]), 30), (.json(500, ""), 30), (.failure(.connectFailed), 30),
        ] as [(ScriptedTransport.Step, Int)])
    func `the rest of the pause after a failed upgrade is told in the body, in the header and by the event`(
        step: ScriptedTransport.Step, seconds: Int
    ) async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
        await one.makeTenant("t1", Self.first)
        await one.set("a1", refresh: "r1", members: #""level": "user", "client_unique_key": "u1", "#)
        await one.makeTenant("t1", #"{"client_id": "c2"}"#)
        for broker in [one, two] { broker.transport.always(step) }
        func told(_ broker: BrokerHarness) async -> Int? {
            let answer = await broker.get()
            #expect((answer.status, answer.code) == (503, "retryable_error"))
            #expect(answer.json["retry_after"]?.integer.map(Int.init) == answer.retryAfter)
            return answer.retryAfter
        }
        #expect(await told(one) == seconds)
        let end = one.time.now.advanced(by: .seconds(seconds))
        let event = try await one.events().last { $0.kind == .credentialsDegraded }
        #expect(event?.data["retry_at"]?.text == end.description)
        for broker in [two, one] { #expect(await told(broker) == seconds) }
        one.time.advance(by: .milliseconds(11_500))
        for broker in [two, one] { #expect(await told(broker) == seconds - 11) }
        let calls = one.transport.seen.count
        one.time.advance(by: .milliseconds(seconds * 1000 - 11_501))
        for broker in [two, one] { #expect(await told(broker) == 1) }
        #expect((one.transport.seen.count, two.transport.seen.count) == (calls, 0))
        one.time.advance(by: .milliseconds(1))
        two.transport.always(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await two.get().token == "a2")
    }

    @Test func `client credentials that a refused client keeps from being asked for say when they are`() async throws {
        let broker = try await BrokerHarness()
        let tenant = "{" + BrokerHarness.oidc + #""client_id": "c1", "client_secret": "s1"}"#
        await broker.makeTenant("t1", tenant)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        #expect(await broker.get().token == "client-1")
        await broker.makeTenant("t1", tenant.replacing("s1", with: "s2"))
        broker.transport.always(.json(401, #"{"error": "invalid_client"}"#))
        #expect(await broker.get("storage_key=other").retryAfter == 30)
        broker.time.advance(by: .seconds(12))
        let answer = await broker.get()
        #expect((answer.status, answer.code, answer.retryAfter) == (424, "illegal_configuration", 18))
        #expect(answer.json["retry_after"]?.integer == 18)
    }

    @Test func `a user whose upgrade has failed is degraded at every replica, as the event says`() async throws {
        let (one, two) = try await BrokerHarness.replicas(cacheValidity: .zero)
        await one.makeTenant("t1", Self.first)
        await one.set("a1", refresh: "r1", members: #""level": "user", "client_unique_key": "u1", "#)
        func states() async -> Set<String?> {
            var states: Set<String?> = []
            for broker in [one, two] {
                states.insert(await broker.status().json["state"]?.text)
                let list = await broker.call(.get, "/credentials/list", tenant: "t1").json["credentials"]?.array
                states.insert(list?.first?["state"]?.text)
            }
            return states
        }
        await one.makeTenant("t1", #"{"client_id": "c2"}"#)
        one.transport.always(.json(500, ""))
        #expect(await one.get().status == 503)
        #expect(try await one.events().last?.kind == .credentialsDegraded)
        #expect(await states() == ["degraded"])
        // Another configuration may be taken.
        await one.makeTenant("t1", #"{"client_id": "c3"}"#)
        #expect(await states() == ["active"])
        #expect(await one.get().status == 503)
        #expect(await states() == ["degraded"])
        one.time.advance(by: .seconds(30))
        one.transport.always(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        #expect(await one.get().token == "a2")
        #expect(await states() == ["active"])
    }
}
