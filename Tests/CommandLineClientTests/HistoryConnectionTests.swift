import BrokerTesting
import CommandLineClient
import Testing

/// `token-broker events` before a server that says what a broker, or a proxy before it, may say.
@Suite(.serialized, .timeLimit(.minutes(2))) struct `The command events` {
    private typealias Script = [TLSTestServer.Step]
    private typealias Outcome = (status: CommandLineClient.ExitStatus, terminal: RecordedTerminal, requests: [String])

    private static let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nretry: 100\n"

    /// A stream that begins behind an event.
    private static func stream(_ place: String, _ events: String = "", end: TLSTestServer.Step = .hold) -> Script {
        [.read, .send("\(head)id: \(place)\n\n\(events)"), end]
    }

    private static func answer(_ status: Int, _ body: String, _ fields: String = "") -> Script {
        [
            .read,
            .send(
                "HTTP/1.1 \(status) x\r\nConnection: close\r\n\(fields)Content-Length: \(body.utf8.count)\r\n\r\n\(body)"
            ), .hold,
        ]
    }

    private static func event(_ id: String, _ key: String) -> String {
        "id: \(id)\nevent: login.failed\ndata: {\"storage_key\":\"\(key)\",\"time\":\"2026-11-21T09:00:00Z\"}\n\n"
    }

    private struct Refused: Error {
        let text: String
    }

    private func invocation(
        _ words: [String], _ server: TLSTestServer, _ terminal: RecordedTerminal
    ) throws -> Invocation {
        let environment = ["TOKEN_BROKER_URL": "http://localhost:\(server.port)", "TOKEN_BROKER_API_KEY": "key"]
        guard case .run(let invocation) = CommandProgram.step(words, terminal: terminal, environment: environment)
        else {
            throw Refused(text: terminal.errors)
        }
        return invocation
    }

    private func run(
        _ words: String..., at scripts: [Script]
    ) async throws -> Outcome {
        let server = try await Self.server(scripts)
        let terminal = RecordedTerminal()
        let status = await CommandProgram.run(try invocation(words, server, terminal))
        let report = try await server.report(afterConnections: 1)
        return (status, terminal, report.requests)
    }

    private static func server(_ scripts: [Script]) async throws -> TLSTestServer {
        switch scripts.count {
        case 1: try await TLSTestServer(tls: nil, scripts[0])
        case 2: try await TLSTestServer(tls: nil, scripts[0], scripts[1])
        default: try await TLSTestServer(tls: nil, scripts[0], scripts[1], scripts[2])
        }
    }

    @Test func `reads up to the last event that there was, over connections that break`() async throws {
        let scripts = [
            Self.stream("3-9999"),
            Self.stream("0-9999", Self.event("1-0", "k1") + "id: 2-0\nevent: lo", end: .close),
            Self.stream("1-0", Self.event("2-0", "k2") + Self.event("4-0", "k4")),
        ]
        let (status, terminal, requests) = try await run("events", "--json", at: scripts)
        #expect(status == .done, "\(terminal.errors)")
        let lines = terminal.output.split(separator: "\n").map(String.init)
        #expect(lines.count == 2, "\(terminal.output)")
        #expect(lines.first?.contains(#""id":"1-0","event":"login.failed""#) == true)
        #expect(lines.last?.contains(#""storage_key":"k2""#) == true)
        let places = requests.map { request in
            request.split(separator: "\r\n").first { $0.hasPrefix("Last-Event-ID: ") }.map(String.init)
        }
        #expect(places == [nil, "Last-Event-ID: 0-9999", "Last-Event-ID: 1-0"])
    }

    @Test func `asks for the events of all tenants, whatever the variables name`() async throws {
        for (words, tenants) in [([], 2), (["--all-tenants"], 0)] as [([String], Int)] {
            let server = try await Self.server([Self.stream("1-9999")])
            let terminal = RecordedTerminal()
            let environment = [
                "TOKEN_BROKER_URL": "http://localhost:\(server.port)", "TOKEN_BROKER_API_KEY": "key",
                "TOKEN_BROKER_TENANT": "music",
            ]
            let run = await CommandLines.run(
                ["events", "--after", "1-9999"] + words, environment, terminal: terminal)
            #expect(run.status == .done, "\(terminal.errors)")
            let report = try await server.report(afterConnections: 2)
            #expect(report.requests.count { $0.contains("X-Tenant: music\r\n") } == tenants, "\(report.requests)")
        }
    }

    @Test func `takes silence behind the last event of its tenant for the end`() async throws {
        let scripts = [
            Self.stream("9-9999"), Self.stream("0-9999", Self.event("1-0", "k1")), Self.stream("9-9999"),
        ]
        let (status, terminal, _) = try await run("events", "--tenant", "music", at: scripts)
        #expect(status == .done, "\(terminal.errors)")
        let rows = terminal.output.split(separator: "\n").map { $0.split(separator: " ").map(String.init) }
        #expect(
            rows == [
                ["TIME", "TYPE", "STORAGE", "KEY", "USER", "CAUSE", "ERROR"],
                ["2026-11-21T09:00:00Z", "login.failed", "k1", "-", "-", "-"],
            ])
    }

    @Test func `does not take the silence of a broker without its database for the end`() async throws {
        let problem = #"{"code": "storage_unavailable", "detail": "The storage does not answer."}"#
        let scripts = [
            Self.stream("9-9999"), Self.stream("0-9999"), Self.answer(503, problem, "Retry-After: 5\r\n"),
        ]
        let (status, terminal, _) = try await run("events", "--json", at: scripts)
        #expect(status == .tryLater)
        #expect(terminal.output.isEmpty)
        #expect(terminal.errors == "token-broker: The storage does not answer. Try again in 5 s.\n")
    }

    @Test func `gives up where each connection breaks, and names the place to go on at`() async throws {
        let scripts = [
            Self.stream("9-9999"), Self.stream("0-9999", Self.event("1-0", "k1"), end: .close),
            [.read, .send(Self.head), .close],
        ]
        let (status, terminal, requests) = try await run("events", "--json", at: scripts)
        #expect(status == .unreachable)
        #expect(terminal.output.split(separator: "\n").count == 1)
        #expect(terminal.errors.hasSuffix("Try: token-broker events --after 1-0 --json\n"), "\(terminal.errors)")
        #expect(requests.count == 7)
    }

    @Test(arguments: ["<html>hello</html>\n", "data: <html>\n\n"])
    func `says that what answers is no broker`(body: String) async throws {
        let (status, terminal, _) = try await run("events", "--json", at: [Self.answer(200, body)])
        #expect(status != .done)
        #expect(terminal.errors.contains("no token-broker answers at http"), "\(terminal.errors)")
    }

    @Test func `is refused as the broker says`() async throws {
        let problem = #"{"code": "forbidden", "detail": "The key lacks the permission events."}"#
        let (status, terminal, _) = try await run("events", "--follow", at: [Self.answer(403, problem)])
        #expect(status == .forbidden)
        #expect(terminal.errors == "token-broker: The key lacks the permission events.\n")
    }

    @Test func `follows behind a break from the last event on, until it is interrupted`() async throws {
        let server = try await Self.server([
            Self.stream("3-9999", Self.event("4-0", "k4") + Self.event("4-1", "k5"), end: .close),
            Self.answer(502, ""), Self.stream("4-1"),
        ])
        let terminal = RecordedTerminal()
        let invocation = try invocation(["events", "--follow", "--json"], server, terminal)
        let task = Task { await CommandProgram.run(invocation) }
        let report = try await server.report(afterRequests: 3)
        let places = report.requests.map { $0.contains("Last-Event-ID: 4-1\r\n") }
        #expect(places == [false, true, true], "\(report.requests)")
        task.cancel()
        #expect(await task.value == .interrupted)
        #expect(terminal.output.split(separator: "\n").count == 2)
        #expect(terminal.errors.contains("the events go on when it is back"))
    }

    @Test(arguments: [["--follow"], ["--after", "3-9999"]])
    func `ends where standard output takes no more`(words: [String]) async throws {
        let events = Self.event("4-0", "k4") + Self.event("4-1", "k5") + Self.event("5-0", "k6")
        let server = try await Self.server([Self.stream("9-9999", events), Self.stream("3-9999", events)])
        let terminal = RecordedTerminal(room: 0, fault: CommandError(.unread, ""))
        let invocation = try invocation(["events", "--json"] + words, server, terminal)
        #expect(await CommandProgram.run(invocation) == .unread)
        #expect(terminal.errors.isEmpty, "\(terminal.errors)")
        #expect(terminal.output.isEmpty)
    }

    @Test func `tells once that a broker takes its connections, and ends each`() async throws {
        let server = try await Self.server([Self.stream("3-9999", end: .close)])
        let terminal = RecordedTerminal()
        let invocation = try invocation(["events", "--follow", "--after", "3-9999"], server, terminal)
        let task = Task { await CommandProgram.run(invocation) }
        _ = try await server.report(afterRequests: 4)
        task.cancel()
        #expect(await task.value == .interrupted)
        #expect(
            terminal.errors == "the connection to the broker has ended; the events go on when it is back\n",
            "\(terminal.errors)")
    }

    @Test(arguments: [
        (["--since", "1h", "--after", "1-0"], "--since and --after both say where to begin"),
        (["--follow", "--until", "1h"], "--follow does not end"),
        (["--since", "2h", "--until", "3h"], "--until is before --since"),
        (["--after", "last"], "--after must be the id of an event"),
        (["--since", "tomorrow"], "--since must be a time such as"),
        (["--all-tenants", "--tenant", "music"], "--all-tenants and --tenant music exclude each other"),
        (["--all-tenants", "--user", "42"], "--all-tenants and --user exclude each other"),
        (["--ended", "--type", "login"], "--ended and --type both say which events"),
        (["--type", "credentials.updatd"], "did you mean credentials.updated?"),
    ])
    func `says what is wrong with its words before it asks a broker`(words: [String], complaint: String) async throws {
        let terminal = RecordedTerminal()
        let environment = ["TOKEN_BROKER_URL": "http://localhost:59999", "TOKEN_BROKER_API_KEY": "key"]
        let status =
            switch CommandProgram.step(["events"] + words, terminal: terminal, environment: environment) {
            case .end(let status): status
            case .run(let invocation): await CommandProgram.run(invocation)
            case .service: CommandLineClient.ExitStatus.done
            }
        #expect(status == .usage)
        #expect(terminal.errors.contains(complaint), "\(terminal.errors)")
        #expect(terminal.errors.hasSuffix("Try: token-broker events --help\n"))
    }
}
