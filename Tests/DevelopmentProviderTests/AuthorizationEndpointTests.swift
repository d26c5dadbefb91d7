import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPServer
import Testing

@Suite struct `Authorization endpoint` {
    @Test func `a login page can be submitted without scripts and is not cached`() async throws {
        let fixture = ProviderFixture()
        let page = await fixture.driver.get(
            "/authorize", fixture.driver.authorizationRequest([.init("scope", "r_usr w_usr"), .init("lang", "de")]))
        #expect(page.status == .ok)
        #expect(page.fields["Content-Type"] == "text/html; charset=utf-8")
        #expect(page.fields["Cache-Control"] == "no-store")
        #expect(page.fields["Referrer-Policy"] == "no-referrer")
        let policy = try #require(page.fields["Content-Security-Policy"]?.text)
        #expect(policy.hasPrefix("default-src 'none';"))
        #expect(policy.contains("frame-ancestors 'none'"))
        #expect(!page.text.contains("<script"))
        #expect(page.text.contains("The App"))
        #expect(page.text.contains("<li>r_usr</li>"))
        #expect(page.text.contains("<label for=\"user\">"))
        #expect(page.text.contains("value=\"approve\""))
        #expect(page.text.contains("value=\"deny\""))
        let form = try #require(ProviderForm(html: page.text))
        #expect(form.action == "/authorize")
        #expect(form.fields.contains(.init("lang", "de")))
        #expect(form.fields.contains(.init("state", "xyz")))
    }

    @Test func `two pages have different nonces`() async {
        let driver = ProviderFixture().driver
        let first = await driver.get("/authorize", driver.authorizationRequest())
        let second = await driver.get("/authorize", driver.authorizationRequest())
        #expect(first.fields["Content-Security-Policy"] != second.fields["Content-Security-Policy"])
    }

    @Test func `request parameters are escaped on the page and are submitted unchanged`() async throws {
        let hostile = "\"><script>alert('1')</script>&amp;\r\n"
        let driver = ProviderFixture(clients: [ProviderClient("app", name: hostile)]).driver
        let page = await driver.get(
            "/authorize",
            driver.authorizationRequest([.init("state", hostile), .init("email", hostile), .init(hostile, hostile)]))
        #expect(page.status == .ok)
        #expect(!page.text.contains("<script"))
        let form = try #require(ProviderForm(html: page.text))
        #expect(form.fields.contains(.init("state", hostile)))
        #expect(form.fields.contains(.init(hostile, hostile)))
        let answer = await driver.decide("approve", [.init("state", hostile)])
        #expect(answer.redirectParameters?["state"] == hostile)
    }

    @Test func `TIDAL's redirect has the state and TIDAL's own parameters`() async throws {
        let driver = ProviderFixture().driver
        let answer = await driver.decide("approve", [.init("state", "a b&c"), .init("appMode", "ios")])
        #expect(answer.status == .found)
        #expect(answer.fields["Cache-Control"] == "no-store")
        let parameters = try #require(answer.redirectParameters)
        #expect(Set(parameters.keys) == ["code", "state", "lang", "appMode"])
        #expect(parameters["state"] == "a b&c")
        #expect(parameters["lang"] == "en")
        #expect(parameters["appMode"] == "ios")
    }

    @Test func `the RFC profile's redirect names its issuer`() async throws {
        let fixture = ProviderFixture(.rfc)
        let parameters = try #require(await fixture.driver.decide().redirectParameters)
        #expect(Set(parameters.keys) == ["code", "state", "iss"])
        #expect(parameters["iss"] == "http://127.0.0.1:8181")
        let denied = try #require(await fixture.driver.decide("deny").redirectParameters)
        #expect(denied["iss"] == "http://127.0.0.1:8181")

        fixture.provider.configure { $0.responseIssuer = .other("https://evil.test") }
        #expect(await fixture.driver.decide().redirectParameters?["iss"] == "https://evil.test")
        fixture.provider.configure { $0.responseIssuer = .absent }
        #expect(await fixture.driver.decide().redirectParameters.map { $0["iss"] == nil } == true)
    }

