import BrokerTesting
import ExternalText
import HTTPCodec
import JSON
import Testing

/// The whole broker, as a program, at Glewlwyd, where clients show a secret or a key (RFC 7523), push the parameters of their logins
/// (RFC 9126), and have their tokens bound to keys (RFC 9449).
@Suite(.timeLimit(.minutes(5)))
struct `A client at Glewlwyd` {
    /// What the server and the tenant have beside what they always have.
    struct Way: Sendable, CustomTestStringConvertible {
        enum Client {
            case secret
            /// A JWT that a key signs.
            case key
            /// A JWT that the secret signs.
            case secretJWT
        }

        let testDescription: String
        var pushedRequests = GlewlwydServer.PushedRequests.none
        var proofs = GlewlwydServer.Proofs.none
        var shows = Client.secret

        var isBound: Bool { proofs != .none }
    }

    static let ways = [
        Way(testDescription: "a secret"),
        Way(testDescription: "a secret, pushed requests", pushedRequests: .required),
        Way(
            testDescription: "a secret, pushed requests, bound tokens", pushedRequests: .allowed,
            proofs: .withoutNonce),
        Way(testDescription: "a secret, bound tokens with nonces", proofs: .withNonce),
        Way(testDescription: "a key", shows: .key),
        Way(testDescription: "a JWT by the secret", shows: .secretJWT),
        Way(testDescription: "a key, pushed requests", pushedRequests: .required, shows: .key),
        Way(
            testDescription: "a key, pushed requests, bound tokens with nonces", pushedRequests: .required,
            proofs: .withNonce, shows: .key),
    ]

    /// A broker with a tenant at a server.
    private struct Place {
        let way: Way
        let server: GlewlwydServer
        let directory: StoreFixtureDirectory
        let process: TestProcess
        let broker: BrokerClient

