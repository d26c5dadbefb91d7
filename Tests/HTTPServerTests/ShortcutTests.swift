import BrokerTesting
import HTTPCodec
import HTTPServer
import Reactor
import Testing

/// Answers `GET /quick`, each time with how often it was asked.
private final class CountingShortcut: Shortcut {
    let generation = Generation()
    private var asked = 0

    func clocks() -> (monotonic: MonotonicInstant, milliseconds: Int64) { (.now, WallClock.milliseconds) }

    func answer(_ bytes: Span<UInt8>, _ answer: inout ShortcutAnswer) {
        let start = Array("GET /quick ".utf8)
        guard bytes.count > start.count, start.indices.allSatisfy({ bytes[$0] == start[$0] }),
            let end = (3..<bytes.count).first(where: { index in
                bytes[index] == 10 && bytes[index - 1] == 13 && bytes[index - 2] == 10 && bytes[index - 3] == 13
            })
        else { return }
        asked += 1
        let body = Array("\(asked)".utf8)
        answer.begin(.ok, closes: false)
        answer.output.append("Content-Length: ")
        answer.output.append(decimal: Int64(body.count))
        answer.output.append("\r\n\r\n")
        answer.output.append(body)
        answer.consumed = end + 1
    }

    func answered(_ count: Int, kind: Int) {}
    func turnEnded(answers: Int, nanoseconds: Int64) {}
}

private struct QuickHandler: RequestHandler {
    func respond(to request: Request) async -> Response { Response(.ok, body: Array("slow".utf8)) }
    func response(toFault status: Status, detail: String) -> Response { Response(status) }
    func makeShortcut() -> (any Shortcut)? { CountingShortcut() }
}

private func withQuickServer(
    _ configuration: ServerConfiguration = configured { _ in }, _ body: (Server) async throws -> Void
) async throws {
    try await withServer(configuration, answering: QuickHandler(), body)
}

private func get(_ path: String) -> String { "GET \(path) HTTP/1.1\r\nHost: h\r\n\r\n" }

@Suite struct `Connections with a shortcut` {
    @Test func `wait for their next request as long as every other, also when the first came with them`() async throws {
        let configuration = configured {
            $0.headTimeout = .milliseconds(200)
            $0.idleTimeout = .seconds(60)
        }
        try await withQuickServer(configuration) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/quick"))
            #expect(try await client.response().text == "1")
            // Five times as long as a head may take.
            #expect(await !client.hasInput(within: .seconds(1)))
            try await client.send(get("/quick"))
            #expect(try await client.response().text == "2")
        }
    }

    @Test func `are closed when they have waited for too long, and not before`() async throws {
        let configuration = configured { $0.idleTimeout = .milliseconds(400) }
        try await withQuickServer(configuration) { server in
            let client = try HTTPRawClient(server.address)
            for number in 1...4 {
                try await client.send(get("/quick"))
                #expect(try await client.response().text == "\(number)")
                // Together longer than one wait may be.
                #expect(await !client.hasInput(within: .milliseconds(150)))
            }
            #expect(try await client.rest() == "")
        }
    }

    @Test func `that send half a head have as long for it as every other`() async throws {
        let configuration = configured { $0.headTimeout = .milliseconds(200) }
        try await withQuickServer(configuration) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/quick"))
            _ = try await client.response()
            try await client.send("GET /quick HTTP/1.1\r\nHo")
            #expect(try await client.response().status == .requestTimeout)
        }
    }

    /// More answers than the kernel takes for a peer that does not read. What the shortcut has left over takes the usual
    /// way, which answers with another text.
    @Test func `get an answer to each request, however late they read`() async throws {
        try await withQuickServer { server in
            let client = try HTTPRawClient(server.address, receiveBufferBytes: 4096)
            let (rounds, batch) = (20, 100)
            for _ in 0..<rounds { try await client.send(String(repeating: get("/quick"), count: batch)) }
            var quick = 0
            for _ in 0..<rounds * batch {
                let text = try await client.response().text
                if text == "slow" { continue }
                quick += 1
                #expect(text == "\(quick)")
            }
            #expect(quick > 0)
            try await client.send(get("/quick"))
            #expect(try await client.response().text == "\(quick + 1)")
        }
    }

    @Test func `that are drained get what they asked for, and are closed`() async throws {
        try await withQuickServer { server in
            let (busy, idle) = (try HTTPRawClient(server.address), try HTTPRawClient(server.address))
            for client in [busy, idle] {
                try await client.send(get("/quick"))
                _ = try await client.response()
            }
            try await busy.send(get("/quick") + "GET /quick HTT")
            _ = try await busy.response()
            async let drained: Void = server.drain(within: .seconds(10))
            #expect(try await idle.rest() == "")
            try await busy.send("P/1.1\r\nHost: h\r\n\r\n")
            let last = try await busy.response()
            #expect(last.status == .ok)
            #expect(last.fields["Connection"] == "close")
            await drained
        }
    }
}
