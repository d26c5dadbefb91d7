import BrokerTesting
import Cryptography
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPServer
import JOSE
import JSON
import OAuth
import Testing

/// Providers that are played from the broker's profiles, and what they refuse.
@Suite struct `A profile that is played` {
    private typealias Pair = FormEncoding.Pair

    /// A provider whose clock stands still, and what a client sends to it.
    private struct Stage {
        let clock = ProviderClock()
        let provider: DevelopmentProvider
        let redirectURI = "https://broker.test/login/callback"

        init(_ name: String, _ change: (inout ProviderConfiguration) -> Void = { _ in }) throws {
            let played = try #require(ProfileTranslation(name))
            var configuration = ProviderConfiguration(
                playing: played, clients: [ProviderClient("app", secret: "s3cret")])
            change(&configuration)
            let clock = clock
            provider = DevelopmentProvider(configuration, now: { clock.milliseconds }, clock: clock)
        }

        static let basic = "Basic " + Base64.encode(Array("app:s3cret".utf8))

        func post(_ path: String, _ form: [Pair], fields: Fields = [:]) async -> Response {
            await ProviderDriver(provider).post(path, form, fields: fields)
        }

        /// The answer to the login form, or the page or redirect in place of the form.
        func authorize(_ path: String, _ query: [Pair]) async -> Response {
            let driver = ProviderDriver(provider)
            let usual: [Pair] = [
                .init("response_type", "code"), .init("redirect_uri", redirectURI), .init("state", "xyz"),
            ]
            let page = await driver.get(path, usual + query)
            guard let form = ProviderForm(html: page.text) else { return page }
            return await driver.post(
                form.action, body: form.submission([.init("user", "alice"), .init("decision", "approve")]))
        }

        func code(_ path: String, _ query: [Pair]) async throws -> String {
            try #require(await authorize(path, query).redirectParameters?["code"])
        }
    }

    private static let slackPaths = (authorize: "/oauth/v2/authorize", token: "/api/oauth.v2.access")
    private static let pkce: [Pair] = [
        .init("code_challenge", ProviderDriver.challenge), .init("code_challenge_method", "S256"),
    ]

    @Test func `has the paths of its document and no others`() async throws {
        let stage = try Stage("slack")
        for path in ["/authorize", "/token", "/revoke", "/oauth/v2/authorize/x", "/jwks", "/link"] {
            #expect(await ProviderDriver(stage.provider).get(path).status == .notFound, "\(path)")
        }
        let answer = await ProviderDriver(stage.provider).get(Self.slackPaths.token)
        #expect(answer.status == .methodNotAllowed && answer.fields["Allow"] == "POST")
    }

    @Test func `refuses PKCE where it is forbidden`() async throws {
        let stage = try Stage("slack")
        let answer = await stage.authorize(Self.slackPaths.authorize, [.init("client_id", "app")] + Self.pkce)
        #expect(answer.redirectParameters?["error"] == "invalid_request")
    }

    @Test func `refuses an authorization request without the parameters of its document`() async throws {
        let stage = try Stage("notion")
        let client = [Pair("client_id", "app")] + Self.pkce
        let without = await stage.authorize("/v1/oauth/authorize", client)
        #expect(without.redirectParameters?["error"] == "invalid_request")
        let with = await stage.authorize("/v1/oauth/authorize", client + [.init("owner", "user")])
        #expect(with.redirectParameters?["code"] != nil)
    }

    /// Two tokens for two kinds of scopes, each in its place.
    @Test func `answers in its document's shape`() async throws {
        let stage = try Stage("slack")
        let code = try await stage.code(
            Self.slackPaths.authorize,
            [.init("client_id", "app"), .init("scope", "a,b"), .init("user_scope", "c")])
        let answer = await stage.post(
            Self.slackPaths.token,
            [.init("grant_type", "authorization_code"), .init("code", code), .init("redirect_uri", stage.redirectURI)],
            fields: ["Authorization": Stage.basic])
        let json = try #require(answer.json)
        #expect(answer.status == .ok && json["scope"]?.text == "a,b" && json["token_type"]?.text == "bot")
        #expect(json["team"]?["id"]?.text == "team_id-1" && json["access_token"]?.text != nil)
        let user = try #require(json["authed_user"])
        #expect(user["scope"]?.text == "c" && user["token_type"]?.text == "user")
        let token = try #require(user["access_token"]?.text)
        #expect(stage.provider.introspect(accessToken: token)?.scope == ["c"])
        #expect(user["refresh_token"]?.text != json["refresh_token"]?.text)
    }

