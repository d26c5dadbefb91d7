import BrokerTesting
import FoundationEssentials
import Testing

@testable import CommandLineClient

/// Commands before a server that is no broker: a network that wants a login first answers every request with a page.
@Suite(.serialized, .timeLimit(.minutes(2))) struct `An answer that no broker gives` {
    private static func answer(_ status: String, _ fields: String, _ body: String) -> String {
        "HTTP/1.1 \(status)\r\n\(fields)Content-Length: \(body.utf8.count)\r\n\r\n\(body)"
    }

    private static let page = answer("200 OK", "Content-Type: text/html\r\n", "<html>log in</html>\n")
    private static let unlabelled = answer("200 OK", "", "{}")
    private static let accepted = answer("202 Accepted", "", "")
    private static let elsewhere = answer("302 Found", "Location: http://login.example/\r\n", "")
    private static let missing = answer("404 Not Found", "Content-Type: text/html\r\n", "<html></html>")

    private func run(
        _ words: [String], at answer: String
    ) async throws -> (status: ExitStatus?, terminal: RecordedTerminal) {
        let server = try await TLSTestServer(tls: nil, [.serve(answer)])
        defer { withExtendedLifetime(server) {} }
        return await CommandLines.run(
            words,
            [
                "TOKEN_BROKER_URL": "http://localhost:\(server.port)", "TOKEN_BROKER_API_KEY": "key",
                "TOKEN_BROKER_TENANT": "music",
            ])
    }

    @Test(
        arguments: [
            ["logout", "--yes"], ["tenants", "delete", "music", "--yes"], ["clients", "delete", "app", "--yes"],
            ["sessions", "revoke", "s1", "--yes"], ["providers", "delete", "acme", "--yes"],
            ["keys", "delete", "k1", "--yes"], ["keys", "create", "k1", "--permission", "login"], ["status"],
            ["tenants", "list"], ["token"], ["events"], ["events", "--follow"], ["login", "--no-wait"],
            ["tenants", "create", "acme", "--client-id", "app", "--no-secret"],
        ], [page, unlabelled, accepted, elsewhere])
    func `is never taken for done`(words: [String], answer: String) async throws {
        let (status, terminal) = try await run(words, at: answer)
        #expect(status == .failed, "\(terminal.errors)")
        #expect(terminal.output.isEmpty, "\(terminal.output)")
        #expect(
            terminal.errors.hasPrefix("token-broker: no token-broker answers at http://localhost:"),
            "\(terminal.errors)")
    }

    @Test func `does not say that a tenant or a provider is missing`() async throws {
        let (status, terminal) = try await run(
            ["tenants", "create", "acme", "--client-id", "app", "--no-secret"], at: Self.missing)
        #expect(status == .failed, "\(terminal.errors)")
        #expect(terminal.errors.contains("no token-broker answers at"), "\(terminal.errors)")
    }

    @Test(arguments: [
        (page, 0), (answer("200 OK", "Content-Type: application/x-ndjson\r\n", "a..b.c.d\n<html>\n"), 2),
        (answer("200 OK", "Content-Type: application/x-ndjson\r\n", "a.b.c.d\n"), 1),
        (answer("200 OK", "Content-Type: application/x-ndjson\r\n", "{\"a\":1}\n"), 1),
    ])
    func `is no export`(answer: String, line: Int) async throws {
        let directory = StoreFixtureDirectory()
        try FileManager.default.createDirectory(atPath: directory.path, withIntermediateDirectories: true)
        let (key, file) = (directory.path + "/key.jwk", directory.path + "/sealed")
        try Data(#"{"kty":"EC","crv":"P-256","x":"x","y":"y"}"#.utf8).write(to: URL(filePath: key))
        let (status, terminal) = try await run(["export", "--jwk", key, "--file", file, "--yes"], at: answer)
        #expect(status == .failed, "\(terminal.errors)")
        #expect(!FileManager.default.fileExists(atPath: file))
        if line > 0 { #expect(terminal.errors.contains("line \(line) of what comes is not sealed")) }
    }

    @Test func `is not asked for where an export names no file`() async {
        let (status, terminal) = await CommandLines.run(
            ["export", "--jwk", "/nonexistent", "--file", ""], ["TOKEN_BROKER_URL": "http://localhost:59999"])
        #expect(status == .usage)
        #expect(terminal.errors.hasPrefix("token-broker: --file names no file\n"))
        let piped = await CommandLines.run(["export", "--jwk", "k", "--file", "-", "--json"])
        #expect(piped.terminal.errors.hasPrefix("token-broker: --json needs --file"), "\(piped.terminal.errors)")
    }

    @Test(
        arguments: [
            ("", true, 0, true), ("a..b.c.d\n", true, 1, true), ("a.k.b.c.d\na..b.c.d\n", true, 2, true),
            ("a..b.c.d", true, 0, false), ("a..b.c.d\na", true, 1, false), ("\n", false, 0, true),
            (".k.b.c.d\n", false, 0, true), ("a.k..c.d\n", false, 0, false), ("a.k.b..d\n", false, 0, false),
            ("a.k.b.c.\n", false, 0, false), ("a.k.b.c.d.e\n", false, 0, false), ("a.k.b.c\n", false, 0, false),
            ("a.k.b.c.d\r\n", false, 0, false), ("a.k.b.c.d=\n", false, 0, false),
        ] as [(String, Bool, Int, Bool)])
    func `is told from sealed lines byte by byte`(text: String, isSealed: Bool, count: Int, isComplete: Bool) {
        var lines = SealedLines()
        #expect(text.utf8.allSatisfy { lines.take([$0]) } == isSealed)
        #expect(lines.count == count)
        if isSealed { #expect(lines.isComplete == isComplete) }
        var whole = SealedLines()
        #expect(whole.take(Array(text.utf8)) == isSealed)
    }
}
