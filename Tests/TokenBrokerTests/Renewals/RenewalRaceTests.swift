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

@Suite struct `Changes during a renewal` {
    private static let withSecret = #"{"client_id": "c1", "client_secret": "s1"}"#

    // T68
    @Test func `a logout during a refresh holds`() async throws {
        let broker = try await BrokerHarness.expired()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        async let refreshed = broker.get()
        await gate.arrivals()
        #expect(await broker.call(.delete, "/credentials", tenant: "t1").status == 204)
        gate.open()
        let answer = await refreshed
        #expect((answer.status, answer.level) == (200, "basic"))
        #expect(await broker.get().level == "basic")
    }

    @Test func `a login during a refresh holds`() async throws {
        let broker = try await BrokerHarness.expired()
        let gate = Gate()
        let login = await broker.beginLogin()
        broker.transport.enqueue(
            .after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))),
            .json(200, BrokerHarness.token("login-1", refresh: "login-r")))
        async let refreshed = broker.get()
        await gate.arrivals()
        #expect(await broker.call(.get, "/login/callback?code=c&state=\(login.state)", key: nil).status == 200)
        gate.open()
        #expect(await refreshed.token == "login-1")
        #expect(await broker.get().token == "login-1")
    }

    // T53
    @Test func `credentials set during a refresh hold`() async throws {
        let broker = try await BrokerHarness.expired()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        async let refreshed = broker.get()
        await gate.arrivals()
        let tag = await broker.set("set-1")
        gate.open()
        let answer = await refreshed
        #expect((answer.token, answer.tag) == ("set-1", tag))
        #expect(await broker.get().tag == tag)
    }

    @Test(arguments: [(400, #"{"error": "invalid_grant"}"#), (200, #"{"access_token": "late", "expires_in": 3600}"#)])
    func `what a sibling has refreshed meanwhile is neither ended nor overwritten`(
        status: Int, body: String
    ) async throws {
        let store = MemoryRecordStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        let sibling = try await BrokerHarness(store: store)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(status, body)))
        async let slow = broker.get()
        await gate.arrivals()
        sibling.transport.enqueue(.json(200, BrokerHarness.token("a2", refresh: "r2")))
        let winner = await sibling.get()
        #expect(winner.token == "a2")
        gate.open()
        let answer = await slow
        #expect((answer.status, answer.token, answer.tag) == (200, "a2", winner.tag))
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `a tenant that is deleted during a refresh leaves nothing behind`() async throws {
        let broker = try await BrokerHarness.expired()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        async let refreshed = broker.get()
        await gate.arrivals()
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        gate.open()
        let answer = await refreshed
        #expect((answer.status, answer.code) == (404, "not_found"))
        #expect(await broker.get().status == 404)
        await broker.makeTenant()
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test func `a tenant that is deleted and made again during a refresh is the new one`() async throws {
        let broker = try await BrokerHarness.expired()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        async let refreshed = broker.get()
        await gate.arrivals()
        _ = await broker.call(.delete, "/tenants/t1")
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        let tag = await broker.set("new-1", clientID: "c2")
        gate.open()
        let answer = await refreshed
        #expect((answer.status, answer.token, answer.tag) == (200, "new-1", tag))
        #expect(await broker.get("policy=local").tag == tag)
    }

    @Test func `client credentials for a tenant that was deleted and made again are not the new one's`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("old-client"))))
        async let obtained = broker.get()
        await gate.arrivals()
        _ = await broker.call(.delete, "/tenants/t1")
        await broker.makeTenant("t1", #"{"client_id": "c2"}"#)
        gate.open()
        let answer = await obtained
        #expect((answer.status, answer.level) == (200, "basic"))
        #expect(answer.json["client_id"] == .string("c2"))
        #expect(await broker.get("policy=local").code == "missing_token_container")
    }

    @Test func `client credentials of a configuration that was replaced meanwhile are asked for anew`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.withSecret)
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("old-client"))))
        broker.transport.always(.json(200, BrokerHarness.token("new-client")))
        async let obtained = broker.get()
        await gate.arrivals()
        await broker.makeTenant("t1", #"{"client_id": "c2", "client_secret": "s2"}"#)
        gate.open()
        #expect(await obtained.token == "new-client")
        #expect(broker.transport.seen.map(\.form["client_id"]) == ["c1", "c2"])
    }

    // T38
    @Test func `a caller who leaves does not stop the renewal`() async throws {
        let broker = try await BrokerHarness.expired()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        let caller = Task { await broker.get() }
        await gate.arrivals()
        caller.cancel()
        #expect(await caller.value.status == 503)
        gate.open()
        #expect(await broker.get().token == "a2")
        #expect(broker.transport.seen.count == 1)
    }

    @Test func `finishing waits for the renewal that is in flight`() async throws {
        let broker = try await BrokerHarness.expired()
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2", refresh: "r2"))))
        let caller = Task { await broker.get() }
        await gate.arrivals()
        caller.cancel()
        _ = await caller.value
        async let finished: Void = broker.broker.core.finish()
        gate.open()
        await finished
        let other = try await BrokerHarness(store: broker.store, time: broker.time)
        #expect(await other.get("policy=local").token == "a2")
    }
}
