import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import JSON
import Reactor
import Testing

/// The page on which the user of a public client says whether the app may have what it asks for, as Chromium shows it.
@Suite(.timeLimit(.minutes(3)))
struct `The page that asks for an app` {
    /// Names as registrations may have them, the longest with 100 bytes.
    enum Name: String, CaseIterable {
        case plain = "Player for Android"
        case long =
            "PlayerWithANameWithoutAnyPlaceToBreakItWhichIsAsLongAsANameOfARegisteredAppCanBeInThisBrokerHereAbcd"
        case hostile =
            "</strong><script>document.title='x'</script><img src=x onerror=alert(1)>\u{202E}gnihton 💥 & \"co\""

        var picture: String { "\(self)" }
    }

    // B08
    @Test(arguments: Name.allCases)
    func `is readable in narrow and wide windows, light and dark, whatever the app is called`(name: Name) async throws {
        #expect(name.rawValue.utf8.count <= 100)
        try await Self.run(name: name.rawValue) { page in
            let browser = try await page.open()
            for (shape, width, height) in [("narrow", 320, 640), ("wide", 1280, 720)] as [(String, Int64, Int64)] {
                for isDark in [false, true] {
                    try await browser.show(width: width, height: height, isDark: isDark)
                    try await browser.keepScreenshot(
                        "app-confirm-\(name.picture)-\(shape)-\(isDark ? "dark" : "light")")
                    // Nothing has to be scrolled to the side, and the buttons are on the screen.
                    #expect(try await browser.evaluate("document.documentElement.scrollWidth").integer == width)
                    let bottom = try await browser.evaluate(
                        "Math.ceil(document.querySelector('button[value=cancel]').getBoundingClientRect().bottom)"
                    ).integer
                    #expect((bottom ?? .max) <= height)
                    let colour = try await browser.evaluate("getComputedStyle(document.body).backgroundColor").text
                    #expect(colour == (isDark ? "rgb(22, 22, 22)" : "rgb(255, 255, 255)"))
                }
            }
            #expect(try await browser.title() == "Did you begin this login?")
            // The name is text, all of it, and no markup.
            #expect(
                try await browser.evaluate("document.querySelector('strong bdi').textContent").text == name.rawValue)
            #expect(try await browser.evaluate("document.querySelectorAll('script, img').length").integer == 0)
            let text = try await browser.text(of: "body")
            #expect(text.contains("asks for access to your account at TIDAL, through Acme Music."))
            #expect(text.contains("Continue only if you began this login yourself."))
        }
    }

    // B08
    @Test(arguments: ["continue", "cancel"])
    func `is answered by the keyboard, without scripts`(decision: String) async throws {
        try await Self.run(name: Name.plain.rawValue) { page in
            let browser = try await page.open(withScripts: false)
            // The first button has the focus.
            if decision == "cancel" { try await browser.press(.tab) }
            try await browser.keepScreenshot("app-confirm-keyboard-\(decision)")
            try await browser.press(.enter)
            try await browser.waitForAddress(page.redirectURI)
            let parameters = BrokerHarness.parameters(of: try await browser.address())
            #expect(parameters["state"] == "s")
            guard decision == "continue" else { return #expect(parameters["error"] == "access_denied") }
            let answer = try await page.broker.exchange(
                try #require(parameters["code"]), of: "player", redirectURI: page.redirectURI)
            #expect(answer.status == 200, "\(answer.text)")
        }
    }

    // MARK: Steps

    private struct Page {
        let broker: BrokerClient
        let brokerURL: String
        let driver: WebDriver
        /// Of a site that answers 404 to everything.
        let redirectURI: String

        /// Goes through the login up to the page.
        func open(withScripts: Bool = true) async throws -> ChromiumBrowser {
            let browser = try await driver.openBrowser()
            if !withScripts { try await browser.switchScriptsOff() }
            let query = FormEncoding.encode([
                .init("response_type", "code"), .init("client_id", "player"), .init("redirect_uri", redirectURI),
                .init("state", "s"), .init("code_challenge", ProviderDriver.challenge),
                .init("code_challenge_method", "S256"),
            ])
            try await browser.open(brokerURL + "/oauth2/authorize?" + query)
            try await browser.type("alice", into: "#user")
            try await browser.click("button[value=approve]")
            try await browser.waitForAddress(brokerURL + "/login/confirm/")
            return browser
        }
    }

    private static func run(name: String, _ body: (Page) async throws -> Void) async throws {
        let configuration = ProviderConfiguration(
            profile: .tidal, clients: [ProviderClient("c1", scopes: ["r_usr"])])
        let (provider, site) = (try RunningProvider(configuration), try RunningProvider(configuration))
        let directory = StoreFixtureDirectory()
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(
            port: port, ["DATA_DIR": directory.path, "ALLOW_INSECURE_PROVIDERS": "true"])
        let broker = try BrokerClient(port: port)
        let tenant = try await broker.call(
            .put, "/tenants/t1",
            body: #"""
                {"client_id": "c1", "scopes": ["r_usr"], "display_name": "Acme Music",
                 "login_service_base_uri": "http://localhost:\#(provider.address.port)",
                 "auth_service_base_uri": "\#(provider.baseURL)/v1"}
                """#)
        #expect(tenant.status == 201, "\(tenant.text)")
        let redirectURI = "http://127.0.0.1:\(site.address.port)/app"
        var client = JSONWriter()
        client.object { json in
            json.member("name", name)
            json.member("redirect_uris", [redirectURI])
            json.member("storage_key", "default")
        }
        let registered = try await broker.call(
            .put, "/tenants/t1/clients/player", body: String(decoding: client.bytes, as: UTF8.self))
        #expect(registered.status == 201, "\(registered.text)")
        let result: Result<Void, any Error>
        do {
            result = .success(
                try await WebDriver.run { driver in
                    try await body(
                        Page(
                            broker: broker, brokerURL: "http://127.0.0.1:\(port)", driver: driver,
                            redirectURI: redirectURI))
                })
        } catch {
            result = .failure(error)
        }
        await broker.close()
        #expect(await process.terminate() == 0)
        for provider in [provider, site] { await provider.close() }
        try result.get()
    }
}