    @Test(arguments: [
        ("slack", "/api/oauth.v2.access", 200, "/error", "invalid_refresh_token"),
        ("github", "/login/oauth/access_token", 200, "/error", "bad_refresh_token"),
        ("strava", "/api/v3/oauth/token", 400, "/errors/0/resource", "RefreshToken"),
        ("reddit", "/api/v1/access_token", 400, "/message", "Bad Request"),
        ("asana", "/-/oauth_token", 400, "/error", "invalid_grant"),
    ])
    func `refuses a dead refresh token in its document's words`(
        name: String, path: String, status: Int, pointer: String, value: String
    ) async throws {
        let stage = try Stage(name)
        let isBasic = ["slack", "reddit"].contains(name)
        let answer = await stage.post(
            path,
            [.init("grant_type", "refresh_token"), .init("refresh_token", "dead")]
                + (isBasic ? [] : [.init("client_id", "app"), .init("client_secret", "s3cret")]),
            fields: isBasic ? ["Authorization": Stage.basic] : [:])
        #expect(answer.status.code == status, "\(answer.text)")
        let json = try #require(answer.json)
        #expect(JSONPointer(WireText(pointer))?.value(in: json)?.text == value, "\(answer.text)")
    }

    @Test func `takes the client's secret in one place only`() async throws {
        let stage = try Stage("slack")
        let form = [Pair("grant_type", "refresh_token"), Pair("refresh_token", "dead")]
        let posted = await stage.post(
            Self.slackPaths.token, form + [.init("client_id", "app"), .init("client_secret", "s3cret")])
        #expect(posted.json?["error"]?.text == "invalid_client_id", "\(posted.text)")
        let other = try Stage("google")
        let basic = await other.post("/token", form, fields: ["Authorization": Stage.basic])
        #expect(basic.status == .unauthorized && basic.json?["error"]?.text == "invalid_client")
    }

    @Test func `takes JSON with its header where the document says so`() async throws {
        let stage = try Stage("notion")
        let body = #"{"grant_type": "refresh_token", "refresh_token": "dead"}"#
        func send(_ fields: Fields) async -> Response {
            var all: Fields = ["Content-Type": "application/json", "Authorization": Stage.basic]
            for field in fields.all { all.set(field.name.text, field.value.text) }
            return await ProviderDriver(stage.provider).post("/v1/oauth/token", body: body, fields: all)
        }
        #expect(await send([:]).json?["error"]?.text == "invalid_request")
        #expect(await send(["Notion-Version": "2025-09-03"]).json?["error"]?.text == "invalid_grant")
        let form = await send([
            "Notion-Version": "2025-09-03", "Content-Type": "application/x-www-form-urlencoded",
        ])
        #expect(form.json?["error"]?.text == "invalid_request")
    }

    @Test func `knows parameters by their own names`() async throws {
        let stage = try Stage("tiktok")
        let path = "/v2/auth/authorize/"
        #expect(await stage.authorize(path, [.init("client_id", "app")]).status == .badRequest)
        #expect(await stage.authorize(path, [.init("client_key", "app")]).redirectParameters?["code"] != nil)
    }

    @Test func `names the code and its own facts in the callback`() async throws {
        let stage = try Stage("amazon-seller")
        let answer = await stage.authorize("/apps/authorize/consent", [.init("client_id", "app")])
        #expect(answer.redirectParameters?["spapi_oauth_code"] != nil && answer.redirectParameters?["code"] == nil)
        #expect(answer.redirectParameters?["selling_partner_id"] == "selling_partner_id-1")
        #expect(answer.redirectParameters?["iss"] == nil)
    }

