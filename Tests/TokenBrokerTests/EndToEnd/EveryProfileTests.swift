internal import BrokerTesting
internal import DevelopmentProvider
internal import ExternalText
internal import HTTPCodec
internal import JSON
internal import OAuth
internal import Testing

/// Each shipped profile with the broker on one side and, from the same document, the development provider on the other.
///
/// One after the other: each case has a broker and a provider with sockets and threads of their own.
@Suite(.serialized, .timeLimit(.minutes(2))) struct `Every shipped profile` {
    /// A broker whose tenant `t1` uses the provider that plays a profile.
    private struct Stage {
        let broker: RunningBroker
        let provider: DevelopmentProvider
        let time: ManualTime
        let played: ProfileTranslation

        private static let secret = "the secret:%"
        private static let user = ProviderUser("alice")

        static func run(
            _ name: String, scopes: [String] = ["read", "write"], userScopes: [String] = [],
            _ body: (Stage) async throws -> Void
        ) async throws {
            let played = try #require(ProfileTranslation(name))
            let hasSecret = played.requires("client_secret")
            let configuration = ProviderConfiguration(
                playing: played, clients: [ProviderClient("the app", secret: hasSecret ? secret : nil)])
            let time = ManualTime()
            let running = try RunningProvider(configuration, now: { time.now.milliseconds })
            let directory = StoreFixtureDirectory()
            let broker = try await RunningBroker(directory: directory.path, time: time)
            let stage = Stage(broker: broker, provider: running.provider, time: time, played: played)
            let result: Result<Void, any Error>
            do {
                var members = played.tenant(below: running.baseURL, clientID: "the app")
                members["client_id"] = .string("the app")
                if hasSecret { members["client_secret"] = .string(WireText(secret)) }
                members["scopes"] = list(scopes + (scopes.isEmpty ? [] : played.usualScopes))
                if !userScopes.isEmpty { members["user_scopes"] = list(userScopes) }
                var writer = JSONWriter()
                writer.value(.object(members))
                let answer = try await broker.call(
                    .put, "/tenants/t1", body: String(decoding: writer.bytes, as: UTF8.self))
                #expect(answer.status == 201, "\(answer.text)")
                result = .success(try await body(stage))
            } catch {
                result = .failure(error)
            }
            await broker.close()
            await running.close()
            withExtendedLifetime(directory) {}
            try result.get()
        }

        private static func list(_ texts: [String]) -> JSONValue { .array(texts.map { .string(WireText($0)) }) }

        /// The access token that the broker hands out.
        func token(_ query: String = "") async throws -> String {
            let answer = try await broker.call(.get, "/credentials" + query)
            #expect(answer.status == 200, "\(answer.text)")
            return try #require(answer.json["token"]?.text, "\(answer.text)")
        }

        /// A token that a forced refresh has brought. A token that must have an age first gets it.
        func renewed() async throws -> String {
            time.advance(by: played.earliestRefresh + .seconds(1))
            return try await token("?policy=local_force_refresh")
        }

        /// Whether the provider would take the token for that user's.
        func isGood(_ token: String) -> Bool { provider.introspect(accessToken: token)?.user == Self.user }

        func isLoggedIn() async throws -> Bool? {
            try await broker.call(.get, "/credentials/status").json["logged_in"]?.bool
        }

        func logIn() async throws {
            let answer = try await broker.logIn()
            #expect(answer.status == 200, "\(answer.text)")
        }

        func endSessions() { provider.revokeAll(userID: Self.user.id) }
    }

    @Test func `with a login can be played`() {
        for name in ["slack", "google", "notion", "github", "github-app", "zoho", "facebook", "oidc", "mcp"] {
            #expect(ProfileTranslation.names.contains(name))
        }
        for name in ["tidal", "duckduckgo", "authgear", "static", "nobody"] {
            #expect(ProfileTranslation(name) == nil)
        }
    }

    @Test(arguments: ProfileTranslation.names)
    func `logs in with the scopes that were asked for, and stays logged in over an outage`(name: String) async throws {
        try await Stage.run(name) { stage async throws in
            try await stage.logIn()
            let token = try await stage.token()
            #expect(stage.isGood(token))
            let record = try #require(stage.provider.introspect(accessToken: token))
            #expect(Set(record.scope).isSuperset(of: ["read", "write"]), "\(record.scope)")
            #expect(try await stage.isLoggedIn() == true)
            stage.provider.script(Fault(.token, times: 100, status: .serviceUnavailable))
            stage.time.advance(by: stage.played.earliestRefresh + .seconds(1))
            _ = try await stage.broker.call(.get, "/credentials?policy=local_force_refresh")
            #expect(try await stage.isLoggedIn() == true)
            #expect(stage.isGood(token))
        }
    }

    @Test(arguments: ProfileTranslation.names.filter { ProfileTranslation($0)?.isRenewable == true })
    func `renews its token twice, and ends the session that the provider has ended`(name: String) async throws {
        try await Stage.run(name) { stage async throws in
            try await stage.logIn()
            var tokens = [try await stage.token()]
            for _ in 1...2 {
                tokens.append(try await stage.renewed())
                #expect(stage.isGood(tokens[tokens.count - 1]))
            }
            #expect(Set(tokens).count == 3)
            #expect(stage.provider.ledgerSummary.reuseDetections == 0)
            #expect(try await stage.isLoggedIn() == true)
            stage.endSessions()
            stage.time.advance(by: stage.played.earliestRefresh + .seconds(1))
            _ = try await stage.broker.call(.get, "/credentials?policy=local_force_refresh")
            #expect(try await stage.isLoggedIn() == false)
        }
    }

    @Test(arguments: ProfileTranslation.names.filter { ProfileTranslation($0)?.canRevoke == true })
    func `revokes at a logout`(name: String) async throws {
        try await Stage.run(name) { stage async throws in
            try await stage.logIn()
            let token = try await stage.token()
            #expect(stage.isGood(token))
            let answer = try await stage.broker.call(.delete, "/credentials?revoke=true")
            #expect(answer.fields["Token-Revocation"] == "revoked", "\(answer.status) \(answer.text)")
            #expect(!stage.isGood(token))
            #expect(try await stage.isLoggedIn() == false)
        }
    }

    // MARK: One profile's own

    @Test(arguments: [([], "bot"), (["search:read"], "user")] as [([String], String)])
    func `with two tokens keeps the one that is asked for`(userScopes: [String], use: String) async throws {
        try await Stage.run("slack", userScopes: userScopes) { stage async throws in
            try await stage.logIn()
            let record = try #require(stage.provider.introspect(accessToken: try await stage.token()))
            #expect(record.scope == (use == "user" ? userScopes : ["read", "write"]))
            #expect(stage.isGood(try await stage.renewed()))
        }
    }

    @Test func `tells the facts of its answers and of its callback`() async throws {
        try await Stage.run("zoho") { stage async throws in
            try await stage.logIn()
            let answer = try await stage.broker.call(.get, "/credentials")
            #expect(answer.json["extra"]?["api_domain"]?.text == "api_domain-1")
            #expect(answer.json["extra"]?["location"]?.text == "location-1", "\(answer.text)")
        }
    }

    @Test func `has a parameter's value in its paths`() throws {
        let played = try #require(ProfileTranslation("microsoft", parameters: ["tenant": "acme"]))
        let members = played.tenant(below: "http://p.test", clientID: "c 1")
        #expect(members["endpoints"]?["token"]?.text == "http://p.test/acme/oauth2/v2.0/token")
        let github = try #require(ProfileTranslation("github")).tenant(below: "http://p.test", clientID: "c 1")
        #expect(github["endpoints"]?["revocation"]?.text == "http://p.test/applications/c%201/token")
    }
}
