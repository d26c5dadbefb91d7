import AuthTesting
import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Synchronization
import Testing
import TokenBroker

/// A resource and its authorization servers, as a script, for tests of tenants that name one.
struct Servers {
    static let resource = "https://mcp.example/mcp"
    static let issuer = "https://as.example/one"
    static let document = "https://mcp.example/.well-known/oauth-protected-resource/mcp"
    static let metadata = "https://as.example/.well-known/oauth-authorization-server/one"
    static let registration = "https://as.example/register"

    /// What the resource and its server publish.
    static func publish(
        at transport: ScriptedTransport, challenge: String? = nil, issuers: [String] = [issuer],
        named: String = resource, members: String = ""
    ) {
        var fields: Fields = [:]
        if let challenge { fields.append("WWW-Authenticate", challenge) }
        transport.standing(at: resource, .json(401, "{}", fields: fields))
        let servers = issuers.map { "\"\($0)\"" }.joined(separator: ", ")
        transport.standing(
            at: document,
            .json(
                200,
                #"{"resource": "\#(named)", "authorization_servers": [\#(servers)], "scopes_supported": ["read", "write"]}"#
            ))
        publishServer(at: transport, members: members)
    }

    static func publishServer(
        at transport: ScriptedTransport, issuer: String = issuer, host: String = "as.example",
        address: String = metadata, members: String = ""
    ) {
        transport.standing(
            at: address,
            .json(
                200,
                #"""
                {"issuer": "\#(issuer)", "authorization_endpoint": "https://\#(host)/authorize",
                 "token_endpoint": "https://\#(host)/token", "registration_endpoint": "https://\#(host)/register",
                 "code_challenge_methods_supported": ["S256"]\#(members)}
                """#))
    }

    /// Registers a client for each request: c-1, c-2 and so on.
    static func register(at transport: ScriptedTransport, address: String = registration, prefix: String = "c") {
        let count = Mutex(0)
        transport.standing(
            at: address,
            .decide { _ in
                let number = count.withLock { count in
                    count += 1
                    return count
                }
                return .json(
                    201,
                    #"{"client_id": "\#(prefix)-\#(number)", "client_secret": "registered-secret-\#(number)"}"#)
            })
    }

    static func requests(_ transport: ScriptedTransport, to address: String) -> Int {
        transport.standingSeen.count { $0.url == address }
    }
}

@Suite struct `A tenant that names a resource` {
    private static let tenant = #"{"provider": "mcp", "resource": "https://mcp.example/mcp"}"#

    private func broker(
        publicBaseURL: String = "https://broker.example", _ tenant: String = tenant
    ) async throws -> BrokerHarness {
        let broker = try await BrokerHarness(publicBaseURL: publicBaseURL)
        await broker.makeTenant("t1", tenant)
        return broker
    }

    // Q33
    @Test func `logs in at the server of the resource with a client that is registered there, once`() async throws {
        let broker = try await broker()
        Servers.publish(at: broker.transport)
        Servers.register(at: broker.transport)
        let login = await broker.beginLogin()
        let parameters = BrokerHarness.parameters(of: login.uri)
        #expect(login.uri.hasPrefix("https://as.example/authorize?"))
        #expect(parameters["client_id"] == "c-1")
        #expect(parameters["scope"] == "read write")
        #expect(parameters["resource"] == Servers.resource)
        let asked = try #require(broker.transport.standingSeen.first { $0.url == Servers.registration })
        #expect(asked.method == .post && asked.fields["Content-Type"] == "application/json")
        #expect(asked.form["client_name"] == "t1" && asked.form["token_endpoint_auth_method"] == "client_secret_basic")

        broker.transport.enqueue(.json(200, BrokerHarness.token("a-1", refresh: "r-1", expiresIn: 60)))
        #expect(await broker.callback("code=c&state=\(login.state)&iss=\(Servers.issuer)").status == 200)
        #expect(broker.transport.seen.last?.url == "https://as.example/token")
        // The refresh, a minute later, uses the same client without any discovery.
        let searches = Servers.requests(broker.transport, to: Servers.document)
        broker.time.advance(by: .seconds(61))
        broker.transport.enqueue(.json(200, BrokerHarness.token("a-2", refresh: "r-2")))
        let read = await broker.get()
        #expect(read.json["token"]?.text == "a-2" && read.json["client_id"]?.text == "c-1")
        #expect(broker.transport.seen.allSatisfy { $0.form["resource"] == Servers.resource })
        #expect(Servers.requests(broker.transport, to: Servers.document) == searches)

        let second = await broker.beginLogin(body: #"{"storage_key": "other"}"#)
        #expect(BrokerHarness.parameters(of: second.uri)["client_id"] == "c-1")
        #expect(Servers.requests(broker.transport, to: Servers.registration) == 1)
        #expect(Servers.requests(broker.transport, to: Servers.document) == searches + 1)
        #expect(!broker.log.joined().contains("registered-secret"))
    }

    @Test func `steps up to scopes that the resource has not named before, and keeps the old ones`() async throws {
        let broker = try await broker()
        Servers.publish(at: broker.transport)
        Servers.register(at: broker.transport)
        let first = await broker.beginLogin()
        broker.transport.enqueue(.json(200, BrokerHarness.token("a-1", refresh: "r-1", scope: "read")))
        #expect(await broker.callback("code=c&state=\(first.state)").status == 200)
        let second = await broker.beginLogin(body: #"{"scopes": ["admin"], "upgrade": true}"#)
        #expect(BrokerHarness.parameters(of: second.uri)["scope"] == "admin read")
        #expect(await broker.token() == "a-1")
        broker.transport.enqueue(.json(200, BrokerHarness.token("a-2", refresh: "r-2", scope: "admin read")))
        #expect(await broker.callback("code=c&state=\(second.state)").status == 200)
        #expect(await broker.token() == "a-2")
    }

    @Test func `uses its client document where the server takes such documents`() async throws {
        let broker = try await broker()
        Servers.publish(
            at: broker.transport, members: #", "client_id_metadata_document_supported": true"#)
        let login = await broker.beginLogin()
        #expect(
            BrokerHarness.parameters(of: login.uri)["client_id"] == "https://broker.example/oauth-client/t1")
        let document = await broker.call(.get, "/oauth-client/t1", key: nil)
        #expect(document.status == 200)
        #expect(document.json["client_id"]?.text == "https://broker.example/oauth-client/t1")
        #expect(document.json["redirect_uris"]?.array?.compactMap(\.text) == ["https://broker.example/login/callback"])
        #expect(document.json["token_endpoint_auth_method"]?.text == "none")
        broker.transport.enqueue(.json(200, BrokerHarness.token("a-1", refresh: "r-1")))
        #expect(await broker.callback("code=c&state=\(login.state)").status == 200)
        #expect(broker.transport.seen.last?.form["client_id"] == "https://broker.example/oauth-client/t1")
        let shown = await broker.call(.get, "/tenants/t1")
        #expect(shown.json["found"]?["client"]?.text == "metadata_document")
        #expect(shown.json["client_id"] == nil)
    }

    @Test func `uses its own client before any other`() async throws {
        let broker = try await broker(
            #"{"provider": "mcp", "resource": "https://mcp.example/mcp", "client_id": "own", "client_secret": "own-secret"}"#
        )
        Servers.publish(
            at: broker.transport, members: #", "client_id_metadata_document_supported": true"#)
        let login = await broker.beginLogin()
        #expect(BrokerHarness.parameters(of: login.uri)["client_id"] == "own")
        #expect(Servers.requests(broker.transport, to: Servers.registration) == 0)
        #expect(await broker.call(.get, "/oauth-client/t1", key: nil).status == 404)
        // Another login, now with what the first one has found.
        #expect(BrokerHarness.parameters(of: await broker.beginLogin().uri)["client_id"] == "own")
        #expect(await broker.call(.get, "/tenants/t1").json["client_secret_set"]?.bool == true)
    }

    @Test func `asks for the scopes of the challenge, and for its own before these`() async throws {
        let broker = try await broker()
        Servers.publish(
            at: broker.transport,
            challenge: #"Bearer resource_metadata="https://mcp.example/elsewhere", scope="challenged""#)
        broker.transport.standing(
            at: "https://mcp.example/elsewhere",
            .json(
                200,
                #"{"resource": "https://mcp.example", "authorization_servers": ["\#(Servers.issuer)"], "scopes_supported": ["s"]}"#
            ))
        Servers.register(at: broker.transport)
        #expect(BrokerHarness.parameters(of: await broker.beginLogin().uri)["scope"] == "challenged")
        #expect(Servers.requests(broker.transport, to: Servers.document) == 0)
        await broker.makeTenant(
            "t1", #"{"provider": "mcp", "resource": "https://mcp.example/mcp", "scopes": ["mine"]}"#)
        #expect(BrokerHarness.parameters(of: await broker.beginLogin().uri)["scope"] == "mine")
    }

    @Test func `registers anew at another issuer, and shows it nothing of the first`() async throws {
        let broker = try await broker()
        Servers.publish(at: broker.transport)
        Servers.register(at: broker.transport)
        _ = await broker.beginLogin()
        let second = "https://second.example"
        Servers.publish(at: broker.transport, issuers: [second])
        Servers.publishServer(
            at: broker.transport, issuer: second, host: "second.example",
            address: "https://second.example/.well-known/oauth-authorization-server")
        Servers.register(at: broker.transport, address: "https://second.example/register", prefix: "other")
        let login = await broker.beginLogin()
        #expect(BrokerHarness.parameters(of: login.uri)["client_id"] == "other-1")
        #expect(
            broker.transport.standingSeen.filter { $0.url.contains("second.example") }
                .allSatisfy { !$0.form.values.contains { $0.contains("c-1") || $0.contains("secret-1") } })
        // Back at the first one, its client is there still.
        Servers.publish(at: broker.transport)
        broker.transport.always(.json(400, #"{"error": "invalid_grant"}"#))
        #expect(BrokerHarness.parameters(of: await broker.beginLogin().uri)["client_id"] == "c-1")
        #expect(Servers.requests(broker.transport, to: Servers.registration) == 1)
    }

    @Test func `stays with its server while the resource names it among others`() async throws {
        let broker = try await broker()
        Servers.publish(at: broker.transport)
        Servers.register(at: broker.transport)
        _ = await broker.beginLogin()
        Servers.publish(at: broker.transport, issuers: ["https://second.example", Servers.issuer])
        #expect(await broker.beginLogin().uri.hasPrefix("https://as.example/authorize?"))
    }

    @Test func `registers a client anew that the server has forgotten`() async throws {
        let broker = try await broker()
        Servers.publish(at: broker.transport)
        Servers.register(at: broker.transport)
        _ = await broker.beginLogin()
        broker.transport.always(.json(401, #"{"error": "invalid_client"}"#))
        #expect(BrokerHarness.parameters(of: await broker.beginLogin().uri)["client_id"] == "c-1")
        broker.time.advance(by: .seconds(601))
        #expect(BrokerHarness.parameters(of: await broker.beginLogin().uri)["client_id"] == "c-2")
    }

    @Test func `goes on with what is known while the resource does not answer`() async throws {
        let broker = try await broker()
        Servers.publish(at: broker.transport)
        Servers.register(at: broker.transport)
        _ = await broker.beginLogin()
        for address in [Servers.resource, Servers.document, Servers.metadata] {
            broker.transport.standing(at: address, .failure(.connectFailed))
        }
        broker.time.advance(by: .seconds(7200))
        let again = await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}")
        // The metadata are kept, and used on.
        #expect(again.status == 201, "\(again.text)")
    }

    @Test(arguments: [
        (
            "of another host",
            #"{"resource": "https://evil.example/mcp", "authorization_servers": ["https://as.example/one"]}"#
        ),
        ("without a server", #"{"resource": "https://mcp.example/mcp", "authorization_servers": []}"#),
        ("no JSON", "<html>"),
    ])
    func `takes no metadata that are wrong`(what: String, document: String) async throws {
        let broker = try await broker()
        Servers.publish(at: broker.transport)
        Servers.register(at: broker.transport)
        broker.transport.standing(at: Servers.document, .json(200, document))
        broker.transport.standing(
            at: "https://mcp.example/.well-known/oauth-protected-resource", .json(404, "{}"))
        let answer = await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}")
        #expect(answer.status == 424 && answer.code == "illegal_configuration", "\(answer.text)")
        #expect(Servers.requests(broker.transport, to: Servers.registration) == 0)
        #expect(await broker.call(.get, "/tenants/t1").json["found"] == nil)
    }

    @Test(arguments: [(400, 424), (403, 424), (429, 503), (500, 503), (201, 424)])
    func `says why no client can be registered`(status: Int, expected: Int) async throws {
        let broker = try await broker()
        Servers.publish(at: broker.transport)
        broker.transport.standing(at: Servers.registration, .json(status, #"{"error": "invalid_redirect_uri"}"#))
        let answer = await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}")
        #expect(answer.status == expected, "\(answer.text)")
        if expected == 424, status != 201 { #expect(answer.json["error_code"]?.text == "invalid_redirect_uri") }
    }

    @Test func `keeps what was found over a PUT of the same resource, and aside for another one`() async throws {
        let broker = try await broker()
        Servers.publish(at: broker.transport)
        Servers.register(at: broker.transport)
        _ = await broker.beginLogin()
        let put = await broker.call(
            .put, "/tenants/t1",
            body: #"{"provider": "mcp", "resource": "https://mcp.example/mcp", "display_name": "Docs"}"#)
        #expect(put.json["found"]?["client_id"]?.text == "c-1" && put.json["dropped"]?.array?.isEmpty == true)
        let patched = await broker.call(
            .patch, "/tenants/t1", body: #"{"display_name": null}"#,
            fields: ["Content-Type": "application/merge-patch+json"])
        #expect(patched.json["found"]?["client_id"]?.text == "c-1", "\(patched.text)")
        let other = await broker.call(
            .put, "/tenants/t1", body: #"{"provider": "mcp", "resource": "https://other.example/mcp"}"#)
        #expect(other.status == 200 && other.json["found"] == nil)
        // A mistake that is put back costs no session.
        #expect(!other.text.contains("c-1"))
        let back = await broker.call(
            .patch, "/tenants/t1", body: #"{"resource": "https://mcp.example/mcp"}"#,
            fields: ["Content-Type": "application/merge-patch+json"])
        #expect(back.json["found"]?["client_id"]?.text == "c-1", "\(back.text)")
        #expect(await broker.call(.get, "/tenants/t1").json["found"]?["client_id"]?.text == "c-1")
        _ = await broker.beginLogin()
        #expect(Servers.requests(broker.transport, to: Servers.registration) == 1)
    }

    @Test(arguments: [
        (#"{"provider": "mcp"}"#, "/resource"),
        (#"{"provider": "mcp", "resource": "mcp.example"}"#, "/resource"),
        (#"{"provider": "mcp", "resource": "https://a.example/m", "issuer": "https://as.example"}"#, "/issuer"),
        (
            #"{"provider": "mcp", "resource": "https://a.example/m", "endpoints": {"token": "https://as.example/t"}}"#,
            "/endpoints"
        ),
        (#"{"provider": "mcp", "resource": "https://a.example/m", "client_secret": "s"}"#, "/client_id"),
        (#"{"provider": "mcp", "resource": "https://a.example/m", "found": {}}"#, "/found"),
    ])
    func `is refused with the place of the fault`(body: String, pointer: String) async throws {
        let broker = try await BrokerHarness()
        let answer = await broker.call(.put, "/tenants/t1", body: body)
        #expect(answer.status == 400)
        let pointers = answer.json["errors"]?.array?.compactMap { $0["pointer"]?.text } ?? []
        #expect(pointers.contains(pointer), "\(answer.text)")
    }

    @Test func `is logged in at by two replicas with one client`() async throws {
        let replicas = try await BrokerHarness.replicas(cacheValidity: .seconds(1))
        await replicas.one.makeTenant("t1", Self.tenant)
        for broker in [replicas.one, replicas.two] {
            Servers.publish(at: broker.transport)
            broker.transport.always(.json(400, #"{"error": "invalid_grant"}"#))
        }
        Servers.register(at: replicas.one.transport)
        Servers.register(at: replicas.two.transport, prefix: "two")
        let first = await replicas.one.beginLogin()
        let second = await replicas.two.beginLogin()
        #expect(BrokerHarness.parameters(of: first.uri)["client_id"] == "c-1")
        #expect(BrokerHarness.parameters(of: second.uri)["client_id"] == "c-1")
        #expect(Servers.requests(replicas.two.transport, to: Servers.registration) == 0)
    }
}