    @Test func `a redirect URI keeps its query`() async throws {
        var fixture = ProviderFixture()
        fixture.driver.redirectURI = "https://broker.test/cb?tenant=1"
        let location = try #require(await fixture.driver.decide().fields["Location"]?.text)
        #expect(location.hasPrefix("https://broker.test/cb?tenant=1&code="))
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `a denial goes to the redirect URI with the state`(profile: ProviderProfile) async throws {
        let fixture = ProviderFixture(profile)
        let answer = await fixture.driver.decide("deny", user: "")
        #expect(answer.status == .found)
        let parameters = try #require(answer.redirectParameters)
        #expect(parameters["error"] == "access_denied")
        #expect(parameters["state"] == "xyz")
        #expect(parameters["code"] == nil)
        #expect(fixture.provider.requests.last?.error == "access_denied")
    }

    @Test(arguments: [
        ("", 400), (" \t", 400), ("a", 302), (String(repeating: "u", count: 100), 302),
        (String(repeating: "u", count: 101), 400),
    ])
    func `a user name has 1 to 100 characters`(user: String, status: Int) async {
        let answer = await ProviderFixture().driver.decide(user: user)
        #expect(answer.status.code == status)
        if status == 400 {
            #expect(answer.text.contains("role=\"alert\""))
            #expect(ProviderForm(html: answer.text) != nil)
        }
    }

    @Test(arguments: ["", "maybe"])
    func `a submission without a decision is asked again`(decision: String) async {
        let answer = await ProviderFixture().driver.decide(decision)
        #expect(answer.status == .badRequest)
        #expect(answer.text.contains("Choose Approve or Deny."))
    }

    // MARK: Requests that go nowhere

    @Test(arguments: ProviderProfile.withLoginPage)
    func `an unknown client is reported to the user and not to the redirect URI`(profile: ProviderProfile) async {
        let driver = ProviderFixture(profile).driver
        for id in ["", "nobody"] {
            let answer = await driver.get("/authorize", driver.authorizationRequest([.init("client_id", id)]))
            #expect(answer.status == .badRequest)
            #expect(answer.fields["Location"] == nil)
            #expect(answer.fields["Content-Type"] == "text/html; charset=utf-8")
        }
    }

    @Test(arguments: [
        "", "/relative", "callback", "javascript:alert(1)", "JavaScript:alert(1)", "data:text/html,x",
        "https://a.test/#f",
        "https://a.test/\r\nSet-Cookie: a=b", "https://a.test/ b", "https://a.test/é", "://a.test", "1http://a.test",
    ])
    func `an unsafe redirect URI is not used`(uri: String) async {
        let driver = ProviderFixture().driver
        let answer = await driver.get("/authorize", driver.authorizationRequest([.init("redirect_uri", uri)]))
        #expect(answer.status == .badRequest)
        #expect(answer.fields["Location"] == nil)
    }

    @Test(arguments: [
        ("https://broker.test/cb", true), ("app.example:/cb", true), ("https://broker.test/cb/", false),
        ("https://broker.test/cb?a", false), ("https://broker.test/CB", false), ("https://evil.test/cb", false),
        ("https://broker.test.evil.test/cb", false), ("https://broker.test@evil.test/cb", false),
    ])
    func `registered redirect URIs are compared exactly`(uri: String, works: Bool) async {
        let client = ProviderClient("app", redirectURIs: ["https://broker.test/cb", "app.example:/cb"])
        var driver = ProviderFixture(clients: [client]).driver
        driver.redirectURI = uri
        #expect(await driver.decide().status.code == (works ? 302 : 400))
    }

    @Test(arguments: ["client_id", "redirect_uri"])
    func `a repeated client or redirect URI is not used`(name: String) async {
        let driver = ProviderFixture().driver
        let answer = await driver.get("/authorize", driver.authorizationRequest() + [.init(name, "https://evil.test/")])
        #expect(answer.status == .badRequest)
        #expect(answer.fields["Location"] == nil)
    }

    // MARK: Requests that are refused

    @Test(arguments: [
        ("response_type", "", "invalid_request"), ("response_type", "token", "unsupported_response_type"),
        ("response_type", "code token", "unsupported_response_type"), ("code_challenge", "", "invalid_request"),
        ("code_challenge_method", "", "invalid_request"), ("code_challenge_method", "plain", "invalid_request"),
        ("code_challenge", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-c", "invalid_request"),
        ("code_challenge", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cMM", "invalid_request"),
        ("code_challenge", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw+cM", "invalid_request"),
        ("scope", "r_usr admin", "invalid_scope"), ("scope", "r\u{7f}", "invalid_scope"),
    ])
    func `a faulty request is redirected with its error`(name: String, value: String, error: String) async throws {
        let fixture = ProviderFixture(.rfc, clients: [ProviderClient("app", scopes: ["r_usr", "w_usr"])])
        let answer = await fixture.driver.get(
            "/authorize", fixture.driver.authorizationRequest([.init(name, value)]))
        #expect(answer.status == .found)
        let parameters = try #require(answer.redirectParameters)
        #expect(parameters["error"] == error)
        #expect(parameters["state"] == "xyz")
        #expect(parameters["iss"] == "http://127.0.0.1:8181")
        #expect(parameters["code"] == nil)
        #expect(fixture.provider.requests.last?.error == error)
    }

    @Test func `a changed form is checked like the request`() async throws {
        let driver = ProviderFixture().driver
        var pairs = driver.authorizationRequest([.init("code_challenge_method", "plain")])
        pairs += [.init("user", "alice"), .init("decision", "approve")]
        let answer = await driver.post("/authorize", pairs)
        #expect(answer.redirectParameters?["error"] == "invalid_request")
    }

    @Test func `a repeated state is omitted from the redirect`() async throws {
        let driver = ProviderFixture(.rfc).driver
        let answer = await driver.get("/authorize", driver.authorizationRequest() + [.init("state", "other")])
        let parameters = try #require(answer.redirectParameters)
        #expect(parameters["error"] == "invalid_request")
        #expect(parameters["state"] == nil)
    }

    @Test func `TIDAL accepts a missing response_type and equal repetitions`() async throws {
        let driver = ProviderFixture().driver
        let page = await driver.get(
            "/authorize", driver.authorizationRequest([.init("response_type", "")]) + [.init("client_id", "app")])
        #expect(page.status == .ok)
        let refused = await driver.get(
            "/authorize", driver.authorizationRequest() + [.init("scope", "a"), .init("scope", "b")])
        #expect(refused.redirectParameters?["error"] == "invalid_request")
    }

    @Test func `a malformed query is refused on a page`() async {
        let driver = ProviderFixture().driver
        let answer = await driver.provider.respond(
            to: Request(method: .get, path: "/authorize", query: "client_id=%zz"))
        #expect(answer.status == .badRequest)
        #expect(answer.fields["Location"] == nil)
    }

    @Test func `HEAD is answered like GET`() async {
        let driver = ProviderFixture(.rfc).driver
        let query = FormEncoding.encode(driver.authorizationRequest())
        let page = await driver.provider.respond(to: Request(method: .head, path: "/authorize", query: query))
        #expect(page.status == .ok)
        let metadata = Request(method: .head, path: "/.well-known/oauth-authorization-server")
        #expect(await driver.provider.respond(to: metadata).status == .ok)
    }

    @Test(arguments: [(Method.put, "GET, POST"), (.delete, "GET, POST")])
    func `other methods are refused`(method: Method, allowed: String) async {
        let answer = await ProviderFixture().provider.respond(to: Request(method: method, path: "/authorize"))
        #expect(answer.status == .methodNotAllowed)
        #expect(answer.fields["Allow"] == allowed)
    }
}
