import AuthTesting
import BrokerCore
import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Testing
import TokenBroker

/// The server that the users of a resource have logged in at, where the resource names several.
@Suite struct `The known server of a resource` {
    private static let second = "https://second.example"

    private static func issuer(_ broker: BrokerHarness) async -> String? {
        await broker.call(.get, "/tenants/t1").json["found"]?["issuer"]?.text
    }

    /// A broker with a login at the first of two servers, and the second with metadata of its own.
    private static func broker(_ members: String) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"provider": "mcp", "resource": "https://mcp.example/mcp"\#(members)}"#)
        Servers.publish(at: broker.transport, issuers: [Servers.issuer, second])
        Servers.publishServer(
            at: broker.transport, issuer: second, host: "second.example",
            address: "https://second.example/.well-known/oauth-authorization-server")
        Servers.register(at: broker.transport)
        Servers.register(at: broker.transport, address: "https://second.example/register", prefix: "other")
        await broker.logIn(token: BrokerHarness.token("a-1", refresh: "r-1", expiresIn: 60))
        return broker
    }

    @Test(
        arguments: [
            (404, "", ""), (404, "", #", "client_id": "own", "client_secret": "own-secret""#),
            (200, "<html>Back soon</html>", ""), (200, #"{"issuer": "https://elsewhere.example"}"#, ""),
        ])
    func `is stayed with while it has no metadata`(status: Int, text: String, members: String) async throws {
        let broker = try await Self.broker(members)
        broker.transport.standing(at: Servers.metadata, .json(status, text))
        broker.transport.always(.json(404, ""))
        for _ in 1...2 {
            #expect(await broker.beginLogin().uri.hasPrefix("https://as.example/authorize?"))
            #expect(await Self.issuer(broker) == Servers.issuer)
        }
        #expect(Servers.requests(broker.transport, to: "https://second.example/register") == 0)
        #expect(broker.log.contains { $0.contains("authorization_not_found") })
        broker.time.advance(by: .seconds(61))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a-2", refresh: "r-2")))
        #expect(await broker.token() == "a-2")
    }

    @Test func `is left when the resource names it no more`() async throws {
        let broker = try await Self.broker("")
        broker.transport.standing(at: Servers.metadata, .json(404, ""))
        broker.transport.always(.json(404, ""))
        Servers.publish(at: broker.transport, issuers: [Self.second])
        #expect(await broker.beginLogin().uri.hasPrefix("https://second.example/authorize?"))
        #expect(await Self.issuer(broker) == Self.second)
    }

    @Test func `is the first that has metadata where none is known yet`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"provider": "mcp", "resource": "https://mcp.example/mcp"}"#)
        Servers.publish(at: broker.transport, issuers: ["https://none.example", Servers.issuer])
        Servers.register(at: broker.transport)
        broker.transport.always(.json(404, ""))
        #expect(await broker.beginLogin().uri.hasPrefix("https://as.example/authorize?"))
    }

    @Test func `is searched for by the newest configuration, also while a search by an earlier one is under way`()
        async throws
    {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"provider": "mcp", "resource": "https://mcp.example/mcp"}"#)
        Servers.publish(at: broker.transport)
        Servers.register(at: broker.transport)
        broker.transport.always(.json(400, #"{"error": "invalid_grant"}"#))
        _ = await broker.beginLogin()
        let gate = Gate()
        broker.transport.standing(
            at: Servers.document,
            .after(
                gate,
                .json(
                    200, #"{"resource": "https://mcp.example/mcp", "authorization_servers": ["\#(Servers.issuer)"]}"#)))
        async let first = broker.beginLogin()
        await gate.arrivals()
        await broker.makeTenant(
            "t1", #"{"provider": "mcp", "resource": "https://mcp.example/mcp", "scopes": ["mine"]}"#)
        Servers.publish(at: broker.transport)
        #expect(BrokerHarness.parameters(of: await broker.beginLogin().uri)["scope"] == "mine")
        gate.open()
        #expect(await first.uri.hasPrefix("https://as.example/authorize?"))
    }

    @Test func `is searched for by strangers again once the tenant is corrected`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"provider": "mcp", "resource": "https://wrong.example/mcp"}"#)
        Servers.publish(at: broker.transport)
        Servers.register(at: broker.transport)
        broker.transport.always(.json(404, ""))
        let name = try #require(TenantName("t1"))
        let wrong = try #require(try await broker.broker.core.tenants.tenant(name))
        await #expect(throws: BrokerError.self) {
            _ = try await broker.broker.core.discovery.completed(wrong, isForStranger: true)
        }
        await broker.makeTenant("t1", #"{"provider": "mcp", "resource": "https://mcp.example/mcp"}"#)
        let right = try #require(try await broker.broker.core.tenants.tenant(name))
        let found = try await broker.broker.core.discovery.completed(right, isForStranger: true)
        #expect(found.configuration.found?.issuer == Servers.issuer)
    }

    @Test func `has an issuer that is compared octet by octet`() throws {
        // The same text by Unicode's rules.
        let spellings = ["https://as.example/\u{E9}", "https://as.example/e\u{301}"]
        let findings = spellings.map { FoundAuthorization(resource: "r", issuer: $0, scopes: .empty) }
        #expect(findings[0] != findings[1] && findings[0] == findings[0])
        var first = findings[0]
        first.keep(.metadataDocument("https://broker.example/oauth-client/t1"))
        #expect(findings[1].withClients(of: first).client == nil)
    }
}
