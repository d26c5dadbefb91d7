import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPServer
import Reactor
import Synchronization
import Testing

/// Answers `GET /quick…` at once, with how often it was asked, and everything else by a task.
private final class QuickHandler: RequestHandler {
    private let state = Mutex((asked: 0, reported: [Int: Int](), turns: 0))

    var reported: [Int: Int] { state.withLock { $0.reported } }
    /// Of how many answers the ends of turns have told.
    var timed: Int { state.withLock { $0.turns } }

    func answerNow(
        _ head: borrowing RequestHead, _ bytes: Span<UInt8>, from peer: PeerIdentity?, into answer: NowAnswer
    ) -> Int? {
        let path = String(decoding: head.path.map { bytes[$0] }, as: UTF8.self)
        guard path.hasPrefix("/quick"), head.isRequest("GET", for: "/quick", in: bytes) || path != "/quick" else {
            // What is written before a request is left alone is not sent.
            if path == "/almost" { answer.write(Array("dropped".utf8)) }
            return nil
        }
        if path == "/quick" {
            let asked = state.withLock { state in
                state.asked += 1
                return state.asked
            }
            answer.write(Array("\(asked)".utf8))
            return 0
        }
        // The rest of the path, and the value of the field `From`.
        var from = ""
        let fields = bytes.extracting(head.fields)
        for line in head.section.lines {
            let name = String(decoding: line.name.map { fields[$0] }, as: UTF8.self)
            if name.lowercased() == "from" { from = String(decoding: line.value.map { fields[$0] }, as: UTF8.self) }
        }
        answer.write(Array("\(path.dropFirst(7)) \(from)".utf8))
        return NowAnswer.kinds - 1
    }

    func answeredNow(_ count: Int, kind: Int) { state.withLock { $0.reported[kind, default: 0] += count } }

    func turnEnded(answers count: Int, took: Duration) {
        #expect(took >= .zero)
        state.withLock { $0.turns += count }
    }

    func respond(to request: Request) async -> Response { Response(.ok, body: Array("slow".utf8)) }
    func response(toFault status: Status, detail: String) -> Response { Response(status) }
}

private func withQuickServer(
    _ configuration: ServerConfiguration = configured { _ in }, clock: ManualLoopClock? = nil,
    _ body: (Server) async throws -> Void
) async throws {
    try await withServer(configuration, clock: clock, answering: QuickHandler(), body)
}

private func get(_ path: String) -> String { "GET \(path) HTTP/1.1\r\nHost: h\r\n\r\n" }

