import BrokerTesting
import ExternalText
import JSON
import Testing

/// The page that shows the API, as Chromium shows it.
@Suite(.timeLimit(.minutes(3)))
struct `The page of the API in a browser` {
    @Test func `fits narrow and wide windows, light and dark, with everything unfolded`() async throws {
        try await Self.run { brokerURL, browser in
            try await browser.open(brokerURL + "/docs")
            #expect(try await browser.status() == 200)
            #expect(try await browser.title() == "Token broker API")
            let details = "[...document.querySelectorAll('details')]"
            let unfolded = try await browser.evaluate("\(details).map(part => part.open = true).length").integer
            #expect((unfolded ?? 0) > 50)
            for (shape, width, height) in [("narrow", 390, 844), ("wide", 1920, 1080)] as [(String, Int64, Int64)] {
                for isDark in [false, true] {
                    try await browser.show(width: width, height: height, isDark: isDark)
                    try await browser.keepScreenshot("api-\(shape)-\(isDark ? "dark" : "light")")
                    // Nothing has to be scrolled to the side.
                    let scrolled = try await browser.evaluate(
                        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
                    ).bool
                    #expect(scrolled == true, "\(shape)")
                    // The style is one that the page's policy lets pass.
                    let colour = try await browser.evaluate("getComputedStyle(document.body).backgroundColor").text
                    #expect(colour == (isDark ? "rgb(22, 22, 22)" : "rgb(255, 255, 255)"))
                }
            }
            try await browser.open(brokerURL + "/docs#operation-restoreCredentials")
            let top = try await browser.evaluate(
                "Math.round(document.getElementById('operation-restoreCredentials').getBoundingClientRect().top)"
            ).integer
            #expect((0..<200).contains(top ?? -1))
            try await browser.keepScreenshot("api-operation")
        }
    }

    @Test func `is used by the keyboard, without scripts`() async throws {
        try await Self.run { brokerURL, browser in
            try await browser.switchScriptsOff()
            try await browser.show(width: 1280, height: 720, isDark: false)
            try await browser.open(brokerURL + "/docs")
            // The first place leads past the contents.
            try await browser.press(.tab)
            try await browser.keepScreenshot("api-keyboard")
            try await browser.press(.enter)
            try await browser.waitForAddress(brokerURL + "/docs#main")
        }
    }

    private static func run(
        _ body: (_ brokerURL: String, _ browser: ChromiumBrowser) async throws -> Void
    ) async throws {
        let directory = StoreFixtureDirectory()
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(port: port, ["DATA_DIR": directory.path])
        let result: Result<Void, any Error>
        do {
            result = .success(
                try await WebDriver.run { driver in
                    try await body("http://127.0.0.1:\(port)", try await driver.openBrowser())
                })
        } catch {
            result = .failure(error)
        }
        #expect(await process.terminate() == 0)
        try result.get()
    }
}