        init(_ way: Way, accessTokenLifetime: Int) async throws {
            self.way = way
            let port = try PostgresServer.freePort()
            var options = GlewlwydServer.Options(redirectURIs: ["http://127.0.0.1:\(port)/login/callback"])
            options.accessTokenDuration = accessTokenLifetime
            options.deviceInterval = 1
            options.pushedRequests = way.pushedRequests
            options.proofs = way.proofs
            options.signsWithSecret = way.shows == .secretJWT
            if way.shows == .key {
                let key = ClientKeys.jwk(ClientKeys.publicP256, keyID: "k1")
                options.clientKey = try JSONValue(parsing: Array(key.utf8))
            }
            server = try await GlewlwydServer.start(options)
            directory = StoreFixtureDirectory()
            process = try await BrokerProcess.start(
                port: port,
                [
                    "DATA_DIR": directory.path, "MASTER_KEYS": BrokerHarness.masterKeys,
                    "ALLOW_INSECURE_PROVIDERS": "true",
                ])
            broker = try BrokerClient(port: port)
            let tenant = try await broker.call(
                .put, "/tenants/t1",
                body: #"""
                    {"provider": "oidc", "issuer": "\#(server.issuer)", "client_id": "\#(server.clientID)",
                     \#(Self.client(way.shows, of: server)),
                     "client_credentials": "off", "scopes": ["music"], "dpop": \#(way.isBound),
                     "session_ending_answers": [{"status": 400}]}
                    """#)
            #expect(tenant.status == 201, "\(tenant.text)")
        }

        /// The members of a tenant about its client.
        private static func client(_ shows: Way.Client, of server: GlewlwydServer) -> String {
            switch shows {
            case .secret: #""client_secret": "\#(server.clientSecret)""#
            case .key:
                #"""
                "private_key": \#(ClientKeys.jwk(ClientKeys.p256, keyID: "k1")), "client_assertion_audience": "endpoint"
                """#
            case .secretJWT:
                // The server's metadata name another method for revocations than the client has.
                #"""
                "client_secret": "\#(server.clientSecret)", "token_endpoint_auth_method": "client_secret_jwt",
                "client_assertion_audience": "endpoint", "endpoints": {"revocation": "\#(server.revocationEndpoint)"}
                """#
            }
        }

        func credentials(_ query: String, _ fields: Fields = [:]) async throws -> BrokerHarness.Answer {
            try await broker.call(.get, "/credentials?\(query)", tenant: "t1", fields: fields)
        }

        /// - Returns: the names of the parameters that the browser has taken to the server.
        @discardableResult
        func logIn(_ storageKey: String) async throws -> Set<String> {
            let begun = try await broker.call(
                .post, "/login/initialize", tenant: "t1", body: #"{"storage_key": "\#(storageKey)"}"#)
            #expect(begun.status == 201, "\(begun.text)")
            let address = try #require(begun.json["login_uri"]?.text)
            let redirect = try await server.logIn(authorizeURL: address)
            let page = try await broker.call(.get, redirect, key: nil)
            #expect(page.status == 200, "\(page.text)")
            let query = address.split(separator: "?", maxSplits: 1).last.map(String.init) ?? ""
            return Set(try FormEncoding.decode(query).map(\.name.text))
        }

        /// The answer of the server's API to the stored token of a storage key, with a proof where the token is bound, and with the
        /// nonce where the API asks for one.
        func statusOfStoredToken(_ storageKey: String) async throws -> Int {
            var nonce: String?
            while true {
                var wanted: Fields = [:]
                if way.isBound {
                    wanted.append("DPoP-Htm", "GET")
                    wanted.append("DPoP-Htu", server.userinfoEndpoint)
                }
                if let nonce { wanted.append("DPoP-Nonce", nonce) }
                let held = try await credentials("storage_key=\(storageKey)&policy=local", wanted)
                var shown: Fields = [:]
                let token = try #require(held.json["token"]?.text, "\(held.text)")
                shown.append("Authorization", "\(way.isBound ? "DPoP" : "Bearer") \(token)")
                if way.isBound { shown.append("DPoP", try #require(held.json["dpop"]?.text)) }
                let answer = try await broker.call(.get, server.userinfoEndpoint, key: nil, fields: shown)
                guard nonce == nil, answer.status == 401, let next = answer.fields["DPoP-Nonce"]?.text else {
                    return answer.status
                }
                nonce = next
            }
        }

        func end() async {
            for line in process.lines { #expect(!line.contains(server.clientSecret), "\(line)") }
            #expect(await process.terminate() == 0)
            await broker.close()
            await server.stop()
        }
    }

    @Test(arguments: ways)
    func `logs in, has an expired token replaced, hears of the session's end, and revokes`(_ way: Way) async throws {
        let place = try await Place(way, accessTokenLifetime: 20)
        let parameters = try await place.logIn("u1")
        if way.pushedRequests == .none {
            #expect(parameters.contains("code_challenge") && parameters.contains("dpop_jkt") == way.isBound)
        } else {
            #expect(parameters == ["client_id", "request_uri"])
        }
        let first = try await place.credentials("storage_key=u1&min_ttl=0")
        #expect(first.json["level"]?.text == "user", "\(first.text)")
        #expect(first.json["token_type"]?.text == (way.isBound ? "DPoP" : "Bearer"))
        #expect(try await place.statusOfStoredToken("u1") == 200)
        let token = try #require(first.json["token"]?.text)
        let unproven = try await place.broker.call(
            .get, place.server.userinfoEndpoint, key: nil, fields: ["Authorization": "Bearer \(token)"])
        #expect(unproven.status == (way.isBound ? 401 : 200))

        // The server says itself when its token is over.
        let start = ContinuousClock.now
        while try await place.statusOfStoredToken("u1") == 200, start.duration(to: .now) < .seconds(60) {
            try await Task.sleep(for: .milliseconds(500))
        }
        #expect(try await place.statusOfStoredToken("u1") == 401)
        // The clocks may be apart by a second.
        let second = try await place.credentials("storage_key=u1&min_ttl=2")
        #expect(second.json["level"]?.text == "user", "\(second.text)")
        #expect(second.json["token"]?.text != token)
        #expect(try await place.statusOfStoredToken("u1") == 200)

        #expect(try await place.server.revokeRefreshTokens() == 1)
        _ = try await place.credentials("storage_key=u1&policy=local_force_refresh")
        let ended = try await place.broker.call(.get, "/credentials/status?storage_key=u1", tenant: "t1")
        #expect(ended.json["refreshable"] == .bool(false) && ended.json["state"]?.text == "ended", "\(ended.text)")

        try await place.logIn("u2")
        #expect(try await place.server.sessions() == 1)
        let logout = try await place.broker.call(.delete, "/credentials?storage_key=u2&revoke=true", tenant: "t1")
        #expect(logout.status == 204 && logout.fields["Token-Revocation"]?.text == "revoked", "\(logout.text)")
        #expect(try await place.server.sessions() == 0)
        await place.end()
    }

    @Test(arguments: [
        ways[0], Way(testDescription: "a key, bound tokens with nonces", proofs: .withNonce, shows: .key),
    ])
    func `logs a user in on a device`(_ way: Way) async throws {
        let place = try await Place(way, accessTokenLifetime: 3600)
        let begun = try await place.broker.call(.post, "/device", tenant: "t1", body: #"{"storage_key": "u1"}"#)
        #expect(begun.status == 201, "\(begun.text)")
        try await place.server.approveDevice(userCode: try #require(begun.json["user_code"]?.text))
        let handle = try #require(begun.json["device_code"]?.text)
        let ended = try await place.broker.call(.get, "/device/\(handle)?wait=60", tenant: "t1")
        #expect(ended.text == #"{"status":"completed"}"#)
        #expect(try await place.statusOfStoredToken("u1") == 200)
        let first = try await place.credentials("storage_key=u1")
        let refreshed = try await place.credentials("storage_key=u1&policy=local_force_refresh")
        #expect(refreshed.json["level"]?.text == "user", "\(refreshed.text)")
        #expect(refreshed.json["token"] != first.json["token"])
        #expect(try await place.statusOfStoredToken("u1") == 200)
        await place.end()
    }

    @Test func `has many tokens refreshed at once although each nonce is good for two requests`() async throws {
        let place = try await Place(
            Way(testDescription: "bound tokens with nonces", proofs: .withNonce), accessTokenLifetime: 3600)
        let users = (1...4).map { "u\($0)" }
        for user in users { try await place.logIn(user) }
        for _ in 0..<3 {
            let answers = try await withThrowingTaskGroup(of: BrokerHarness.Answer.self) { group in
                for user in users {
                    group.addTask { try await place.credentials("storage_key=\(user)&policy=local_force_refresh") }
                }
                return try await group.reduce(into: []) { $0.append($1) }
            }
            for answer in answers {
                #expect(answer.status == 200 && answer.json["level"]?.text == "user", "\(answer.text)")
            }
        }
        #expect(try await place.server.sessions() == users.count)
        await place.end()
    }
}