    @Test func `renews an access token by itself, once it is old enough`() async throws {
        let stage = try Stage("instagram")
        let session = try #require(stage.provider.openSessions(users: ["alice"])?.first)
        #expect(session.refreshToken == nil)
        let query = [Pair("grant_type", "ig_refresh_token"), Pair("access_token", session.accessToken)]
        let driver = ProviderDriver(stage.provider)
        #expect(await driver.get("/refresh_access_token", query).status == .badRequest)
        let exchange = [
            Pair("grant_type", "ig_exchange_token"), Pair("client_secret", "s3cret"),
            Pair("access_token", session.accessToken),
        ]
        let long = try #require(await driver.get("/access_token", exchange).json)
        #expect(long["expires_in"]?.integer == 5_184_000)
        let wrong = exchange.map { $0.name == "client_secret" ? Pair("client_secret", "other") : $0 }
        #expect(await driver.get("/access_token", wrong).status == .unauthorized)
        let token = try #require(long["access_token"]?.text)
        stage.provider.advance(by: .seconds(86_400))
        let renewed = await driver.get(
            "/refresh_access_token", [.init("grant_type", "ig_refresh_token"), .init("access_token", token)])
        #expect(renewed.status == .ok && renewed.json?["access_token"]?.text != token)
        stage.provider.revokeAll(userID: ProviderUser("alice").id)
        let dead = await driver.get(
            "/refresh_access_token", [.init("grant_type", "ig_refresh_token"), .init("access_token", token)])
        #expect(dead.json?["error"]?["code"]?.integer == 190, "\(dead.text)")
    }