@Suite struct `Connections whose requests are answered at once` {
    @Test func `wait for their next request as long as every other, also when the first came with them`() async throws {
        let clock = ManualLoopClock()
        let configuration = configured {
            $0.headTimeout = .seconds(10)
            $0.idleTimeout = .seconds(60)
        }
        try await withQuickServer(configuration, clock: clock) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/quick"))
            #expect(try await client.response().text == "1")
            // Five times as long as a head may take.
            await clock.advance(by: .seconds(50))
            #expect(await !client.hasInput(within: .zero))
            try await client.send(get("/quick"))
            #expect(try await client.response().text == "2")
        }
    }

    @Test func `are closed when they have waited for too long, and not before`() async throws {
        let clock = ManualLoopClock()
        let configuration = configured { $0.idleTimeout = .seconds(60) }
        try await withQuickServer(configuration, clock: clock) { server in
            let client = try HTTPRawClient(server.address)
            for number in 1...4 {
                try await client.send(get("/quick"))
                #expect(try await client.response().text == "\(number)")
                // Together longer than one wait may be.
                await clock.advance(by: .milliseconds(59_999))
                #expect(await !client.hasInput(within: .zero))
            }
            await clock.advance(by: .milliseconds(500))
            #expect(try await client.rest() == "")
        }
    }

    @Test func `that send half a head have as long for it as every other`() async throws {
        let clock = ManualLoopClock()
        let configuration = configured { $0.headTimeout = .seconds(10) }
        try await withQuickServer(configuration, clock: clock) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/quick"))
            _ = try await client.response()
            try await client.send("GET /quick HTTP/1.1\r\nHo")
            await clock.advance(by: .milliseconds(9999))
            #expect(await !client.hasInput(within: .zero))
            await clock.advance(by: .milliseconds(500))
            #expect(try await client.response().status == .requestTimeout)
        }
    }

    /// More answers than the kernel takes for a peer that does not read.
    @Test func `get an answer to each request in order, however late they read`() async throws {
        try await withQuickServer { server in
            let client = try HTTPRawClient(server.address, receiveBufferBytes: 4096)
            let (rounds, batch) = (20, 100)
            for _ in 0..<rounds { try await client.send(String(repeating: get("/quick"), count: batch)) }
            for number in 1...rounds * batch { #expect(try await client.response().text == "\(number)") }
            try await client.send(get("/quick"))
            #expect(try await client.response().text == "\(rounds * batch + 1)")
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
            #expect(try await busy.rest() == "")
            await busy.close()
            await drained
        }
    }

    @Test func `get answers in order, those that are made at once and those that are not`() async throws {
        try await withQuickServer { server in
            let client = try HTTPRawClient(server.address)
            let paths = ["/quick", "/slow", "/quick", "/quick", "/almost", "/slow", "/quick"]
            try await client.send(paths.map(get).joined())
            for text in ["1", "slow", "2", "3", "slow", "slow", "4"] {
                #expect(try await client.response().text == text)
            }
        }
    }

    @Test(arguments: [
        ("GET /quick HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "Connection: close\r\n"),
        ("GET /quick HTTP/1.0\r\n\r\n", "Connection: close\r\n"),
    ])
    func `are closed where the client asks for it, and what it sends behind that is not read`(
        request: String, field: String
    ) async throws {
        try await withQuickServer { server in
            for behind in ["", get("/quick"), "garbage"] {
                let client = try HTTPRawClient(server.address)
                try await client.send(request + behind)
                let text = try await client.rest()
                #expect(text.hasPrefix("HTTP/1.1 200 OK\r\n"))
                #expect(text.contains(field))
                #expect(text.ranges(of: "HTTP/1.1").count == 1)
            }
        }
    }

    @Test func `stay where a client of HTTP 1.0 asks for it`() async throws {
        try await withQuickServer { server in
            let client = try HTTPRawClient(server.address)
            for _ in 0..<2 {
                try await client.send("GET /quick HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
                #expect(try await client.response().fields["Connection"] == "keep-alive")
            }
        }
    }

    /// What a request has of content is not read as one.
    @Test func `may send content that means nothing, and be asked for it in order`() async throws {
        try await withQuickServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(
                get("/quick") + "GET /quick HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
            #expect(try await client.response().text == "1")
            try await client.send("GET " + get("/quick"))
            #expect(try await client.response().text == "slow")
            #expect(try await client.response().text == "2")
        }
    }

    @Test func `are counted, each answer once and as what the handler says`() async throws {
        let handler = QuickHandler()
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            let batch = String(repeating: get("/quick") + get("/quick/a"), count: 50)
            try await client.send(batch + get("/slow"))
            for _ in 0..<101 { _ = try await client.response() }
            try await client.send(get("/quick"))
            _ = try await client.response()
            await eventually({ handler.timed == 101 })
            #expect(handler.reported == [0: 51, NowAnswer.kinds - 1: 50])
            #expect(server.statistics.requests == 102)
        }
    }
}

@Suite struct `Requests that are answered at once` {
    private static func get(_ part: String, _ sender: String) -> String {
        "GET /quick/\(part) HTTP/1.1\r\nHost: host\r\nFrom: \(sender)\r\n\r\n"
    }

    @Test func `are each answered from their own bytes, alone and in batches, on any connection`() async throws {
        try await withQuickServer { server in
            let clients = [try HTTPRawClient(server.address), try HTTPRawClient(server.address)]
            let parts = ["a", "bc", "a", String(repeating: "d", count: 600), "e"]
            for client in clients {
                for part in parts {
                    try await client.send(Self.get(part, "x"))
                    #expect(try await client.response().text == "\(part) x")
                }
                try await client.send(parts.map { Self.get($0, "y") }.joined())
                for part in parts { #expect(try await client.response().text == "\(part) y") }
            }
        }
    }

    /// Alike but for one byte.
    @Test(arguments: [15, 16, 17, 32, 46, 48, 49, 67])
    func `are told apart by every byte of a field`(length: Int) async throws {
        try await withQuickServer { server in
            let clients = [try HTTPRawClient(server.address), try HTTPRawClient(server.address)]
            for place in 0..<length {
                let sender = String((0..<length).map { $0 == place ? "x" : "y" })
                for (index, part) in ["a", "b"].enumerated() {
                    try await clients[(place + index) % 2].send(Self.get(part, sender))
                    #expect(try await clients[(place + index) % 2].response().text == "\(part) \(sender)")
                }
            }
        }
    }

    @Test func `are never taken for others, however many there are`() async throws {
        try await withQuickServer { server in
            let client = try HTTPRawClient(server.address)
            for _ in 0..<3 {
                for number in 0..<512 {
                    try await client.send(Self.get("a\(number)", "\(number)") + Self.get("b\(number)", "\(number)"))
                    #expect(try await client.response().text == "a\(number) \(number)")
                    #expect(try await client.response().text == "b\(number) \(number)")
                }
            }
        }
    }

    @Test func `may come in any number of pieces`() async throws {
        try await withQuickServer { server in
            let client = try HTTPRawClient(server.address)
            let head = Array(Self.get("part", "sender").utf8)
            for cut in 1..<head.count {
                try await client.send(Array(head[..<cut]))
                try await client.send(Array(head[cut...]))
                #expect(try await client.response().text == "part sender")
            }
        }
    }
}
