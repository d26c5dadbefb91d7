import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import JSON
import OAuth
import Testing

/// Each shipped profile with the broker on one side and, from the same document, the development provider on the other.
///
/// One after the other: each case has a broker and a provider with sockets and threads of their own. What is expected is read into
/// a constant first, because a failed expectation describes all values in it, and a stage cannot be described.
@Suite(.serialized, .timeLimit(.minutes(2))) struct `Every shipped profile` {
    private static let renewable = ProfileTranslation.names.filter { ProfileTranslation($0)?.isRenewable == true }
    /// Those whose tokens end and are renewed by refresh tokens: by a token that has ended, none is renewed.
    private static let ending = renewable.filter { name in
        let configuration = ProfileTranslation(name).map { ProviderConfiguration(playing: $0, clients: []) }
        return configuration.map { $0.issuesRefreshTokens && $0.accessTokenLifetime < .seconds(365 * 86_400) } ?? false
    }
    private static let revocable = ProfileTranslation.names.filter { ProfileTranslation($0)?.canRevoke == true }

    @Test func `with a login can be played`() {
        for name in ["slack", "google", "notion", "github", "github-app", "zoho", "facebook", "oidc", "mcp"] {
            let isPlayed = ProfileTranslation.names.contains(name)
            #expect(isPlayed, "\(name)")
        }
        for name in ["tidal", "duckduckgo", "authgear", "static", "nobody"] {
            let isPlayed = ProfileTranslation(name) != nil
            #expect(!isPlayed, "\(name)")
        }
    }

    // MARK: All profiles

    @Test(arguments: ProfileTranslation.names)
    func `logs in with the scopes that were asked for, and stays logged in over an outage`(name: String) async throws {
        try await Stage.run(name) { stage async throws in
            try await stage.logIn()
            let (token, _) = try await stage.held()
            let isGood = stage.isGood(token)
            #expect(isGood)
            let scope = stage.scope(of: token)
            let hasScopes = Set(scope).isSuperset(of: Stage.scopes)
            #expect(hasScopes, "\(scope)")
            stage.takeProviderAway()
            stage.ageToken()
            _ = try await stage.get("?policy=local_force_refresh")
            let isLoggedIn = try await stage.isLoggedIn()
            #expect(isLoggedIn == true)
            let isStillGood = stage.isGood(token)
            #expect(isStillGood)
        }
    }

    @Test(arguments: ending)
    func `has a good token after an outage in which one has ended`(name: String) async throws {
        try await Stage.run(name) { stage async throws in
            try await stage.logIn()
            let (token, told) = try await stage.held()
            let lifetime = try #require(told)
            stage.takeProviderAway()
            stage.time.advance(by: lifetime + .seconds(1))
            let status = try await stage.get().status
            #expect(status == 503)
            let isLoggedIn = try await stage.isLoggedIn()
            #expect(isLoggedIn == true)
            let isGood = stage.isGood(token)
            #expect(!isGood)
            stage.bringProviderBack()
            let (next, _) = try await stage.held()
            let isNextGood = stage.isGood(next)
            #expect(isNextGood)
            let reuses = stage.reuses
            #expect(reuses == 0)
        }
    }

    @Test(arguments: renewable)
    func `renews its token twice, and ends the session that the provider has ended`(name: String) async throws {
        try await Stage.run(name) { stage async throws in
            try await stage.logIn()
            var tokens: Set = [try await stage.held().token]
            for _ in 1...2 {
                let token = try await stage.renewed()
                let isGood = stage.isGood(token)
                #expect(isGood)
                tokens.insert(token)
            }
            let count = tokens.count
            #expect(count == 3)
            let reuses = stage.reuses
            #expect(reuses == 0)
            let wasLoggedIn = try await stage.isLoggedIn()
            #expect(wasLoggedIn == true)
            stage.endSessions()
            stage.ageToken()
            _ = try await stage.get("?policy=local_force_refresh")
            let isLoggedIn = try await stage.isLoggedIn()
            #expect(isLoggedIn == false)
        }
    }

    @Test(arguments: revocable)
    func `revokes at a logout`(name: String) async throws {
        try await Stage.run(name) { stage async throws in
            try await stage.logIn()
            let (token, _) = try await stage.held()
            let wasGood = stage.isGood(token)
            #expect(wasGood)
            let outcome = try await stage.logOut()
            #expect(outcome == "revoked")
            let isGood = stage.isGood(token)
            #expect(!isGood)
            let isLoggedIn = try await stage.isLoggedIn()
            #expect(isLoggedIn == false)
        }
    }

    // MARK: One profile's own

    @Test(arguments: [([], ["read", "write"]), (["search:read"], ["search:read"])] as [([String], [String])])
    func `with two tokens keeps the one that is asked for`(userScopes: [String], kept: [String]) async throws {
        try await Stage.run("slack", userScopes: userScopes) { stage async throws in
            try await stage.logIn()
            let scope = stage.scope(of: try await stage.held().token)
            #expect(scope == kept)
            let isGood = stage.isGood(try await stage.renewed())
            #expect(isGood)
        }
    }

    /// A login's token lives an hour, and the other one 60 days.
    @Test(arguments: ["facebook", "instagram", "threads"])
    func `hands out the token that the login's token was exchanged for`(name: String) async throws {
        try await Stage.run(name) { stage async throws in
            try await stage.logIn()
            let lifetime = try await stage.held().lifetime ?? .zero
            let isExchanged = lifetime > .seconds(59 * 86_400)
            #expect(isExchanged, "\(lifetime)")
        }
    }

    @Test func `tells the facts of its answers and of its callback`() async throws {
        try await Stage.run("zoho") { stage async throws in
            try await stage.logIn()
            let extra = try await stage.get().json["extra"]
            let (domain, location) = (extra?["api_domain"]?.text, extra?["location"]?.text)
            #expect(domain == "api_domain-1")
            #expect(location == "location-1")
        }
    }

    @Test func `has a parameter's value in its paths`() throws {
        let played = ProfileTranslation("microsoft", parameters: ["tenant": "acme"])
        let members = played?.tenant(below: "http://p.test", clientID: "c 1")
        let token = members?["endpoints"]?["token"]?.text
        #expect(token == "http://p.test/acme/oauth2/v2.0/token")
        let github = ProfileTranslation("github")?.tenant(below: "http://p.test", clientID: "c 1")
        let revocation = github?["endpoints"]?["revocation"]?.text
        #expect(revocation == "http://p.test/applications/c%201/token")
    }
}