    @Test func `revokes as its document says`() async throws {
        let slack = try Stage("slack")
        let first = try #require(slack.provider.openSessions(users: ["alice"])?.first)
        let answer = await slack.post(
            "/api/auth.revoke", [], fields: ["Authorization": "Bearer " + first.accessToken])
        #expect(answer.status == .ok && slack.provider.introspect(accessToken: first.accessToken) == nil)

        let github = try Stage("github")
        let second = try #require(github.provider.openSessions(users: ["alice"])?.first)
        let deleted = await github.provider.respond(
            to: Request(
                method: .delete, path: "/applications/app/token",
                fields: ["Content-Type": "application/json", "Authorization": Stage.basic],
                body: Array(#"{"access_token": "\#(second.accessToken)"}"#.utf8)))
        #expect(deleted.status == .ok && github.provider.introspect(accessToken: second.accessToken) == nil)
    }

    @Test func `says when tokens end only where they do`() async throws {
        for (refresh, expiresIn) in [(true, Int64(3600)), (false, nil)] as [(Bool, Int64?)] {
            let stage = try Stage("github") { $0.issuesRefreshTokens = refresh }
            let code = try await stage.code("/login/oauth/authorize", [.init("client_id", "app")] + Self.pkce)
            let answer = await stage.post(
                "/login/oauth/access_token",
                [
                    .init("grant_type", "authorization_code"), .init("code", code),
                    .init("redirect_uri", stage.redirectURI), .init("code_verifier", ProviderDriver.verifier),
                    .init("client_id", "app"), .init("client_secret", "s3cret"),
                ])
            #expect(answer.json?["expires_in"]?.integer == expiresIn, "\(answer.text)")
            #expect((answer.json?["refresh_token"]?.text != nil) == refresh)
        }
    }

    @Test(
        arguments: [
            ("google", "/token", false, nil, true), ("google", "/token", true, nil, true),
            ("google", "/token", true, .login, false), ("linkedin", "/oauth/v2/accessToken", false, nil, false),
        ] as [(String, String, Bool, RefreshTokenLifetimeStart?, Bool)])
    func `prolongs the life of a refresh token by its use, unless it is fixed`(
        name: String, path: String, rotates: Bool, start: RefreshTokenLifetimeStart?, isProlonged: Bool
    ) async throws {
        let stage = try Stage(name) { configuration in
            if rotates { configuration.rotation = .rotate(grace: .zero) }
            if let start { configuration.refreshTokenLifetimeStart = start }
        }
        func refresh(_ token: String) async -> Response {
            await stage.post(
                path,
                [
                    .init("grant_type", "refresh_token"), .init("refresh_token", token), .init("client_id", "app"),
                    .init("client_secret", "s3cret"),
                ])
        }
        let lifetime = try #require(stage.provider.configuration.refreshTokenLifetime)
        let issued = try #require(stage.provider.openSessions(users: ["alice"])?.first?.refreshToken)
        stage.provider.advance(by: lifetime - .seconds(1))
        let first = await refresh(issued)
        #expect(first.status == .ok, "\(first.text)")
        let next = first.json?["refresh_token"]?.text
        #expect((next != nil) == rotates)
        stage.provider.advance(by: lifetime - .seconds(1))
        let second = await refresh(next ?? issued)
        #expect((second.status == .ok) == isProlonged, "\(second.text)")
        stage.provider.advance(by: lifetime)
        let third = await refresh(second.json?["refresh_token"]?.text ?? next ?? issued)
        #expect(third.status == .badRequest, "\(third.text)")
    }

    @Test func `names the nonce that the next proof needs`() async throws {
        let stage = try Stage("oidc") { ($0.boundTokens, $0.proofNonce) = (.required, "n-1") }
        let key = try DPoPKey.generate()
        let uri = WireText(stage.provider.configuration.baseURL.description + "/token")
        let now = Timestamp(milliseconds: stage.clock.milliseconds)
        func refuse(_ nonce: WireText?) async throws -> Response {
            let proof = try key.sign(DPoPProof("POST", uri, nonce: nonce, at: now)).text
            return await stage.post(
                "/token", [.init("grant_type", "refresh_token"), .init("refresh_token", "dead")],
                fields: ["Authorization": Stage.basic, "DPoP": proof])
        }
        let without = try await refuse(nil)
        #expect(without.status == .badRequest && without.json?["error"]?.text == "use_dpop_nonce")
        #expect(without.fields["DPoP-Nonce"] == "n-1")
        let with = try await refuse("n-1")
        #expect(with.json?["error"]?.text == "invalid_grant", "\(with.text)")
        #expect(with.fields["DPoP-Nonce"] == nil)
    }

    @Test func `has the faults of all profiles`() async throws {
        let stage = try Stage("notion")
        stage.provider.script(Fault(.token, grant: .refreshToken, status: .serviceUnavailable))
        let answer = await ProviderDriver(stage.provider).post(
            "/v1/oauth/token", body: #"{"grant_type": "refresh_token", "refresh_token": "r"}"#,
            fields: ["Content-Type": "application/json"])
        #expect(answer.status == .serviceUnavailable)
        #expect(stage.provider.counters.requests(GrantType.refreshToken) == 1)
        let record = try #require(stage.provider.requests.last)
        #expect(record.parameters["refresh_token"]?.hasPrefix("sha256:") == true)
    }

    // MARK: The command line

    @Test func `is named on the command line, with values for its addresses`() throws {
        let options = try ProviderOptions(arguments: [
            "--profile", "microsoft", "--parameter", "tenant=acme", "--client", "a:s",
        ])
        let translation = try #require(options.configuration.translation)
        let members = translation.tenant(below: "http://p.test", clientID: "a")
        #expect(members["endpoints"]?["authorization"]?.text == "http://p.test/acme/oauth2/v2.0/authorize")
        #expect(options.configuration.refreshTokenScope == "offline_access")
        #expect(try ProviderOptions(arguments: ["--profile", "list"]).listsProfiles)
        #expect(Set(["tidal", "rfc", "slack", "google"]).isSubset(of: ProviderOptions.profiles))
        #expect(try ProviderOptions(arguments: ["--profile", "github"]).configuration.issuesRefreshTokens)
        let without = try ProviderOptions(arguments: ["--profile", "github", "--no-refresh-tokens"]).configuration
        #expect(!without.issuesRefreshTokens && without.accessTokenLifetime > .seconds(300_000_000))
    }

    @Test(arguments: [
        ["--profile", "static"], ["--profile", "nobody"], ["--parameter", "a=b"],
        ["--parameter", "a=b", "--profile", "slack"], ["--parameter", "domain", "--profile", "github"],
        ["--parameter", "domain=a b", "--profile", "github"], ["--parameter", "a=b", "--profile", "rfc"],
    ])
    func `is refused on the command line with a mistake`(arguments: [String]) {
        let mistake = #expect(throws: ProviderOptions.Mistake.self) { try ProviderOptions(arguments: arguments) }
        #expect(mistake?.description.contains(arguments[0]) == true)
    }
}
