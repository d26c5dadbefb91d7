import BrokerTesting
import DevelopmentProvider
import ExternalText
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
            try await browser.waitForAddress(brokerURL + "/login/ended/")
            #expect(try await browser.address() == "\(brokerURL)/login/ended/t1/\(login.id)")
            try await browser.keepScreenshot("login-completed")
            #expect(try await browser.status() == 200)
            #expect(try await browser.title() == "You are logged in")
            #expect(
                try await browser.text(of: "body") == """
                    Acme Music · TIDAL
                    You are logged in
                    The login is complete. You can close this page.
                    Reference: \(login.id.prefix(8))
                    """)
            // A reload repeats nothing.
            try await browser.open(try await browser.address())
            #expect(try await browser.status() == 200)

            let credentials = try await broker.call(.get, "/credentials", tenant: "t1")
            #expect(credentials.status == 200, "\(credentials.text)")
            #expect(credentials.json["level"]?.string == "user")
            let token = try #require(credentials.json["token"]?.text)
            try await Self.expectNoSecrets(in: browser, token: token, login: login)
        }
    }

    // H031 H032
    @Test func `is refused in another browser than the one it began in, which then finishes it`() async throws {
        try await Self.run { broker, brokerURL, driver async throws in
            let login = try await Self.begin(broker)
            let first = try await driver.openBrowser()
            try await first.open(login.startURI)
            let page = try await first.address()
            let second = try await driver.openBrowser()
            try await second.open(page)
            try await Self.approve(in: second)
            try await second.waitForAddress(brokerURL + "/login/ended/")
            try await second.keepScreenshot("login-in-another-browser")
            #expect(try await second.status() == 403)
            #expect(try await second.title() == "This login was started in another browser")
            #expect(
                try await second.text(of: "body") == """
                    Acme Music · TIDAL
                    This login was started in another browser
                    Please begin again in the browser in which you started, and stay in it until the login is done.
                    Reference: \(login.id.prefix(8))
                    """)
            #expect(try await broker.call(.get, "/login/\(login.id)", tenant: "t1").json["status"]?.string == "pending")
            try await Self.expectNoSecrets(in: second, token: nil, login: login)

            // What the page asks for.
            try await Self.approve(in: first)
            try await first.waitForAddress(brokerURL + "/login/ended/")
            #expect(try await first.status() == 200)
            #expect(try await first.title() == "You are logged in")
            let credentials = try await broker.call(.get, "/credentials", tenant: "t1")
            #expect(credentials.json["level"]?.string == "user", "\(credentials.text)")
            let token = try #require(credentials.json["token"]?.text)
            try await Self.expectNoSecrets(in: first, token: token, login: login)
        }
    }

    @Test func `goes on in a second browser once its user presses the button, and then only there`() async throws {
        try await Self.run { broker, brokerURL, driver async throws in
            let login = try await Self.begin(broker)
            let first = try await driver.openBrowser()
            try await first.open(login.startURI)
            let second = try await driver.openBrowser()
            try await second.open(login.startURI)
            #expect(try await second.address() == login.startURI)
            try await second.keepScreenshot("login-second-browser")
            #expect(try await second.status() == 200)
            #expect(
                try await second.text(of: "body") == """
                    Acme Music · TIDAL
                    Continue in this browser?
                    Acme Music asks you to log in at TIDAL, for the account default.
                    This login was opened in another browser before. Continue here only if you began it yourself: the \
                    other browser cannot finish it then.
                    Continue in this browser
                    Reference: \(login.id.prefix(8))
                    """)
            #expect(try await second.evaluate("document.activeElement.value").string == "continue")
            try await second.click("button[value=continue]")
            try await second.waitForAddress("http://localhost:")
            try await Self.approve(in: first)
            try await first.waitForAddress(brokerURL + "/login/ended/")
            #expect(try await first.status() == 403)
            try await Self.approve(in: second)
            try await second.waitForAddress(brokerURL + "/login/ended/")
            #expect(try await second.status() == 200)
            let credentials = try await broker.call(.get, "/credentials", tenant: "t1")
            let token = try #require(credentials.json["token"]?.text)
            try await Self.expectNoSecrets(in: second, token: token, login: login)
        }
    }

    @Test(arguments: ["continue", "cancel"])
    func `is confirmed or cancelled on the broker's page where the tenant wants that`(decision: String) async throws {
        try await Self.run(members: #","browser_binding": "confirm""#) {
            broker, brokerURL, driver async throws in
            let login = try await Self.begin(broker)
            let browser = try await driver.openBrowser()
            try await browser.open(login.uri)
            try await Self.approve(in: browser)
            try await browser.waitForAddress(brokerURL + "/login/confirm/")
            #expect(try await browser.address() == "\(brokerURL)/login/confirm/t1/\(login.id)")
            try await browser.keepScreenshot("login-confirm")
            #expect(
                try await browser.text(of: "body") == """
                    Acme Music · TIDAL
                    Did you begin this login?
                    Acme Music asks for access to your account at TIDAL, and keeps it as the account default.
                    Continue only if you began this login yourself.
                    Continue
                    No, cancel
                    Reference: \(login.id.prefix(8))
                    """)
            #expect(try await broker.call(.get, "/login/\(login.id)", tenant: "t1").json["status"]?.string == "pending")
            #expect(try await broker.call(.get, "/credentials", tenant: "t1").json["level"]?.string == "basic")
            try await Self.expectNoSecrets(in: browser, token: nil, login: login)
            try await browser.click("button[value=\(decision)]")
            try await browser.waitForAddress(brokerURL + "/login/ended/")
            try await browser.keepScreenshot("login-confirmed-\(decision)")
            #expect(try await browser.status() == (decision == "continue" ? 200 : 400))
            let level = try await broker.call(.get, "/credentials", tenant: "t1").json["level"]?.text
            #expect(level == (decision == "continue" ? "user" : "basic"))
        }
    }

    /// The `return_to` is of another site than the page whose button leads there.
    @Test func `goes on to another site after a button`() async throws {
        let site = try RunningProvider(ProviderConfiguration(profile: .tidal, clients: []))
        let returnTo = "http://localhost:\(site.address.port)/done"
        try await Self.run(members: #","browser_binding": "confirm", "allowed_return_uris": ["\#(returnTo)"]"#) {
            broker, brokerURL, driver async throws in
            let login = try await Self.begin(broker, #"{"return_to": "\#(returnTo)"}"#)
            let browser = try await driver.openBrowser()
            try await browser.open(login.uri)
            try await Self.approve(in: browser)
            try await browser.waitForAddress(brokerURL + "/login/confirm/")
            try await browser.click("button[value=continue]")
            try await browser.waitForAddress(returnTo)
            #expect(try await browser.address() == returnTo + "?login=completed")
        }
        await site.close()
    }

    // MARK: Steps

    private struct Login {
        let id: String
        let uri: String
        let startURI: String
        /// The authorization request's.
        let state: String
    }

    /// - Parameter members: more members of the tenant's configuration.
    private static func run(
        members: String = "",
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
                {"client_id": "c1", "scopes": ["r_usr", "w_usr"], "display_name": "Acme Music"\#(members),
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

    private static func begin(_ broker: BrokerClient, _ body: String = "{}") async throws -> Login {
        let answer = try await broker.call(.post, "/login/initialize", tenant: "t1", body: body)
        let uri = try #require(answer.json["login_uri"]?.text, "\(answer.text)")
        return Login(
            id: try #require(answer.json["login_id"]?.text), uri: uri,
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

    /// Looks for secrets in the whole document, in the address bar, and in what scripts of the page could read.
    private static func expectNoSecrets(
        in browser: ChromiumBrowser, token: String?, login: Login
    ) async throws {
        let document = try await browser.document()
        #expect(document.contains("<h1>"))
        let address = try await browser.address()
        for name in ["code=", "state="] { #expect(!address.contains(name)) }
        let cookies = try await browser.cookies()
        for secret in [login.state] + cookies.map(\.value) + (token.map { [$0] } ?? []) {
            #expect(secret.utf8.count > 10)
            #expect(!document.contains(secret))
            #expect(!address.contains(secret))
        }
        #expect(cookies.allSatisfy { $0.isHTTPOnly && $0.sameSite == "Lax" })
        #expect(try await browser.evaluate("document.cookie").string == "")
    }
}
