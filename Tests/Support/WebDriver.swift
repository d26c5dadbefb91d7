import ExternalText
import FoundationEssentials
import Glibc
import HTTPCodec
import HTTPSClient
import JSON
import Reactor
import Synchronization

/// A chromedriver of the test's own: the remote end of W3C WebDriver (https://www.w3.org/TR/webdriver2/), and with it
/// the browsers that it has started.
package final class WebDriver: Sendable {
    package struct Failure: Error, CustomStringConvertible {
        package let description: String

        init(_ description: String) { self.description = description }
    }

    private let process: TestProcess
    private let directory: BrowserDirectory
    private let client: HTTPSClient
    private let baseURL: String
    private let sessions = Mutex<[String]>([])

    /// What starts Chromium.
    private static let launcher =
        #filePath.split(separator: "/", omittingEmptySubsequences: false).dropLast()
        .joined(separator: "/") + "/chromium"
    private static let chromium = "/usr/bin/chromium"
    private static let program = "/usr/bin/chromedriver"

    /// Runs `body` with a driver; afterwards, however that went, its browsers and itself are ended and waited for.
    package static func run(_ body: (WebDriver) async throws -> Void) async throws {
        let driver = try await WebDriver()
        let result: Result<Void, any Error>
        do {
            result = .success(try await body(driver))
        } catch {
            result = .failure(error)
        }
        let end: Result<Void, any Error>
        do {
            end = .success(try await driver.end())
        } catch {
            end = .failure(error)
        }
        try result.get()
        try end.get()
    }

    private init() async throws {
        for program in [Self.chromium, Self.program] where unsafe access(program, X_OK) != 0 {
            throw Failure(
                "\(program) is missing: the tests need Chromium, which Deploy/test installs "
                    + "(Debian: chromium, chromium-driver)")
        }
        directory = try BrowserDirectory()
        let port: UInt16
        (process, port) = try await Self.launch(in: directory)
        baseURL = "http://127.0.0.1:\(port)"
        var configuration = HTTPSClientConfiguration()
        configuration.targets = .everything
        // Longer than what chromedriver itself waits for the start of a browser (60 s) or for a page (below), so that
        // it is the one to say what was missed.
        configuration.firstByteTimeout = .seconds(90)
        configuration.exchangeTimeout = .seconds(90)
        // A screenshot is one string of its JSON.
        configuration.maximumBodyBytes = 16 << 20
        client = try HTTPSClient(
            configuration: configuration, loop: PostgresServer.loop, resolver: PostgresServer.resolver)
    }

    /// Starts chromedriver, and returns the port that it listens on. It takes one that is free for IPv6 and ends where that
    /// is not free for IPv4: then it is started again.
    private static func launch(in directory: BrowserDirectory) async throws -> (TestProcess, UInt16) {
        let announcement = "ChromeDriver was started successfully on port "
        var starts = 0
        while true {
            starts += 1
            let process = try await TestProcess.start(
                [program, "--port=0", "--verbose", "--log-path=\(log(in: directory))"],
                environment: ["HOME": directory.path, "TMPDIR": directory.path])
            do {
                let line = try await process.line { $0.hasPrefix(announcement) }
                guard let port = UInt16(line.dropFirst(announcement.count).prefix { $0.isNumber }) else {
                    throw Failure("no port: \(line)")
                }
                return (process, port)
            } catch {
                let isTaken = process.timedLines.contains { $0.text.contains("port not available") }
                guard isTaken, starts < 5 else { throw error }
            }
        }
    }

    private static func log(in directory: BrowserDirectory) -> String { directory.path + "/driver.log" }

    /// Starts a browser with a profile of its own: it shares no cookie with another.
    package func openBrowser() async throws -> ChromiumBrowser {
        let number = sessions.withLock(\.count) + 1
        let arguments = [
            "--headless=new", "--window-size=800,600", "--lang=en",
            // Chromium has no sandbox for root, and a container may lack what the sandbox needs.
            "--no-sandbox",
            // No graphics card, and a container's /dev/shm is small.
            "--disable-gpu", "--disable-dev-shm-usage",
            // It is to talk to this machine only; what it tries in spite of the other flags finds no address.
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost", "--no-proxy-server",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
            // What collects crashes would outlive the browser.
            "--disable-breakpad",
            "--user-data-dir=\(directory.path)/profile-\(number)",
        ]
        let body = JSONWriter.object { writer in
            writer.name("capabilities")
            writer.object { writer in
                writer.name("alwaysMatch")
                writer.object { writer in
                    writer.member("browserName", "chrome")
                    writer.member(
                        "timeouts", .object(["pageLoad": .integer(60_000), "script": .integer(30_000)]))
                    writer.name("goog:chromeOptions")
                    writer.object { writer in
                        writer.member("binary", Self.launcher)
                        writer.member("args", arguments)
                    }
                }
            }
        }
        let answer: JSONValue
        do {
            answer = try await call(.post, "/session", body)
        } catch {
            // Why a browser did not start is in the log only, and the log goes with its directory.
            let log = try String(contentsOfFile: Self.log(in: directory), encoding: .utf8)
            throw Failure("\(error)\n" + log.split(separator: "\n").suffix(12).joined(separator: "\n"))
        }
        guard let session = answer["sessionId"]?.text else { throw Failure("a session without an ID") }
        sessions.withLock { $0.append(session) }
        return ChromiumBrowser(driver: self, session: session)
    }

    /// Sends one command; its value.
    /// - Throws: `Failure` with the driver's words where the command failed.
    func call(_ method: Method, _ path: String, _ body: [UInt8] = []) async throws -> JSONValue {
        guard let url = URLTarget(baseURL + path) else { throw Failure("not a path: \(path)") }
        let fields: Fields = body.isEmpty ? [:] : ["Content-Type": "application/json"]
        let response = try await client.send(ClientRequest(method: method, url: url, fields: fields, body: body))
        guard let value = try JSONValue(parsing: response.body)["value"] else {
            throw Failure("\(method) \(path): an answer without a value")
        }
        guard response.status == .ok else {
            throw Failure("\(method) \(path): \(value["error"]?.text ?? "?"): \(value["message"]?.text ?? "?")")
        }
        return value
    }

    private func end() async throws {
        let end: Result<Void, any Error>
        do {
            // Answered when the browser's process has ended.
            for session in sessions.withLock(\.self) { _ = try await call(.delete, "/session/\(session)") }
            end = .success(())
        } catch {
            end = .failure(error)
        }
        await client.close()
        await process.terminate()
        try end.get()
        try directory.remove()
    }
}
