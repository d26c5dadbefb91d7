import AuthTesting
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

/// What becomes of the clients that the broker registers, and what a hostile or careless resource cannot do.
@Suite struct `A client that was registered for a resource` {
    private static let tenant = #"{"provider": "mcp", "resource": "https://mcp.example/mcp"}"#
    private static let registration = "https://as.example/register/c-1"

    private func broker() async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", Self.tenant)
        Servers.publish(at: broker.transport)
        Servers.register(at: broker.transport)
        return broker
    }

    /// Registers a client whose registration can be managed at that address.
    private func register(_ broker: BrokerHarness, managedAt address: String = registration) {
        broker.transport.standing(
            at: Servers.registration,
            .json(
                201,
                #"""
                {"client_id": "c-1", "client_secret": "registered-secret", "redirect_uris": ["https://BROKER.example/login/callback"],
                 "registration_client_uri": "\#(address)", "registration_access_token": "token-1"}
                """#))
    }

    private func client(of login: (id: String, uri: String, startURI: String, state: String)) -> String? {
        BrokerHarness.parameters(of: login.uri)["client_id"]
    }

    private func requests(_ broker: BrokerHarness, _ method: Method) -> [ScriptedTransport.Seen] {
        broker.transport.standingSeen.filter { $0.url == Self.registration && $0.method == method }
    }

    @Test(arguments: [
        (204, "client_registration_ended"), (404, "client_registration_ended"), (403, "client_registration_kept"),
    ])
    func `ends with its tenant`(status: Int, event: String) async throws {
        let broker = try await broker()
        register(broker)
        _ = await broker.beginLogin()
        broker.transport.standing(at: Self.registration, .json(status, ""))
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        _ = await broker.logLine { $0.contains(event) }
        let ended = requests(broker, .delete)
        #expect(ended.map { $0.fields["Authorization"] } == ["Bearer token-1"])
        #expect(!broker.log.joined().contains("token-1") && !broker.log.joined().contains("registered-secret"))
    }

    @Test func `is not managed at another host than it was registered at`() async throws {
        let broker = try await broker()
        register(broker, managedAt: "https://internal.example/c-1")
        _ = await broker.beginLogin()
        broker.transport.standing(at: "https://internal.example/c-1", .json(204, ""))
        #expect(await broker.call(.delete, "/tenants/t1").status == 204)
        await broker.broker.core.finish(within: nil)
        #expect(Servers.requests(broker.transport, to: "https://internal.example/c-1") == 0)
    }

    @Test(arguments: [
        (200, #"{"client_id": "c-1", "registration_access_token": "token-2"}"#, "c-1", 0),
        // What can mean either is found out by a made-up code.
        (404, "", "c-1", 1), (410, "", "c-1", 1), (401, "", "c-1", 1),
        (500, "", "c-1", 1), (200, #"{"client_id": "other"}"#, "c-1", 1),
        (200, "no JSON", "c-1", 1),
    ])
    func `is read before a later login`(status: Int, text: String, client: String, codes: Int) async throws {
        let broker = try await broker()
        register(broker)
        _ = await broker.beginLogin()
        broker.transport.standing(at: Self.registration, .json(status, text))
        broker.transport.standing(at: Servers.registration, .json(201, #"{"client_id": "c-2"}"#))
        broker.transport.always(.json(400, #"{"error": "invalid_grant"}"#))
        // Within ten minutes, what is known does.
        #expect(self.client(of: await broker.beginLogin()) == "c-1")
        #expect(requests(broker, .get).isEmpty)
        broker.time.advance(by: .seconds(601))
        #expect(self.client(of: await broker.beginLogin()) == client)
        #expect(requests(broker, .get).map { $0.fields["Authorization"] } == ["Bearer token-1"])
        #expect(broker.transport.seen.count == codes)
        guard text.contains("token-2") else { return }
        broker.time.advance(by: .seconds(601))
        _ = await broker.beginLogin()
        #expect(requests(broker, .get).last?.fields["Authorization"] == "Bearer token-2")
    }

    @Test func `learns of further redirect URIs`() async throws {
        let broker = try await broker()
        register(broker)
        _ = await broker.beginLogin()
        broker.transport.standing(at: Self.registration, .json(200, #"{"client_id": "c-1"}"#))
        let further =
            #"{"provider": "mcp", "resource": "https://mcp.example/mcp", "allowed_redirect_uris": ["https://app.example/cb"]}"#
        await broker.makeTenant("t1", further)
        #expect(client(of: await broker.beginLogin()) == "c-1")
        #expect(requests(broker, .put).count == 1)
        _ = await broker.beginLogin()
        #expect(requests(broker, .put).count == 1)
        #expect(Servers.requests(broker.transport, to: Servers.registration) == 1)
    }

    @Test func `stays with further redirect URIs, which its server cannot learn of, and with documents`() async throws {
        let broker = try await broker()
        broker.transport.always(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(client(of: await broker.beginLogin()) == "c-1")
        let further =
            #"{"provider": "mcp", "resource": "https://mcp.example/mcp", "allowed_redirect_uris": ["https://app.example/cb"]}"#
        await broker.makeTenant("t1", further)
        Servers.publish(at: broker.transport, members: #", "client_id_metadata_document_supported": true"#)
        #expect(client(of: await broker.beginLogin()) == "c-1")
    }

    @Test(arguments: [(600, "c-2"), (601, "c-1")])
    func `is used until shortly before its secret ends`(life: Int64, client: String) async throws {
        let broker = try await broker()
        let end = broker.time.now.milliseconds / 1000 + life
        broker.transport.standing(
            at: Servers.registration,
            .json(201, #"{"client_id": "c-1", "client_secret": "s", "client_secret_expires_at": \#(end)}"#))
        _ = await broker.beginLogin()
        broker.transport.always(.json(400, #"{"error": "invalid_grant"}"#))
        broker.transport.standing(at: Servers.registration, .json(201, #"{"client_id": "c-2"}"#))
        #expect(self.client(of: await broker.beginLogin()) == client)
    }

    @Test func `shows its secret in the form where its server takes that`() async throws {
        let broker = try await broker()
        Servers.publish(
            at: broker.transport,
            members: #", "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"]"#)
        _ = await broker.beginLogin()
        let asked = broker.transport.standingSeen.first { $0.url == Servers.registration }
        #expect(asked?.form["token_endpoint_auth_method"] == "client_secret_post")
    }
}

@Suite struct `A search for the server of a resource` {
    private static func broker(_ resource: String = Servers.resource) async throws -> BrokerHarness {
        let broker = try await BrokerHarness()
        await broker.makeTenant("t1", #"{"provider": "mcp", "resource": "\#(resource)"}"#)
        Servers.publish(at: broker.transport)
        Servers.register(at: broker.transport)
        return broker
    }

    @Test(arguments: [("https://as.example", "https://as.example/"), ("https://as.example/", "https://as.example")])
    func `takes an issuer without a path with a slash and without`(named: String, published: String) async throws {
        let broker = try await Self.broker()
        broker.transport.always(.json(404, ""))
        Servers.publish(at: broker.transport, issuers: [named])
        Servers.publishServer(
            at: broker.transport, issuer: published,
            address: "https://as.example/.well-known/oauth-authorization-server")
        for _ in 1...2 {
            #expect(BrokerHarness.parameters(of: await broker.beginLogin().uri)["client_id"] == "c-1")
        }
        #expect(await broker.call(.get, "/tenants/t1").json["found"]?["issuer"]?.text == published)
    }

    @Test func `takes no issuer with a path that is spelled in another way`() async throws {
        let broker = try await Self.broker()
        broker.transport.always(.json(404, ""))
        Servers.publish(at: broker.transport, issuers: [Servers.issuer + "/"])
        let answer = await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}")
        #expect(answer.status == 424 && answer.code == "illegal_configuration", "\(answer.text)")
    }

    @Test(arguments: [
        ("https://mcp.example/mcp/", "https://mcp.example/.well-known/oauth-protected-resource/mcp"),
        ("https://mcp.example/mcp", "https://mcp.example/.well-known/oauth-protected-resource"),
        ("https://mcp.example/", "https://mcp.example/.well-known/oauth-protected-resource"),
        ("https://mcp.example/?x=1", "https://mcp.example/.well-known/oauth-protected-resource?x=1"),
        ("https://mcp.example/mcp?x=1", "https://mcp.example/.well-known/oauth-protected-resource/mcp?x=1"),
    ])
    func `looks for the metadata at each address that they may have`(resource: String, address: String) async throws {
        let broker = try await Self.broker(resource)
        broker.transport.standing(at: Servers.document, .json(404, ""))
        broker.transport.always(.json(404, ""))
        broker.transport.standing(
            at: address,
            .json(200, #"{"resource": "https://mcp.example", "authorization_servers": ["\#(Servers.issuer)"]}"#))
        #expect(await broker.beginLogin().uri.hasPrefix("https://as.example/authorize?"))
    }

    @Test func `goes on where the address in the challenge has no metadata`() async throws {
        let broker = try await Self.broker()
        Servers.publish(
            at: broker.transport, challenge: #"Bearer resource_metadata="https://mcp.example/gone", scope="s""#)
        broker.transport.standing(at: "https://mcp.example/gone", .json(404, ""))
        #expect(BrokerHarness.parameters(of: await broker.beginLogin().uri)["scope"] == "s")
    }

    @Test func `asks for no more scopes than an address has room for`() async throws {
        let broker = try await Self.broker()
        // Each has nine bytes, and a space before it.
        for (first, isAsked) in [(96, true), (97, false)] {
            let scopes = (0..<400).map { "scope-\(100 + $0)" }
            let first = String(repeating: "a", count: first)
            Servers.publish(
                at: broker.transport, challenge: #"Bearer scope="\#(([first] + scopes).joined(separator: " "))""#)
            let parameters = BrokerHarness.parameters(of: await broker.beginLogin().uri)
            #expect((parameters["scope"] != nil) == isAsked)
        }
    }

    @Test func `is not repeated for strangers while it fails`() async throws {
        let broker = try await Self.broker()
        broker.transport.standing(at: Servers.document, .json(500, ""))
        let name = try #require(TenantName("t1"))
        let stored = try await broker.broker.core.tenants.tenant(name)
        let tenant = try #require(stored)
        func attempt() async {
            await #expect(throws: BrokerError.self) {
                _ = try await broker.broker.core.discovery.completed(tenant, isForStranger: true)
            }
        }
        await attempt()
        let asked = Servers.requests(broker.transport, to: Servers.document)
        await attempt()
        #expect(Servers.requests(broker.transport, to: Servers.document) == asked)
        broker.time.advance(by: .seconds(10))
        await attempt()
        #expect(Servers.requests(broker.transport, to: Servers.document) == asked + 1)
    }
}
