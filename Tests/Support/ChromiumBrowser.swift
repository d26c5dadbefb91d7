import Cryptography
import ExternalText
import FoundationEssentials
import HTTPCodec
package import JSON

/// One Chromium without a window, with a profile of its own, driven as a user drives it: a WebDriver session.
///
/// Each command waits for the page that is being loaded; each has its limit with the driver.
package struct ChromiumBrowser: Sendable {
    /// What the browser holds of a cookie, beyond the reach of pages.
    package struct Cookie: Sendable {
        package let name: String
        package let value: String
        package let isHTTPOnly: Bool
        package let sameSite: String?
    }

    private let driver: WebDriver
    private let path: String

    init(driver: WebDriver, session: String) {
        self.driver = driver
        path = "/session/\(session)"
    }

    // MARK: What the user does

    /// Opens an address, as from the address bar.
    package func open(_ url: String) async throws {
        try await post("/url", ["url": .string(url)])
    }

    /// Types into the one element that fits a CSS selector.
    package func type(_ text: String, into selector: String) async throws {
        try await post("/element/\(try await element(selector))/value", ["text": .string(text)])
    }

    package func click(_ selector: String) async throws {
        try await post("/element/\(try await element(selector))/click", [:])
    }

    /// Waits until the address begins with `prefix`: nothing is sent to the driver's client when a form leads on.
    package func waitForAddress(_ prefix: String, within limit: Duration = .seconds(30)) async throws {
        let deadline = ContinuousClock.now + limit
        var address = try await address()
        while !address.hasPrefix(prefix) {
            guard ContinuousClock.now < deadline else {
                throw WebDriver.Failure("still at \(address) instead of \(prefix)")
            }
            try await Task.sleep(for: .milliseconds(20))
            address = try await self.address()
        }
    }

    // MARK: What the user has

    /// The size of the window in CSS pixels, and whether the user prefers dark pages.
    package func show(width: Int64, height: Int64, isDark: Bool) async throws {
        try await command(
            "Emulation.setDeviceMetricsOverride",
            [
                "width": .integer(width), "height": .integer(height), "deviceScaleFactor": .integer(1),
                "mobile": .bool(false),
            ])
        try await command(
            "Emulation.setEmulatedMedia",
            [
                "features": .array([
                    .object([
                        "name": .string("prefers-color-scheme"), "value": .string(isDark ? "dark" : "light"),
                    ])
                ])
            ])
    }

    /// Runs no scripts of pages from now on.
    package func switchScriptsOff() async throws {
        try await command("Emulation.setScriptExecutionDisabled", ["value": .bool(true)])
    }

    /// Presses a key, wherever the focus is.
    package func press(_ key: Key) async throws {
        for type in ["rawKeyDown", "char", "keyUp"] {
            var parameters: [WireText: JSONValue] = [
                "type": .string(WireText(type)), "key": .string(WireText(key.rawValue)),
                "code": .string(WireText(key.rawValue)), "windowsVirtualKeyCode": .integer(key.code),
            ]
            if type == "char" {
                guard let text = key.text else { continue }
                parameters["text"] = .string(WireText(text))
            }
            try await command("Input.dispatchKeyEvent", parameters)
        }
    }

    package enum Key: String, Sendable {
        case tab = "Tab"
        case enter = "Enter"

        fileprivate var code: Int64 {
            switch self {
            case .tab: 9
            case .enter: 13
            }
        }

        fileprivate var text: String? { self == .enter ? "\r" : nil }
    }

    /// A command of the Chrome DevTools Protocol.
    private func command(_ name: String, _ parameters: [WireText: JSONValue]) async throws {
        try await post("/goog/cdp/execute", ["cmd": .string(WireText(name)), "params": .object(parameters)])
    }

    // MARK: What the user sees

    /// What the address bar shows.
    package func address() async throws -> String {
        try await text("/url")
    }

    package func title() async throws -> String {
        try await text("/title")
    }

    /// The text of an element as it is rendered: without what is hidden, with line breaks where blocks end.
    package func text(of selector: String) async throws -> String {
        try await text("/element/\(try await element(selector))/text")
    }

    /// Keeps a picture of the page below `.build-artefacts`, and prints where.
    package func keepScreenshot(_ name: String) async throws {
        guard let image = Base64.decode(try await text("/screenshot")) else {
            throw WebDriver.Failure("a screenshot that is no Base64")
        }
        let checkout = #filePath.split(separator: "/", omittingEmptySubsequences: false).dropLast(3)
        let directory = checkout.joined(separator: "/") + "/.build-artefacts/screenshots"
        try FileManager.default.createDirectory(atPath: directory, withIntermediateDirectories: true)
        let file = "\(directory)/\(name).png"
        try Data(image).write(to: URL(filePath: file))
        print("screenshot: \(file)")
    }

    // MARK: What lies behind it

    /// The document, written out from its DOM.
    package func document() async throws -> String {
        try await text("/source")
    }

    /// The status that the page was answered with.
    package func status() async throws -> Int64? {
        try await evaluate("performance.getEntriesByType('navigation')[0].responseStatus").integer
    }

    /// The value of an expression in the page's own JavaScript.
    package func evaluate(_ expression: String) async throws -> JSONValue {
        try await post("/execute/sync", ["script": .string("return \(expression)"), "args": .array([])])
    }

    /// Those that would be sent to the page that is open.
    package func cookies() async throws -> [Cookie] {
        try await (driver.call(.get, path + "/cookie").array ?? []).map { cookie in
            guard let name = cookie["name"]?.text, let value = cookie["value"]?.text,
                let isHTTPOnly = cookie["httpOnly"]?.bool
            else { throw WebDriver.Failure("a cookie without a name, a value or its httpOnly") }
            return Cookie(name: name, value: value, isHTTPOnly: isHTTPOnly, sameSite: cookie["sameSite"]?.text)
        }
    }

    // MARK: Commands

    /// How an element is named in the protocol: the web element identifier of WebDriver, "Elements".
    private static let elementIdentifier = "element-6066-11e4-a52e-4f735466cecf"

    private func element(_ selector: String) async throws -> String {
        let found = try await post("/elements", ["using": .string("css selector"), "value": .string(selector)])
        guard let element = found.array?.first?[Self.elementIdentifier]?.text, found.array?.count == 1 else {
            throw WebDriver.Failure("\(found.array?.count ?? 0) elements for \(selector), not one")
        }
        return element
    }

    private func text(_ command: String) async throws -> String {
        guard let text = try await driver.call(.get, path + command).text else {
            throw WebDriver.Failure("no text for \(command)")
        }
        return text
    }

    @discardableResult
    private func post(_ command: String, _ parameters: [WireText: JSONValue]) async throws -> JSONValue {
        var writer = JSONWriter()
        writer.value(.object(parameters))
        return try await driver.call(.post, path + command, writer.bytes)
    }
}
