import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import Testing

/// The whole broker, as a program, at an MCP server and its authorization server, both of the MCP SDK.
@Suite(.timeLimit(.minutes(5)))
struct `A broker at an MCP server of the SDK` {
    @Test func `logs in from nothing but its address, calls a tool, refreshes, registers anew, and revokes`()
        async throws
    {
        let port = try PostgresServer.freePort()
        // The client that is known there from the beginning is not used.
        let server = try await OAuthServer.start(.mcp, redirectURI: "http://127.0.0.1:\(port)/login/callback")
        let resource = try #require(server.resource)
        let directory = StoreFixtureDirectory()
        let process = try await BrokerProcess.start(
            port: port,
            [
                "DATA_DIR": directory.path, "MASTER_KEYS": BrokerHarness.masterKeys, "ALLOW_INSECURE_PROVIDERS": "true",
            ])
        let broker = try BrokerClient(port: port)
        let tenant = try await broker.call(
            .put, "/tenants/t1", body: #"{"provider": "mcp", "resource": "\#(resource)"}"#)
        #expect(tenant.status == 201, "\(tenant.text)")

        try await Self.logIn(at: server, broker)
        let first = try await broker.call(.get, "/credentials?storage_key=u1", tenant: "t1")
        let token = try #require(first.json["token"]?.text, "\(first.text)")
        #expect(try await server.useTool(token: token) == "Faust: second shelf")
        let found = try await Self.found(broker)
        #expect(found["client"]?.text == "registered" && found["issuer"]?.text == server.issuer)
        #expect(found["client_id"]?.text != server.clientID)

        let refreshed = try await broker.call(
            .get, "/credentials?storage_key=u1&policy=local_force_refresh", tenant: "t1")
        let second = try #require(refreshed.json["token"]?.text, "\(refreshed.text)")
        #expect(second != token)
        #expect(try await server.useTool(token: second) == "Faust: second shelf")
        // It announces two methods, of which its revocation endpoint takes the form only.
        #expect(
            try await server.requests() == [
                OAuthServer.Request(grant: "authorization_code", method: "post", status: 200),
                OAuthServer.Request(grant: "refresh_token", method: "post", status: 200),
            ])

        // A refresh hears that the client is forgotten, and the next login makes another one.
        try await server.forgetClients()
        _ = try await broker.call(.get, "/credentials?storage_key=u1&policy=local_force_refresh", tenant: "t1")
        #expect(try await server.requests().last?.status == 401)
        try await Self.logIn(at: server, broker)
        let again = try await broker.call(.get, "/credentials?storage_key=u1", tenant: "t1")
        #expect(try await server.useTool(token: try #require(again.json["token"]?.text)) == "Faust: second shelf")
        #expect(try await Self.found(broker)["client_id"] != found["client_id"])

        let logout = try await broker.call(.delete, "/credentials?storage_key=u1&revoke=true", tenant: "t1")
        #expect(logout.status == 204 && logout.fields["Token-Revocation"]?.text == "revoked", "\(logout.text)")
        #expect(try await server.sessions() == 0)
        #expect(
            try await server.requests().last
                == OAuthServer.Request(grant: "revocation", method: "post", status: 200))

        #expect(await process.terminate() == 0)
        await broker.close()
        await server.stop()
    }

    @Test func `gets no token that the MCP server takes where the tenant names another resource`() async throws {
        let port = try PostgresServer.freePort()
        let server = try await OAuthServer.start(.mcp, redirectURI: "http://127.0.0.1:\(port)/login/callback")
        let directory = StoreFixtureDirectory()
        let process = try await BrokerProcess.start(
            port: port,
            [
                "DATA_DIR": directory.path, "MASTER_KEYS": BrokerHarness.masterKeys, "ALLOW_INSECURE_PROVIDERS": "true",
            ])
        let broker = try BrokerClient(port: port)
        for (resource, isTaken) in [("http://127.0.0.1:9/mcp", false), (try #require(server.resource), true)] {
            let tenant = try await broker.call(
                .put, "/tenants/t1",
                body: #"""
                    {"provider": "oidc", "issuer": "\#(server.issuer)", "client_id": "\#(server.clientID)",
                     "client_secret": "\#(server.clientSecret)", "scopes": ["read"], "resource": "\#(resource)"}
                    """#)
            #expect(tenant.status < 300, "\(tenant.text)")
            try await Self.logIn(at: server, broker)
            // A refresh keeps the resource.
            for query in ["storage_key=u1", "storage_key=u1&policy=local_force_refresh"] {
                let answer = try await broker.call(.get, "/credentials?\(query)", tenant: "t1")
                let token = try #require(answer.json["token"]?.text, "\(answer.text)")
                #expect(try await server.takes(token) == isTaken)
            }
        }
        #expect(await process.terminate() == 0)
        await broker.close()
        await server.stop()
    }

    /// What `GET /tenants/t1` shows of what logins have found.
    private static func found(_ broker: BrokerClient) async throws -> JSONValue {
        try #require(try await broker.call(.get, "/tenants/t1").json["found"])
    }

    private static func logIn(at server: OAuthServer, _ broker: BrokerClient) async throws {
        let begun = try await broker.call(
            .post, "/login/initialize", tenant: "t1", body: #"{"storage_key": "u1"}"#)
        #expect(begun.status == 201, "\(begun.text)")
        let redirect = try await server.logIn(authorizeURL: try #require(begun.json["login_uri"]?.text))
        let page = try await broker.call(.get, redirect, key: nil)
        #expect(page.status == 200, "\(page.text)")
    }
}
