import BrokerTesting
import DevelopmentProvider
import HTTPCodec
import JSON
import Reactor
import Testing

/// What a user sees of a login: the broker's program, and a Chromium that obeys SameSite, HttpOnly and the pages'
/// Content-Security-Policy. The broker is at 127.0.0.1 and the provider's page at localhost: two sites, as in life.
@Suite(.timeLimit(.minutes(3)))
struct `A login in a real browser` {
    @Test func `ends on the broker's own page and brings a user token`() async throws {
        try await Self.run { broker, brokerURL, driver async throws in
            let login = try await Self.begin(broker)
            let browser = try await driver.openBrowser()
            try await browser.open(login.startURI)
            try await Self.approve(in: browser)
            try await browser.waitForAddress(brokerURL + "/login/callback?")
            try await browser.keepScreenshot("login-completed")
            #expect(try await browser.status() == 200)
            #expect(try await browser.title() == "You are logged in")
            #expect(
                try await browser.text(of: "body")
                    == "You are logged in\nThe login is complete. You can close this page.")

            let credentials = try await broker.call(.get, "/credentials", tenant: "t1")
            #expect(credentials.status == 200, "\(credentials.text)")
            #expect(credentials.json["level"]?.string == "user")
            let token = try #require(credentials.json["token"]?.text)
            try await Self.expectNoSecrets(in: browser, token: token, login: login)
        }
    }

    @Test func `is refused in another browser than the one it began in, which then finishes it`() async throws {
        try await Self.run { broker, brokerURL, driver async throws in
            let login = try await Self.begin(broker)
            let first = try await driver.openBrowser()
            try await first.open(login.startURI)
            let page = try await first.address()
            let second = try await driver.openBrowser()
            try await second.open(page)
            try await Self.approve(in: second)
            try await second.waitForAddress(brokerURL + "/login/callback?")
            try await second.keepScreenshot("login-in-another-browser")
            #expect(try await second.status() == 403)
            #expect(try await second.title() == "This login was started in another browser")
            #expect(
                try await second.text(of: "body") == """
                    This login was started in another browser
                    Please copy this page's address into the browser in which the login began.
                    """)
            #expect(try await broker.call(.get, "/login/\(login.id)", tenant: "t1").json["status"]?.string == "pending")
            try await Self.expectNoSecrets(in: second, token: nil, login: login)

            // What the page asks for.
            try await first.open(try await second.address())
            #expect(try await first.status() == 200)
            #expect(try await first.title() == "You are logged in")
            let credentials = try await broker.call(.get, "/credentials", tenant: "t1")
            #expect(credentials.json["level"]?.string == "user", "\(credentials.text)")
            let token = try #require(credentials.json["token"]?.text)
            try await Self.expectNoSecrets(in: first, token: token, login: login)
        }
    }

    // MARK: Steps

    private struct Login {
        let id: String
        let startURI: String
        /// The authorization request's.
        let state: String
    }

    private static func run(
        _ body: (_ broker: BrokerClient, _ brokerURL: String, _ driver: WebDriver) async throws -> Void
    ) async throws {
        let provider = try RunningProvider(
            ProviderConfiguration(profile: .tidal, clients: [ProviderClient("c1", scopes: ["r_usr", "w_usr"])]))
        let directory = StoreFixtureDirectory()
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(
            port: port, ["DATA_DIR": directory.path, "ALLOW_INSECURE_PROVIDERS": "true"])
        let broker = try BrokerClient(port: port)
        let tenant = try await broker.call(
            .put, "/tenants/t1",
            body: #"""
                {"client_id": "c1", "scopes": ["r_usr", "w_usr"],
                 "login_service_base_uri": "http://localhost:\#(provider.address.port)",
                 "auth_service_base_uri": "\#(provider.baseURL)/v1"}
                """#)
        #expect(tenant.status == 201, "\(tenant.text)")
        let result: Result<Void, any Error>
        do {
            result = .success(try await WebDriver.run { try await body(broker, "http://127.0.0.1:\(port)", $0) })
        } catch {
            result = .failure(error)
        }
        await broker.close()
        #expect(await process.terminate() == 0)
        await provider.close()
        try result.get()
    }

    private static func begin(_ broker: BrokerClient) async throws -> Login {
        let answer = try await broker.call(.post, "/login/initialize", tenant: "t1", body: "{}")
        let uri = try #require(answer.json["login_uri"]?.text, "\(answer.text)")
        return Login(
            id: try #require(answer.json["login_id"]?.text),
            startURI: try #require(answer.json["start_uri"]?.text),
            state: try #require(BrokerHarness.parameters(of: uri)["state"]))
    }

    /// Fills in the provider's form, to which the start address has led.
    private static func approve(in browser: ChromiumBrowser) async throws {
        #expect(try await browser.address().hasPrefix("http://localhost:"))
        #expect(try await browser.text(of: "h1") == "Log in")
        try await browser.type("alice", into: "#user")
        try await browser.click("button[value=approve]")
    }

    /// Looks through the whole document for what nobody who sees it is to learn, and for what its scripts could read.
    private static func expectNoSecrets(
        in browser: ChromiumBrowser, token: String?, login: Login
    ) async throws {
        let document = try await browser.document()
        #expect(document.contains("<h1>"))
        let parameters = BrokerHarness.parameters(of: try await browser.address())
        #expect(parameters["state"] == login.state)
        let cookies = try await browser.cookies()
        let code: String = try #require(parameters["code"])
        for secret in [code, login.state, login.id] + cookies.map(\.value) + (token.map { [$0] } ?? []) {
            #expect(secret.utf8.count > 10)
            #expect(!document.contains(secret))
        }
        #expect(cookies.allSatisfy { $0.isHTTPOnly && $0.sameSite == "Lax" })
        #expect(try await browser.evaluate("document.cookie").string == "")
    }
}
