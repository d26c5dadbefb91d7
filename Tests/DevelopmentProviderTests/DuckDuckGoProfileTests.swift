import BrokerTesting
import Cryptography
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPServer
import JOSE
import JSON
import Testing

@Suite struct `DuckDuckGo profile` {
    private let fixture = ProviderFixture(.duckduckgo, clients: [ProviderClient("app"), ProviderClient("other")])
    private var driver: AccountDriver { AccountDriver(fixture.provider) }
    private static let challenge = Base64URL.encode(SHA256.digest(Array(AccountDriver.verifier.utf8)))

    /// The tokens of a new account.
    private func account() async throws -> (access: String, refresh: String, code: String) {
        let cookie = try #require(await driver.session(challenge: Self.challenge))
        let created = await driver.post("/account/create", cookie: cookie)
        #expect(created.status == .found)
        let code = try #require(created.redirectParameters?["code"])
        let tokens = try #require(await driver.redeem(code, verifier: AccountDriver.verifier).json)
        return (try #require(tokens["access_token"]?.text), try #require(tokens["refresh_token"]?.text), code)
    }

    private func expect(
        _ response: Response, _ error: String, status: Int = 400, code: Int64? = nil,
        sourceLocation: SourceLocation = #_sourceLocation
    ) {
        #expect(response.status.code == status, sourceLocation: sourceLocation)
        #expect(response.json?["error"]?.string == WireText(error), sourceLocation: sourceLocation)
        #expect(response.json?["error_code"]?.integer == code, sourceLocation: sourceLocation)
    }

    /// The claims of a token whose signature verifies with the published keys.
    private func claims(_ token: String) async throws -> ClaimsSet {
        let keys = try JSONWebKeySet(parsing: await driver.get("/.well-known/jwks.json", []).body)
        return try CompactJWS(parsing: WireText(token), policy: JWSPolicy(algorithms: [.es256])).verified(with: keys)
            .claims()
    }

    // MARK: Logins

    @Test func `a new account is authorized, created and given signed tokens`() async throws {
        let authorized = await driver.authorize(challenge: Self.challenge)
        #expect(authorized.status == .found)
        let cookie = try #require(authorized.fields["Set-Cookie"])
        #expect(cookie.starts(with: "ddg_auth_session_id="))
        #expect(cookie.text.hasSuffix("; Path=/; HttpOnly; SameSite=Strict"))
        let created = await driver.post("/account/create", cookie: cookie.split(at: ";", limit: 2)[0].text)
        let location = try #require(created.fields["Location"])
        #expect(location.starts(with: "com.duckduckgo:/authcb?code="))
        let code = try #require(created.redirectParameters?["code"])
        #expect(code.utf8.count == 86)
        let response = await driver.redeem(code, verifier: AccountDriver.verifier)
        let members = try #require(response.json?.object)
        #expect(Set(members.keys) == ["access_token", "refresh_token", "expires_in", "token_type"])
        #expect(members["expires_in"] == .integer(14_400))

        let now = fixture.provider.now / 1000
        let access = try await claims(try #require(members["access_token"]?.text))
        #expect(access.issuer == "http://127.0.0.1:8181")
        #expect(access.audience == ["PrivacyPro"])
        #expect(access.members["scope"]?.string == "privacypro")
        #expect(access.members["api"]?.string == "v2")
        #expect(access.members["email"] == .null)
        #expect(access.members["entitlements"]?.array?.first?["name"]?.string == "subscriber")
        #expect(access.issuedAt?.wholeSeconds == now)
        #expect(access.expiry?.wholeSeconds == now + 14_400)
        let refresh = try await claims(try #require(members["refresh_token"]?.text))
        #expect(refresh.audience == ["Auth"])
        #expect(refresh.members["scope"]?.string == "refresh")
        #expect(refresh.expiry?.wholeSeconds == now + 2_592_000)
        #expect(refresh.subject == access.subject)
        let grants = [access, refresh].map { $0.members["jti"]?.string?.split(at: ":", limit: 2)[0] }
        #expect(grants[0] == grants[1])
    }

    @Test func `a platform signature logs in to the account that it names`() async throws {
        fixture.provider.setAccount("alice@duck.test", to: .active)
        let cookie = try #require(await driver.session(challenge: Self.challenge))
        let code = try #require(
            await driver.logIn(cookie, signature: "alice@duck.test").redirectParameters?["code"])
        let tokens = await driver.redeem(code, verifier: AccountDriver.verifier).json
        let claims = try await claims(try #require(tokens?["access_token"]?.text))
        #expect(claims.members["email"]?.string == "alice@duck.test")
    }

    @Test func `a password for one use logs in to the account with the email address`() async throws {
        fixture.provider.setAccount("alice@duck.test", to: .active)
        let cookie = try #require(await driver.session(challenge: Self.challenge))
        func logIn(_ password: String, _ email: String = "alice@duck.test") async -> Response {
            await driver.post(
                "/login", cookie: cookie, json: #"{"method":"otp","email":"\#(email)","otp":"\#(password)"}"#)
        }
        expect(await logIn("123456"), "invalid_login_credentials")
        #expect(await driver.post("/otp", query: "email=alice%40duck.test", cookie: cookie).status == .ok)
        expect(await logIn("123457"), "invalid_login_credentials")
        expect(await logIn("123456", "bob@duck.test"), "invalid_login_credentials")
        #expect(await logIn("123456").status == .found)
    }

    @Test(arguments: [
        "", "email=", "email=alice", "email=a@b@c", "email=a@", "email=%20a@b", "email=a@b&email=a@b",
    ])
    func `a password is sent to an email address only`(query: String) async throws {
        let cookie = try #require(await driver.session(challenge: Self.challenge))
        expect(await driver.post("/otp", query: query, cookie: cookie), "invalid_email_address")
    }

    @Test(arguments: [
        (AccountState.suspended, "suspended_account"), (.unverified, "unverified_account"),
        (.removed, "unknown_account"),
    ])
    func `an account that is not active is told by name`(state: AccountState, error: String) async throws {
        fixture.provider.setAccount("alice", to: state)
        let cookie = try #require(await driver.session(challenge: Self.challenge))
        expect(await driver.logIn(cookie, signature: "alice"), error)
    }

    @Test(arguments: [
        nil, "{", "[]", "{}", #"{"method":"password"}"#, #"{"method":"signature","source":"apple_app_store"}"#,
        #"{"method":"signature","signature":"","source":"apple_app_store"}"#,
        #"{"method":"signature","signature":1,"source":"apple_app_store"}"#,
        #"{"method":"signature","signature":"alice"}"#, #"{"method":"otp","email":"a@b"}"#,
    ])
    func `a login without its parameters is refused`(json: String?) async throws {
        fixture.provider.setAccount("alice", to: .active)
        let cookie = try #require(await driver.session(challenge: Self.challenge))
        expect(await driver.post("/login", cookie: cookie, json: json), "invalid_login_credentials")
    }

    @Test(arguments: [
        [FormEncoding.Pair("response_type", "")], [.init("response_type", "token")], [.init("code_challenge", "")],
        [.init("code_challenge", "short")], [.init("code_challenge_method", "plain")], [.init("client_id", "nobody")],
        [.init("redirect_uri", "")], [.init("scope", "")], [.init("scope", "privacypro other")],
    ])
    func `an authorization request that is not exact is refused`(changes: [FormEncoding.Pair]) async {
        expect(
            await driver.authorize(challenge: Self.challenge, changes), "invalid_authorization_request")
    }

    // D31
    @Test func `a code challenge opens one session only`() async {
        #expect(await driver.session(challenge: Self.challenge) != nil)
        expect(await driver.authorize(challenge: Self.challenge), "authorize_failed")
    }

    @Test(arguments: [
        nil, "", "ddg_auth_session_id=", "ddg_auth_session_id=unknown", "other=1",
        "ddg_auth_session_id=a; ddg_auth_session_id=b",
    ])
    func `a session cookie that is missing or unknown is refused`(cookie: String?) async {
        expect(await driver.post("/account/create", cookie: cookie), "invalid_request")
        expect(await driver.post("/otp", query: "email=a@b", cookie: cookie), "invalid_session_id")
        expect(await driver.post("/login", cookie: cookie), "invalid_session_id")
    }

    @Test(arguments: [(59, true), (60, false), (61, false)])
    func `a session lasts as long as a code`(seconds: Int, works: Bool) async throws {
        let cookie = try #require(await driver.session(challenge: Self.challenge))
        fixture.provider.advance(by: .seconds(seconds))
        #expect((await driver.post("/account/create", cookie: cookie).status == .found) == works)
    }

    @Test func `a session that is used again ends the login that it led to`() async throws {
        fixture.provider.setAccount("alice", to: .active)
        let cookie = try #require(await driver.session(challenge: Self.challenge))
        let code = try #require(await driver.logIn(cookie, signature: "alice").redirectParameters?["code"])
        let tokens = await driver.redeem(code, verifier: AccountDriver.verifier).json
        expect(await driver.post("/account/create", cookie: cookie), "invalid_request")
        expect(await driver.logIn(cookie, signature: "alice"), "invalid_session_id")
        expect(
            await driver.refresh(try #require(tokens?["refresh_token"]?.text)), "invalid_token_request", code: 4)
    }

    // MARK: Tokens

    @Test(arguments: [
        (42, false), (43, true), (128, true), (171, true), (172, false),
    ])
    func `a code verifier has 43 to 171 characters`(count: Int, works: Bool) async throws {
        let verifier = String(repeating: "v", count: count)
        let challenge = Base64URL.encode(SHA256.digest(Array(verifier.utf8)))
        let cookie = try #require(await driver.session(challenge: challenge))
        let code = try #require(
            await driver.post("/account/create", cookie: cookie).redirectParameters?["code"])
        let response = await driver.redeem(code, verifier: verifier)
        #expect((response.status == .ok) == works)
        if !works { expect(response, "invalid_token_request", code: 0) }
    }

    @Test func `a code that is used again is fraud`() async throws {
        let account = try await account()
        expect(await driver.redeem(account.code, verifier: AccountDriver.verifier), "invalid_token_request", code: 4)
        expect(await driver.refresh(account.refresh), "invalid_token_request", code: 4)
        #expect(fixture.provider.introspect(accessToken: account.access) == nil)
    }

    @Test(arguments: [(3599, true), (3600, false), (3601, false)])
    func `a refresh token may be used again within an hour`(seconds: Int, works: Bool) async throws {
        let account = try await account()
        let first = try #require(await driver.refresh(account.refresh).json)
        // The successor's use does not shorten the hour.
        let successor = try #require(first["refresh_token"]?.text)
        let second = try #require(await driver.refresh(successor).json)
        fixture.provider.advance(by: .seconds(seconds))
        let again = await driver.refresh(account.refresh)
        func isActive(_ tokens: JSONValue) throws -> Bool {
            fixture.provider.introspect(accessToken: try #require(tokens["access_token"]?.text)) != nil
        }
        if works {
            #expect(again.status == .ok)
            #expect(try !isActive(first), "the second use ends what the first one issued")
            #expect(try isActive(second))
        } else {
            expect(again, "invalid_token_request", code: 2)
            #expect(try !isActive(second), "reuse ends the whole session")
        }
    }

    @Test(arguments: [(2_591_999, true), (2_592_000, false), (2_592_001, false)])
    func `a refresh token lives for thirty days`(seconds: Int, works: Bool) async throws {
        let account = try await account()
        fixture.provider.advance(by: .seconds(seconds))
        let response = await driver.refresh(account.refresh)
        #expect((response.status == .ok) == works)
        if !works { expect(response, "invalid_token_request", code: 1) }
    }

    @Test func `a token request that is wrong has the status invalid`() async throws {
        let account = try await account()
        expect(await driver.refresh("unknown"), "invalid_token_request", code: 0)
        expect(await driver.get("/token", []), "invalid_token_request", code: 0)
        expect(await driver.get("/token", [.init("grant_type", "password")]), "invalid_token_request", code: 0)
        var other = driver
        other.clientID = "other"
        expect(await other.refresh(account.refresh), "invalid_token_request", code: 0)
    }

    @Test(
        arguments: [
            (AccountState.active, nil, nil), (.suspended, "invalid_token_request", 0),
            (.removed, "unknown_account", nil),
        ] as [(AccountState, String?, Int64?)])
    func `a refresh looks at the account`(state: AccountState, error: String?, code: Int64?) async throws {
        let account = try await account()
        fixture.provider.setAccount("account-1", to: state)
        let response = await driver.refresh(account.refresh)
        if let error { expect(response, error, code: code) } else { #expect(response.status == .ok) }
    }

    @Test func `a logout ends the session`() async throws {
        let account = try await account()
        let response = await driver.post("/logout", bearer: account.access)
        #expect(response.status == .ok)
        #expect(response.json?["status"]?.string == "logged_out")
        expect(await driver.refresh(account.refresh), "invalid_token_request", code: 3)
        expect(await driver.post("/logout", bearer: account.access), "invalid_token", status: 401)
    }

    @Test func `a logout needs a token that is alive`() async throws {
        let account = try await account()
        expect(await driver.post("/logout"), "invalid_token", status: 401)
        expect(await driver.post("/logout", bearer: account.refresh), "invalid_token", status: 401)
        fixture.provider.advance(by: .seconds(14_400))
        expect(await driver.post("/logout", bearer: account.access), "expired_token", status: 401)
    }

    @Test(arguments: ["/link", "/token", "/revoke", "/jwks", "/.well-known/openid-configuration"])
    func `there are no endpoints of other profiles`(path: String) async {
        #expect(await fixture.provider.respond(to: Request(method: .get, path: path)).status == .notFound)
    }

    @Test(arguments: [
        (Method.post, "/authorize", "GET"), (.get, "/account/create", "POST"), (.get, "/login", "POST"),
        (.get, "/logout", "POST"), (.put, "/token", "GET, POST"), (.post, "/.well-known/jwks.json", "GET"),
    ])
    func `another method is refused`(method: Method, path: String, allowed: String) async {
        let response = await fixture.provider.respond(to: Request(method: method, path: "/api/auth/v2" + path))
        #expect(response.status == .methodNotAllowed)
        #expect(response.fields["Allow"] == WireText(allowed))
    }

    @Test func `a session of the control interface has an account`() async throws {
        let opened = try #require(fixture.provider.openSessions(users: ["alice"])?.first)
        #expect(await driver.refresh(try #require(opened.refreshToken)).status == .ok)
    }
}
