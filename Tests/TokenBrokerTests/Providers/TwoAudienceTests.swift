import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing
import TokenBroker

/// One consent, two audiences: the refresh token of a login under two tenants, each of which has it refreshed for its own scopes.
@Suite struct `A refresh token that serves two audiences` {
    private static let client = #""provider": "microsoft", "client_id": "c1", "client_secret": "s1""#
    private static let scopes = ["graph": "User.Read offline_access", "t1": "api://orders/read offline_access"]

    /// The tenant `graph` with a user who has logged in, and the tenant `t1` with the same refresh token, `r1`.
    private static func broker() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        for (name, scopes) in scopes {
            let list = scopes.split(separator: " ").map { "\"\($0)\"" }.joined(separator: ", ")
            await broker.makeTenant(name, #"{\#(client), "scopes": [\#(list)], "repeat_scope": true}"#)
        }
        await broker.logIn(tenant: "graph", token: BrokerHarness.token("graph-1", refresh: "r1", scope: "User.Read"))
        let line = #"{"storage_key": "default", "refresh_token": "r1"}"#
        #expect(await broker.importing(line).outcomes == ["1 default imported"])
        return broker
    }

    /// Has a tenant's token refreshed, and compares what is sent.
    private static func refresh(
        _ broker: BrokerHarness, _ tenant: String, _ old: String, to new: String,
        at place: SourceLocation = #_sourceLocation
    ) async {
        let token = "\(tenant)-\(new)"
        broker.transport.enqueue(.json(200, BrokerHarness.token(token, refresh: new)))
        #expect(await broker.get("policy=local_force_refresh", tenant: tenant).token == token, sourceLocation: place)
        let sent = broker.transport.seen.last?.form
        #expect(sent?["refresh_token"] == old && sent?["scope"] == scopes[tenant], sourceLocation: place)
    }

    // Q47
    @Test func `is refreshed under each tenant for that tenant's scopes`() async throws {
        let broker = try await Self.broker()
        // The first caller has the second tenant's token granted.
        broker.transport.enqueue(.json(200, BrokerHarness.token("orders-1", refresh: "r1-orders", scope: "read")))
        #expect(await broker.token() == "orders-1")
        #expect(broker.transport.seen.last?.form["scope"] == Self.scopes["t1"])
        #expect(await broker.token(tenant: "graph") == "graph-1")
        // The earlier token stays valid when it has a successor.
        await Self.refresh(broker, "graph", "r1", to: "r2-graph")
        await Self.refresh(broker, "t1", "r1-orders", to: "r2-orders")
        await Self.refresh(broker, "graph", "r2-graph", to: "r3-graph")
    }

    @Test(arguments: [("graph", "t1"), ("t1", "graph")])
    func `stays with one tenant when the other logs its user out`(ended: String, other: String) async throws {
        let broker = try await Self.broker()
        let calls = broker.transport.seen.count
        let answer = await broker.call(.delete, "/credentials?revoke=true", tenant: ended)
        // The provider has no address that would end the grant.
        #expect(answer.fields["Token-Revocation"] == "unsupported")
        #expect(broker.transport.seen.count == calls)
        #expect(await broker.status(tenant: ended).json["logged_in"] == .bool(false))
        await Self.refresh(broker, other, "r1", to: "r2")
    }

    @Test(arguments: [("graph", "t1"), ("t1", "graph")])
    func `stays with one tenant when the provider ends the other's`(ended: String, other: String) async throws {
        let broker = try await Self.broker()
        broker.transport.enqueue(.json(400, #"{"error": "invalid_grant"}"#))
        _ = await broker.get("policy=local_force_refresh", tenant: ended)
        #expect(await broker.status(tenant: ended).json["state"]?.text != "active")
        // Without an access token the next level is asked for after that.
        #expect(broker.transport.seen.contains { $0.form["refresh_token"] == "r1" })
        await Self.refresh(broker, other, "r1", to: "r2")
    }
}
