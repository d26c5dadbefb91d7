import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import Testing

/// The whole broker, as a program, at an authorization server from outside this project.
@Suite(.timeLimit(.minutes(5)))
struct `A broker at Glewlwyd` {
    enum Store: CaseIterable {
        case files
        case postgres

        /// What the configuration says about the store; called once for each life of the store.
        func variables(directory: String) async throws -> [String: String] {
            switch self {
            case .files: ["DATA_DIR": directory, "MASTER_KEYS": BrokerHarness.masterKeys]
            case .postgres:
                ["DATABASE_URL": try await Self.makeDatabase(), "MASTER_KEYS": BrokerHarness.masterKeys]
            }
        }

        private static func makeDatabase() async throws -> String {
            let server = try await PostgresServer.shared.value
            return server.uri(database: try await server.makeDatabase())
        }
    }

    @Test(arguments: Store.allCases)
    func `a login, a refresh and a logout, also after a SIGKILL`(_ store: Store) async throws {
        let port = try PostgresServer.freePort()
        var options = GlewlwydServer.Options(redirectURIs: ["http://127.0.0.1:\(port)/login/callback"])
        options.speaksTLS = true
        let provider = try await GlewlwydServer.start(options)
        let directory = StoreFixtureDirectory()
        var variables = try await store.variables(directory: directory.path)
        variables["TRUSTED_CA_FILE"] = provider.certificateAuthorityFile
        // For the provider's address on loopback; it is called by https all the same.
        variables["ALLOW_INSECURE_PROVIDERS"] = "true"

        let broker = try BrokerClient(port: port)
        var process = try await BrokerProcess.start(port: port, variables)
        let tenant = try await broker.call(.put, "/tenants/t1", body: provider.tenant)
        #expect(tenant.status == 201, "\(tenant.text)")

        let begun = try await broker.call(.post, "/login/initialize", tenant: "t1", body: #"{"storage_key": "u1"}"#)
        #expect(begun.status == 201, "\(begun.text)")
        let redirect = try await provider.logIn(authorizeURL: try #require(begun.json["login_uri"]?.text))
        let page = try await broker.call(.get, redirect, key: nil)
        #expect(page.status == 200, "\(page.text)")
        #expect(page.fields["Content-Type"] == "text/html; charset=utf-8")

        let first = try await broker.call(.get, "/credentials?storage_key=u1", tenant: "t1")
        #expect(first.status == 200, "\(first.text)")
        #expect(first.json["level"]?.string == "user")
        #expect(first.json["granted_scopes"] == .array([.string("music")]))
        let token = try #require(first.json["token"]?.text)

        await process.kill()
        process = try await BrokerProcess.start(port: port, variables)
        let afterKill = try await broker.call(.get, "/credentials?storage_key=u1", tenant: "t1")
        #expect(afterKill.json["token"]?.string == token)
        #expect(afterKill.fields["ETag"] == first.fields["ETag"])

        let refreshed = try await broker.call(
            .get, "/credentials?storage_key=u1&policy=local_force_refresh", tenant: "t1")
        #expect(refreshed.status == 200, "\(refreshed.text)")
        #expect(refreshed.json["level"]?.string == "user")
        #expect(refreshed.fields["ETag"] != first.fields["ETag"])

        // Its metadata announces the grants without that of client credentials.
        let client = try await broker.call(.get, "/credentials?storage_key=nobody", tenant: "t1")
        #expect(client.status == 200, "\(client.text)")
        #expect(client.json["level"]?.string == "basic")

        let logout = try await broker.call(.delete, "/credentials?storage_key=u1&revoke=true", tenant: "t1")
        #expect(logout.status == 204)
        #expect(logout.fields["Token-Revocation"] == "revoked")
        let after = try await broker.call(.get, "/credentials?storage_key=u1", tenant: "t1")
        #expect(after.json["level"]?.string == "basic")

        let secrets = [token, provider.clientSecret, BrokerHarness.adminKey]
        for line in process.lines { #expect(!secrets.contains { line.contains($0) }, "\(line)") }
        #expect(await process.terminate() == 0)
        await provider.stop()
    }

    @Test(arguments: [false, true])
    func `signed tokens are verified, also after the provider has replaced its key`(isECDSA: Bool) async throws {
        let port = try PostgresServer.freePort()
        var options = GlewlwydServer.Options(redirectURIs: ["http://127.0.0.1:\(port)/login/callback"])
        options.signsWithECDSA = isECDSA
        options.rotatesRefreshTokens = true
        let provider = try await GlewlwydServer.start(options)
        let directory = StoreFixtureDirectory()
        let broker = try BrokerClient(port: port)
        var variables = ["DATA_DIR": directory.path, "MASTER_KEYS": BrokerHarness.masterKeys]
        variables["ALLOW_INSECURE_PROVIDERS"] = "true"
        let process = try await BrokerProcess.start(port: port, variables)
        let algorithm = isECDSA ? "ES256" : "RS256"
        let tenant = try await broker.call(
            .put, "/tenants/t1",
            body: #"""
                {"provider": "oidc", "issuer": "\#(provider.issuer)", "client_id": "\#(provider.clientID)",
                 "client_secret": "\#(provider.clientSecret)", "scopes": ["openid", "music"],
                 "token_verification": {"access_token": {"scope": "music", "algorithms": ["\#(algorithm)"]}}}
                """#)
        #expect(tenant.status == 201, "\(tenant.text)")
        let begun = try await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}")
        let redirect = try await provider.logIn(authorizeURL: try #require(begun.json["login_uri"]?.text))
        let ended = try await broker.call(.get, redirect, key: nil)
        #expect(ended.status == 200, "\(ended.text)")
        let claims = try await broker.call(.get, "/credentials/claims", tenant: "t1")
        #expect(claims.json["access_token"]?["header"]?["alg"]?.text == algorithm, "\(claims.text)")
        #expect(claims.json["access_token"]?["claims"]?["iss"]?.text == provider.issuer)
        let subject = try #require(claims.json["id_token"]?["claims"]?["sub"]?.text)
        let first = try await broker.call(.get, "/credentials", tenant: "t1")
        #expect(first.json["user_id"]?.text == subject)

        // Keys are fetched at most once in 30 s, so one of the two tests waits for a new one.
        guard isECDSA else {
            #expect(await process.terminate() == 0)
            return await provider.stop()
        }
        try await provider.rotateKey()
        var answer = first
        let start = ContinuousClock.now
        repeat {
            answer = try await broker.call(.get, "/credentials?policy=local_force_refresh", tenant: "t1")
            if answer.status != 200 { try await Task.sleep(for: .seconds(1)) }
        } while answer.status != 200 && start.duration(to: .now) < .seconds(60)
        #expect(answer.status == 200, "\(answer.text)")
        #expect(answer.json["token"] != first.json["token"])
        let renewed = try await broker.call(.get, "/credentials/claims", tenant: "t1")
        let keys = [claims, renewed].map { $0.json["access_token"]?["header"]?["kid"]?.text }
        #expect(keys[0] != keys[1], "\(keys)")
        #expect(await process.terminate() == 0)
        await provider.stop()
    }
}