extension `Every shipped profile` {
    /// A broker whose tenant `t1` uses the provider that plays a profile.
    fileprivate final class Stage: Sendable {
        let broker: RunningBroker
        let provider: DevelopmentProvider
        let time: ManualTime
        let played: ProfileTranslation

        /// What each login asks for, beside what its profile always asks for.
        static let scopes = ["read", "write"]
        private static let secret = "the secret:%"
        private static let user = ProviderUser("alice")
        /// More requests than an outage gets.
        private static let refusals = 1000
        /// After this time a provider that was away is asked again.
        private static let recovery: Duration = .seconds(60)

        private init(
            _ broker: RunningBroker, _ provider: DevelopmentProvider, _ time: ManualTime, _ played: ProfileTranslation
        ) {
            (self.broker, self.provider, self.time, self.played) = (broker, provider, time, played)
        }

        static func run(
            _ name: String, userScopes: [String] = [], _ body: (Stage) async throws -> Void
        ) async throws {
            let translation = ProfileTranslation(name)
            let played = try #require(translation)
            let secret = played.requires("client_secret") ? secret : nil
            let configuration = ProviderConfiguration(
                playing: played, clients: [ProviderClient("the app", secret: secret)])
            let time = ManualTime()
            let running = try RunningProvider(configuration, now: { time.now.milliseconds })
            let directory = StoreFixtureDirectory(isInMemory: true)
            let result: Result<Void, any Error>
            do {
                let broker = try await RunningBroker(directory: directory.path, time: time)
                let stage = Stage(broker, running.provider, time, played)
                do {
                    let tenant = stage.tenant(below: running.baseURL, secret: secret, userScopes)
                    expect(try await broker.call(.put, "/tenants/t1", body: tenant), 201)
                    result = .success(try await body(stage))
                } catch {
                    result = .failure(error)
                }
                await broker.close()
            } catch {
                result = .failure(error)
            }
            await running.close()
            withExtendedLifetime(directory) {}
            try result.get()
        }

        /// A tenant with what the profile requires and the scopes, as JSON.
        private func tenant(below base: String, secret: String?, _ userScopes: [String]) -> String {
            func list(_ texts: [String]) -> JSONValue { .array(texts.map { .string(WireText($0)) }) }
            var members = played.tenant(below: base, clientID: "the app")
            members["client_id"] = .string("the app")
            if let secret { members["client_secret"] = .string(WireText(secret)) }
            members["scopes"] = list(Self.scopes + played.usualScopes)
            if !userScopes.isEmpty { members["user_scopes"] = list(userScopes) }
            var writer = JSONWriter()
            writer.value(.object(members))
            return String(decoding: writer.bytes, as: UTF8.self)
        }

        private static func expect(_ answer: RunningBroker.Answer, _ wanted: Int) {
            let (status, text) = (answer.status, answer.text)
            #expect(status == wanted, "\(text)")
        }

        // MARK: The broker

        func get(_ query: String = "") async throws -> RunningBroker.Answer {
            try await broker.call(.get, "/credentials" + query)
        }

        /// The token that the broker hands out, and how long it lives; nil for one without an end.
        func held(_ query: String = "") async throws -> (token: String, lifetime: Duration?) {
            let answer = try await get(query)
            Self.expect(answer, 200)
            let (token, lifetime) = (answer.json["token"]?.text, answer.json["expires_in"]?.integer)
            return (try #require(token), lifetime.map { .seconds($0) })
        }

        /// A token that a forced refresh has brought.
        func renewed() async throws -> String {
            ageToken()
            return try await held("?policy=local_force_refresh").token
        }

        /// Nil for an answer that does not say it.
        func isLoggedIn() async throws -> Bool? {
            try await broker.call(.get, "/credentials/status").json["logged_in"]?.bool
        }

        func logIn() async throws {
            let answer = try await broker.logIn()
            Self.expect(answer, 200)
        }

        /// Logs out, and returns what became of the tokens at the provider.
        func logOut() async throws -> String? {
            let answer = try await broker.call(.delete, "/credentials?revoke=true")
            Self.expect(answer, 204)
            return answer.fields["Token-Revocation"]?.text
        }

        // MARK: The provider

        /// Whether the provider would take the token for that user's.
        func isGood(_ token: String) -> Bool { provider.introspect(accessToken: token)?.user == Self.user }

        func scope(of token: String) -> [String] { provider.introspect(accessToken: token)?.scope ?? [] }

        var reuses: Int { provider.ledgerSummary.reuseDetections }

        func endSessions() { provider.revokeAll(userID: Self.user.id) }

        func takeProviderAway() {
            provider.script(Fault(.token, times: Self.refusals, status: .serviceUnavailable))
        }

        func bringProviderBack() {
            provider.removeFaults()
            time.advance(by: Self.recovery)
        }

        /// Lets a token get old enough for a renewal.
        func ageToken() { time.advance(by: played.earliestRefresh + .seconds(1)) }
    }
}
