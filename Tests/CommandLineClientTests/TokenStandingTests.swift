import BrokerTesting
import CommandLineClient
import Testing

/// What `token-broker token` says where the token is not that of a user who is logged in.
@Suite(.serialized, .timeLimit(.minutes(2))) struct `A token that is not of a user who is logged in` {
    private static let ended = #""session": {"ended": "2026-11-30T09:00:00Z", "cause": "revoked"}"#
    private static let last =
        #"{"level": "user", "token": "old", "expires": "2099-01-01T00:00:00Z", \#(ended)}"#
    private static let ofClient = #"{"level": "client", "token": "own", "expires": "2099-01-01T00:00:00Z"}"#

    private static func answer(_ status: Int, _ body: String, _ fields: String = "") -> [TLSTestServer.Step] {
        let head =
            "HTTP/1.1 \(status) x\r\nConnection: close\r\nContent-Type: application/\(status < 400 ? "json" : "problem+json")\r\n"
        return [.read, .send("\(head)\(fields)Content-Length: \(body.utf8.count)\r\n\r\n\(body)"), .close]
    }

    private func run(_ words: String..., before server: TLSTestServer) async -> (ExitStatus?, RecordedTerminal) {
        await CommandLines.run(
            words, ["TOKEN_BROKER_URL": "http://localhost:\(server.port)", "TOKEN_BROKER_API_KEY": "k"])
    }

    @Test func `is the last one of a session that has ended, and is said to be`() async throws {
        let server = try await TLSTestServer(tls: nil, Self.answer(200, Self.last))
        let (status, terminal) = await run("token", "web", before: server)
        #expect(status == .done && terminal.output == "old\n")
        #expect(
            terminal.errors
                == "token-broker: the user's session ended at 2026-11-30T09:00:00Z (revoked). The token is the last "
                + "one of the session, valid until 2099-01-01T00:00:00Z\n")
    }

    @Test func `is refused where it was to be renewed, and its session has ended`() async throws {
        let server = try await TLSTestServer(tls: nil, Self.answer(200, Self.last))
        let (status, terminal) = await run("token", "web", "--force-refresh", before: server)
        #expect(status == .notLoggedIn && terminal.output.isEmpty)
        #expect(
            terminal.errors.contains("the user's session ended at 2026-11-30T09:00:00Z (revoked)")
                && terminal.errors.hasSuffix("Try: token-broker login web\n"), "\(terminal.errors)")
    }

    @Test func `is the client's own, and is said to be where that was not asked for`() async throws {
        let server = try await TLSTestServer(tls: nil, Self.answer(200, Self.ofClient))
        let (status, terminal) = await run("token", "web", before: server)
        #expect(status == .done && terminal.output == "own\n")
        #expect(
            terminal.errors
                == "token-broker: no user is logged in under the storage key default of the tenant web. The token is "
                + "the client's own; --level user refuses it\n")
        let asked = try await TLSTestServer(tls: nil, Self.answer(200, Self.ofClient))
        let (_, quiet) = await run("token", "web", "--level", "client", before: asked)
        #expect(quiet.output == "own\n" && quiet.errors.isEmpty)
    }

    @Test(arguments: [
        (#"{"logged_in": true, "state": "held"}"#, ExitStatus.tryLater),
        (#"{"logged_in": true, "state": "degraded"}"#, ExitStatus.failed),
    ])
    func `is not there while the session is held`(state: String, expected: ExitStatus) async throws {
        let problem = #"{"code": "illegal_configuration", "detail": "The provider refuses."}"#
        let server = try await TLSTestServer(
            tls: nil, Self.answer(424, problem, "Retry-After: 10\r\n"), Self.answer(200, state))
        let (status, terminal) = await run("token", "web", "--storage-key", "u1", before: server)
        #expect(status == expected, "\(terminal.errors)")
        #expect(terminal.output.isEmpty)
        if expected == .tryLater {
            #expect(
                terminal.errors.contains("the session under the storage key u1 of the tenant web is held")
                    && terminal.errors.hasSuffix("Try again in 10 s.\nTry: token-broker restore --held --tenant web\n"),
                "\(terminal.errors)")
        } else {
            #expect(terminal.errors.hasSuffix("Try: token-broker tenants show web\n"), "\(terminal.errors)")
        }
    }
}
