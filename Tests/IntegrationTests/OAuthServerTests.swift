import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import Testing

/// The whole broker, as a program, at authorization servers of other projects.
@Suite(.timeLimit(.minutes(5)))
struct `A broker at servers of other projects` {
    /// What a tenant says of a server beside its issuer and its client, and what is seen of the login there.
    struct Case: Sendable, CustomTestStringConvertible {
        let kind: OAuthServer.Kind
        let scopes: String
        var members = ""
        /// The user of the ID token.
        var userID: String?
        /// How the exchange of the code shows the client, and with which status.
        let exchange: [(method: String, status: Int64)]
        var revocation = "revoked"

        var testDescription: String { kind.rawValue }
    }

    static let cases = [
        // Its OpenID document does not name the revocation endpoint, and its OAuth document below the issuer does.
        Case(kind: .django, scopes: #"["openid", "read"]"#, userID: "1", exchange: [("post", 200)]),
        Case(kind: .authlib, scopes: #"["read"]"#, exchange: [("basic", 200)]),
        // It wants the secret in the form of a revocation, from a client that is registered for HTTP Basic, too.
        Case(kind: .mcp, scopes: #"["read"]"#, exchange: [("post", 401), ("basic", 200)], revocation: "failed"),
        Case(kind: .doorkeeper, scopes: #"["read"]"#, exchange: [("basic", 401), ("post", 200)]),
        Case(
            kind: .lemonldap, scopes: #"["openid"]"#,
            members: #", "session_ending_answers": [{"status": 400, "error": "invalid_request"}]"#, userID: "dwho",
            exchange: [("post", 200)], revocation: "unsupported"),
    ]

    /// A broker with a tenant at a server.
    private struct Place {
        let port: UInt16
        let server: OAuthServer
        let directory: StoreFixtureDirectory
        let process: TestProcess
        let broker: BrokerClient

        init(_ row: Case, accessTokenLifetime: Int = 3600) async throws {
            port = try PostgresServer.freePort()
            server = try await OAuthServer.start(
                row.kind, redirectURI: "http://127.0.0.1:\(port)/login/callback",
                accessTokenLifetime: accessTokenLifetime)
            directory = StoreFixtureDirectory()
            process = try await BrokerProcess.start(
                port: port,
                [
                    "DATA_DIR": directory.path, "MASTER_KEYS": BrokerHarness.masterKeys,
                    "ALLOW_INSECURE_PROVIDERS": "true",
                ])
            broker = try BrokerClient(port: port)
            let resource = server.resource.map { #", "resource": "\#($0)""# } ?? ""
            let tenant = try await broker.call(
                .put, "/tenants/t1",
                body: #"""
                    {"provider": "oidc", "issuer": "\#(server.issuer)", "client_id": "\#(server.clientID)",
                     "client_secret": "\#(server.clientSecret)", "client_credentials": "off",
                     "scopes": \#(row.scopes)\#(row.members)\#(resource)}
                    """#)
            #expect(tenant.status == 201, "\(tenant.text)")
        }

        func credentials(_ query: String) async throws -> BrokerHarness.Answer {
            try await broker.call(.get, "/credentials?\(query)", tenant: "t1")
        }

        func logIn(_ storageKey: String) async throws {
            let begun = try await broker.call(
                .post, "/login/initialize", tenant: "t1", body: #"{"storage_key": "\#(storageKey)"}"#)
            #expect(begun.status == 201, "\(begun.text)")
            let redirect = try await server.logIn(authorizeURL: try #require(begun.json["login_uri"]?.text))
            let page = try await broker.call(.get, redirect, key: nil)
            #expect(page.status == 200, "\(page.text)")
        }

        func end() async {
            for line in process.lines { #expect(!line.contains(server.clientSecret), "\(line)") }
            #expect(await process.terminate() == 0)
            await broker.close()
            await server.stop()
        }
    }

    @Test(arguments: cases)
    func `logs a user in, refreshes, hears of the session's end, and revokes`(_ row: Case) async throws {
        let place = try await Place(row)
        let server = place.server
        try await place.logIn("u1")
        let first = try await place.credentials("storage_key=u1")
        #expect(first.json["level"]?.text == "user", "\(first.text)")
        #expect(first.json["user_id"]?.text == row.userID)
        #expect(try await server.takes(try #require(first.json["token"]?.text)))
        let exchange = try await server.requests()
        #expect(exchange.map(\.method) == row.exchange.map(\.method))
        #expect(exchange.map(\.status) == row.exchange.map(\.status))

        let refreshed = try await place.credentials("storage_key=u1&policy=local_force_refresh")
        #expect(refreshed.json["level"]?.text == "user", "\(refreshed.text)")
        #expect(refreshed.json["token"] != first.json["token"])
        #expect(try await server.takes(try #require(refreshed.json["token"]?.text)))
        // What was learnt at the login holds.
        let method = row.exchange.last?.method ?? ""
        #expect(
            try await server.requests().dropFirst(row.exchange.count)
                == [OAuthServer.Request(grant: "refresh_token", method: method, status: 200)])

        try await server.endSessions()
        #expect(try await server.sessions() == 0)
        _ = try await place.credentials("storage_key=u1&policy=local_force_refresh")
        let ended = try await place.broker.call(.get, "/credentials/status?storage_key=u1", tenant: "t1")
        #expect(ended.json["refreshable"] == .bool(false) && ended.json["state"]?.text == "ended", "\(ended.text)")
        #expect(try await server.requests().last?.status == 400)

        try await place.logIn("u2")
        let held = try await place.credentials("storage_key=u2")
        #expect(try await server.sessions() == 1)
        let logout = try await place.broker.call(.delete, "/credentials?storage_key=u2&revoke=true", tenant: "t1")
        #expect(logout.status == 204)
        #expect(logout.fields["Token-Revocation"]?.text == row.revocation)
        let isRevoked = row.revocation == "revoked"
        if isRevoked {
            #expect(
                try await server.requests().last
                    == OAuthServer.Request(grant: "revocation", method: method, status: 200))
        }
        #expect(try await server.sessions() == (isRevoked ? 0 : 1))
        #expect(try await server.takes(try #require(held.json["token"]?.text)) == !isRevoked)
        await place.end()
    }

    @Test(arguments: cases)
    func `replaces an access token that has expired`(_ row: Case) async throws {
        let place = try await Place(row, accessTokenLifetime: 20)
        let server = place.server
        try await place.logIn("u1")
        let first = try await place.credentials("storage_key=u1&min_ttl=0")
        let token = try #require(first.json["token"]?.text, "\(first.text)")
        #expect((0...20).contains(first.json["expires_in"]?.integer ?? -1), "\(first.text)")
        #expect(try await server.takes(token))
        // The server says itself when its token is over.
        let start = ContinuousClock.now
        while try await server.takes(token), start.duration(to: .now) < .seconds(60) {
            try await Task.sleep(for: .milliseconds(500))
        }
        #expect(try await !server.takes(token))
        // The clocks may be apart by a second.
        let second = try await place.credentials("storage_key=u1&min_ttl=2")
        #expect(second.json["level"]?.text == "user", "\(second.text)")
        let successor = try #require(second.json["token"]?.text)
        #expect(successor != token)
        #expect(try await server.takes(successor))
        // And so on, with the refresh token that came with it.
        let third = try await place.credentials("storage_key=u1&policy=local_force_refresh")
        #expect(third.json["level"]?.text == "user", "\(third.text)")
        #expect(third.json["token"]?.text != successor)
        #expect(try await server.takes(try #require(third.json["token"]?.text)))
        let requests = try await server.requests().suffix(2)
        #expect(requests.map(\.grant) == ["refresh_token", "refresh_token"])
        #expect(requests.map(\.status) == [200, 200])
        await place.end()
    }
}
