import BrokerTesting
import ExternalText
import Glibc
import HTTPCodec
import HTTPServer
import Reactor
import Synchronization
import Testing

@Suite(.timeLimit(.minutes(1))) struct `HTTP limits` {
    // MARK: What is not a request

    /// Each is followed by a well-formed request that must not be served.
    // H001 H002 H003 H004 H005 H012 H058 H061
    @Test(arguments: [
        (400, "GET / HTTP/1.1\nHost: a\n\n"), (400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\nHost : a\r\n\r\n"), (400, "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n"),
        (400, "GET / HTTP/1.1\r\n\r\n"), (400, "GET http://a/ HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n"),
        (400, "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1 \r\na\r\n0\r\n\r\n"),
        (400, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000001\r\na\r\n0\r\n\r\n"),
        (413, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff\r\n"),
        (413, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4294967296\r\n\r\n"),
        (501, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
        (501, "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n"), (501, "TRACE / HTTP/1.1\r\nHost: a\r\n\r\n"),
        (505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
    ])
    func `is answered once, and nothing behind it is served`(code: Int, text: String) async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/before") + text + get("/smuggled"))
            #expect(try await client.response().text == "GET /before\n")
            let response = try await client.response()
            #expect(response.status.code == code)
            #expect(response.fields["connection"] == "close")
            #expect(response.fields.contains("x-request-id"))
            #expect(!response.body.isEmpty)
            #expect(try await client.rest() == "")
            #expect(server.statistics.requests == 1)
            #expect(server.statistics.faults == [Status(code): 1])
        }
    }

    @Test func `the answer to a fault is not lost to what the client goes on sending`() async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 800000\r\n\r\n")
            for _ in 0..<50 { try await client.send([UInt8](repeating: 0x61, count: 16_000)) }
            #expect(try await client.response().status.code == 413)
            #expect(try await client.rest() == "")
        }
    }

    @Test func `what is dropped after a last answer is bounded`() async throws {
        try await withServer(configured { $0.lingerBytes = 100_000 }) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("nonsense\r\n")
            await #expect(throws: HTTPRawClient.Failure.reset) {
                while true { try await client.send([UInt8](repeating: 0x61, count: 16_000)) }
            }
            await eventually { server.statistics.connectionsOpen == 0 }
        }
    }

    @Test func `a client that does not close after a last answer is closed`() async throws {
        let clock = ManualLoopClock()
        try await withServer(configured { $0.lingerTimeout = .seconds(2) }, clock: clock) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("nonsense\r\n")
            #expect(try await client.rest().hasPrefix("HTTP/1.1 400 "))
            await clock.advance(by: .milliseconds(1999))
            #expect(server.statistics.connectionsOpen == 1)
            await clock.advance(by: .milliseconds(500))
            #expect(server.statistics.connectionsOpen == 0)
        }
    }

    // MARK: Sizes

    // H006
    @Test(arguments: [(8192, 200), (8193, 414)]) func `bounds the request line`(length: Int, code: Int) async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/" + String(repeating: "a", count: length - 14)))
            #expect(try await client.response().status.code == code)
        }
    }

    // H006
    @Test func `refuses a request line without waiting for its end`() async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("GET /" + String(repeating: "a", count: 9000))
            #expect(try await client.response().status.code == 414)
        }
    }

    // H006
    @Test(arguments: [(100, 200), (101, 431)]) func `bounds the number of fields`(count: Int, code: Int) async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/", String(repeating: "X: y\r\n", count: count - 1)))
            #expect(try await client.response().status.code == code)
        }
    }

    // H006
    @Test func `bounds the head without waiting for its end`() async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("GET / HTTP/1.1\r\nHost: a\r\nX: " + String(repeating: "a", count: 17_000))
            #expect(try await client.response().status.code == 431)
        }
    }

    // H006
    @Test(arguments: [
        (65_536, 200, "Content-Length: 65536\r\n\r\n", ""), (65_537, 413, "Content-Length: 65537\r\n\r\n", ""),
        (65_536, 200, "Transfer-Encoding: chunked\r\n\r\n10000\r\n", "\r\n0\r\n\r\n"),
        (65_537, 413, "Transfer-Encoding: chunked\r\n\r\n10001\r\n", "\r\n0\r\n\r\n"),
    ])
    func `bounds the content`(length: Int, code: Int, before: String, after: String) async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            let body = String(repeating: "a", count: length)
            try await client.send("POST / HTTP/1.1\r\nHost: a\r\n\(before)\(body)\(after)")
            #expect(try await client.response().status.code == code)
        }
    }

    // H003
    @Test(arguments: [
        "1;a=\(String(repeating: "x", count: 5000))\r\n", "0\r\nT: \(String(repeating: "x", count: 5000))",
    ])
    func `bounds chunk extensions and trailers`(text: String) async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + text)
            #expect(try await client.response().status.code == 431)
        }
    }

    // MARK: Contents

    // H006
    @Test func `contents that do not end are bounded in their sum`() async throws {
        let clock = ManualLoopClock()
        try await withServer(configured { $0.contentBytes = 100_000 }, clock: clock) { server in
            let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n"
            let first = try HTTPRawClient(server.address)
            try await first.send(head + String(repeating: "x", count: 50_000))
            // A turn of the loop reads a part of it.
            for _ in 0..<16 { await clock.handleInput() }
            let second = try HTTPRawClient(server.address)
            try await second.send(head + String(repeating: "x", count: 59_999))
            let refusal = try await second.response()
            #expect(refusal.status == .serviceUnavailable)
            #expect(refusal.fields["retry-after"] == "1")
            // What was refused counts no more, and what was not goes on.
            try await first.send(String(repeating: "x", count: 10_000))
            #expect(try await first.response().status == .ok)
            let third = try HTTPRawClient(server.address)
            try await third.send(head + String(repeating: "x", count: 60_000))
            #expect(try await third.response().status == .ok)
        }
    }

    @Test func `contents count until their requests are answered, and those of a GET are not kept`() async throws {
        let gate = Gate()
        let handler: @Sendable (Request) async -> Response = { request in
            gate.arrive()
            await gate.opened()
            return Response(.ok, body: Array("\(request.body.count)".utf8))
        }
        try await withServer(configured { $0.contentBytes = 100_000 }, handler: handler) { server in
            func begin(_ method: String) async throws -> HTTPRawClient {
                let client = try HTTPRawClient(server.address)
                let head = "\(method) / HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n"
                try await client.send(head + String(repeating: "x", count: 60_000))
                return client
            }
            let waiting = [try await begin("GET"), try await begin("GET"), try await begin("POST")]
            await gate.arrivals(3)
            let refusal = try await begin("POST").response()
            #expect(refusal.status == .serviceUnavailable)
            #expect(refusal.fields["retry-after"] == "1")
            gate.open()
            for (client, held) in zip(waiting, ["0", "0", "60000"]) {
                #expect(try await client.response().text == held)
            }
            #expect(try await begin("POST").response().text == "60000")
        }
    }

    // MARK: Connections

    // H102
    @Test func `a connection beyond the limit is answered 503, and there is room again later`() async throws {
        let (begun, release) = (HTTPLatch(), HTTPLatch())
        let handler: @Sendable (Request) async -> Response = { request in
            if request.path == "/slow" {
                begun.open()
                await release.wait()
            }
            return Response(.ok)
        }
        try await withServer(configured { $0.maximumConnections = 1 }, handler: handler) { server in
            let first = try HTTPRawClient(server.address)
            try await first.send(get("/slow"))
            await begun.wait()
            let second = try HTTPRawClient(server.address)
            let refusal = try await second.response()
            #expect(refusal.status == .serviceUnavailable)
            #expect(refusal.fields["retry-after"] == "1")
            #expect(refusal.fields["connection"] == "close")
            #expect(try await second.rest() == "")
            #expect(server.statistics.refusals.filter { $0.value > 0 } == [.source: 1])
            #expect(server.statistics.connectionsOpen == 1)
            release.open()
            #expect(try await first.response().status == .ok)
            await first.close()
            await eventually { server.statistics.connectionsOpen == 0 }
            let third = try HTTPRawClient(server.address)
            try await third.send(get("/"))
            #expect(try await third.response().status == .ok)
        }
    }

    // H102
    @Test func `beyond the limit the connection that was idle for longest gives way`() async throws {
        let configuration = configured {
            $0.maximumConnections = 2
            $0.idleGrace = .zero
        }
        try await withServer(configuration) { server in
            var clients: [HTTPRawClient] = []
            for _ in 0..<2 {
                let client = try HTTPRawClient(server.address)
                try await client.send(get("/"))
                _ = try await client.response()
                clients.append(client)
            }
            // The first becomes the younger one.
            try await clients[0].send(get("/"))
            _ = try await clients[0].response()
            let third = try HTTPRawClient(server.address)
            try await third.send(get("/third"))
            #expect(try await third.response().text == "GET /third\n")
            #expect(try await clients[1].rest() == "")
            try await clients[0].send(get("/"))
            #expect(try await clients[0].response().status == .ok)
            #expect(server.statistics.refusals.allSatisfy { $0.value == 0 })
            #expect(server.statistics.connectionsEvicted == 1)
        }
    }

    /// One attempt looks at no more than 512, so that attempts without end cost no more than they are worth.
    @Test(arguments: [(510, true), (512, false), (513, false)])
    func `behind hundreds that are in use the idle connection is found, by the second attempt at the latest`(
        busy: Int, isFoundAtOnce: Bool
    ) async throws {
        let configuration = configured {
            $0.maximumConnections = busy + 1
            $0.idleGrace = .zero
        }
        let release = HTTPLatch()
        let handler: @Sendable (Request) async -> Response = { request in
            if request.path == "/slow" { await release.wait() }
            return Response(.ok)
        }
        try await withServer(configuration, handler: handler) { server in
            defer { release.open() }
            var clients: [HTTPRawClient] = []
            for _ in 0..<busy { clients.append(try HTTPRawClient(server.address)) }
            for client in clients { try await client.send(get("/slow")) }
            await eventually { server.statistics.requests == busy }
            let idle = try HTTPRawClient(server.address)
            try await idle.send(get("/"))
            #expect(try await idle.response().status == .ok)
            let first = try HTTPRawClient(server.address)
            try await first.send(get("/"))
            #expect(try await first.response().status == (isFoundAtOnce ? .ok : .serviceUnavailable))
            if !isFoundAtOnce {
                let second = try HTTPRawClient(server.address)
                try await second.send(get("/"))
                #expect(try await second.response().status == .ok)
            }
            #expect(try await idle.rest() == "")
        }
    }

    @Test func `a crowd of refused connections is dropped without spinning`() async throws {
        let configuration = configured {
            $0.maximumConnections = 1
            $0.idleGrace = .seconds(60)
        }
        try await withServer(configuration) { server in
            let first = try HTTPRawClient(server.address)
            try await first.send("GET / HTTP/1.1\r\n")
            await eventually { server.statistics.connectionsOpen == 1 }
            var crowd: [HTTPRawClient] = []
            for _ in 0..<80 { crowd.append(try HTTPRawClient(server.address)) }
            await eventually { server.statistics.refusals[.source] == 80 }
            try await first.send("Host: a\r\n\r\n")
            #expect(try await first.response().status == .ok)
        }
    }

    @Test func `more than can be done is refused at once, and only for as long`() async throws {
        let clock = ManualLoopClock()
        let handler = OverloadedHandler(clock)
        try await withServer(clock: clock, answering: handler) { server in
            var clients: [HTTPRawClient] = []
            for _ in 0..<100 { clients.append(try HTTPRawClient(server.address)) }
            var (answered, refused) = (0, 0)
            // The first takes longer than a burst may, and all others arrive before it ends, so the loop has no pause.
            try await clients[0].send(get("/"))
            await handler.gate.isHeld()
            try await clients[0].send(String(repeating: get("/"), count: 3))
            for client in clients[1...] { try await client.send(String(repeating: get("/"), count: 4)) }
            handler.gate.letGo()
            for client in clients {
                for _ in 0..<4 {
                    if isRefused(try await client.response()) { refused += 1 } else { answered += 1 }
                }
            }
            // The first is answered, and so are the last ones, when they are no longer a crowd.
            #expect(answered >= 1 + 63 && refused >= 4)
            #expect(server.statistics.refusals.filter { $0.value > 0 } == [.overload: refused])
            #expect(server.statistics.faults == [:])
            // All of this takes less than a second; a report comes once a second, and the answer is made once.
            #expect(handler.reported == [])
            await clock.advance(by: .seconds(1))
            #expect(handler.reported == [refused])
            #expect(handler.answersMade == 1)
            for client in clients {
                try await client.send(get("/"))
                #expect(try await client.response().status == .ok)
            }
        }
    }
}

/// Takes its time for each answer.
private final class OverloadedHandler: RequestHandler {
    /// Holds the loop at the first request, which takes longer than the others also after that.
    let gate = LoopGate()
    private let clock: ManualLoopClock
    private let state = Mutex((reported: [Int](), answersMade: 0, hasBegun: false))

    init(_ clock: ManualLoopClock) { self.clock = clock }

    /// The counts of the reports about overload.
    var reported: [Int] { state.withLock { $0.reported } }
    /// How often it was asked for the answer to a refusal.
    var answersMade: Int { state.withLock { $0.answersMade } }

    func respond(to request: Request) async -> Response {
        let isFirst = state.withLock { state in
            defer { state.hasBegun = true }
            return !state.hasBegun
        }
        if isFirst {
            gate.hold()
            clock.move(by: .milliseconds(120))
        }
        clock.move(by: .milliseconds(2))
        return Response(.ok)
    }

    func response(toFault status: Status, detail: String) -> Response { Response(status) }

    func response(to refusal: Refusal) -> Response {
        state.withLock { $0.answersMade += 1 }
        return Response(.serviceUnavailable)
    }

    func refused(_ refusal: Refusal, count: Int) {
        state.withLock { if refusal == .overload { $0.reported.append(count) } }
    }
}
