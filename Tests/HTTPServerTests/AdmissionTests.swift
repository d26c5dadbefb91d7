import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPServer
import Reactor
import Synchronization
import Testing

/// Admits by the path: `/open`, `/known`, `/slow` when `decide` opens, and refuses everything else with 401.
private final class AdmittingHandler: RequestHandler {
    let decide = HTTPLatch()
    private let counts = Mutex((asked: 0, cancelled: 0))

    var asked: Int { counts.withLock { $0.asked } }
    var cancelled: Int { counts.withLock { $0.cancelled } }

    func admit(_ request: Request) async -> Admission {
        counts.withLock { $0.asked += 1 }
        switch request.path {
        case "/open": return .admitted(contentBytes: 50_000, isOpen: true)
        case "/known": return .admitted(found: "known \(request.body.count) \(request.id)")
        case "/slow":
            await decide.wait()
            if Task.isCancelled { counts.withLock { $0.cancelled += 1 } }
            return .admitted(found: "slow")
        default: return .refused(Response(.unauthorized, body: Array("stranger".utf8)))
        }
    }

    func respond(to request: Request) async -> Response {
        let found = (request.admission as? String).map { $0.replacing(request.id, with: "id") }
        return Response(.ok, body: Array("\(found ?? "nothing") \(request.body.count)".utf8))
    }

    func response(toFault status: Status, detail: String) -> Response { Response(status) }
}

private func post(_ path: String, _ count: Int, _ fields: String = "") -> String {
    "POST \(path) HTTP/1.1\r\nHost: a\r\nContent-Length: \(count)\r\n\(fields)\r\n"
}

private func text(_ count: Int) -> String { String(repeating: "x", count: count) }

@Suite(.timeLimit(.minutes(1))) struct `Content is admitted before it is read` {
    @Test(arguments: [
        post("/stranger", 60_000), post("/stranger", 60_000, "Expect: 100-continue\r\n"),
        post("/stranger", 10) + "0123456789", post("/stranger", 60_000) + text(5000),
        "PUT /stranger HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "DELETE /stranger HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ])
    func `and what is refused is answered from the head, and nothing behind it is`(sent: String) async throws {
        let handler = AdmittingHandler()
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(sent)
            let response = try await client.response()
            #expect(response.status == .unauthorized)
            #expect(response.text == "stranger")
            #expect(response.fields["Connection"] == "close")
            #expect(response.fields["X-Request-ID"]?.utf8.count == 32)
            // What of the content comes now is dropped, so that it does not turn the end into a reset.
            try await client.send(text(100_000))
            #expect(try await client.rest() == "")
            #expect(handler.asked == 1)
            #expect(server.statistics.requests == 1)
        }
    }

    @Test func `and what was found goes with the request`() async throws {
        let handler = AdmittingHandler()
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(
                post("/known", 3) + "abc" + get("/next") + post("/known", 4, "Expect: 100-continue\r\n"))
            #expect(try await client.response().text == "known 0 id 3")
            #expect(try await client.response().text == "nothing 0")
            #expect(try await client.receive(through: "\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n")
            try await client.drip("defg")
            #expect(try await client.response().text == "known 0 id 4")
            try await client.send(
                "POST /known HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
            #expect(try await client.response().text == "known 0 id 3")
            #expect(server.statistics.requests == 4)
            #expect(handler.asked == 3)
        }
    }

    @Test func `and it waits, with the request for it, until that is decided`() async throws {
        let handler = AdmittingHandler()
        // A server that read on would find the content too much.
        try await withServer(configured { $0.contentBytes = 100 }, answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(post("/slow", 50, "Expect: 100-continue\r\n"))
            let other = try HTTPRawClient(server.address)
            try await other.send(post("/slow", 5000) + text(5000))
            await eventually { handler.asked == 2 }
            let third = try HTTPRawClient(server.address)
            try await third.send(post("/known", 100) + text(100))
            #expect(try await third.response().text == "known 0 id 100")
            #expect(await !client.hasInput(within: .zero))
            #expect(await !other.hasInput(within: .zero))
            handler.decide.open()
            #expect(try await client.receive(through: "\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n")
            try await client.send(text(50))
            #expect(try await client.response().text == "slow 50")
            #expect(try await other.response().status == .serviceUnavailable)
        }
    }

    @Test func `and deciding is cancelled when the client is gone`() async throws {
        let handler = AdmittingHandler()
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(post("/slow", 5))
            await eventually { handler.asked == 1 }
            await client.abort()
            await eventually { server.statistics.connectionsOpen == 0 }
            handler.decide.open()
            await eventually { handler.cancelled == 1 }
        }
    }

    @Test func `and a drain waits for the decision and the content`() async throws {
        let handler = AdmittingHandler()
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(post("/slow", 5))
            await eventually { handler.asked == 1 }
            async let drained: Void = server.drain(within: .seconds(30))
            await eventually { (try? HTTPRawClient(server.address)) == nil }
            handler.decide.open()
            try await client.send("hello")
            let response = try await client.response()
            #expect(response.text == "slow 5")
            #expect(response.fields["Connection"] == "close")
            #expect(try await client.rest() == "")
            await client.close()
            await drained
        }
    }

    @Test(arguments: [(50_000, 200), (50_001, 413)])
    func `and may have a limit of its own`(count: Int, status: Int) async throws {
        try await withServer(answering: AdmittingHandler()) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(post("/open", count))
            if status == 200 { try await client.send(text(count)) }
            #expect(try await client.response().status.code == status)
            let other = try HTTPRawClient(server.address)
            let size = String(count, radix: 16)
            try await other.send(
                "POST /open HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\(size)\r\n\(text(count))\r\n0\r\n\r\n"
            )
            #expect(try await other.response().status.code == status)
        }
    }

    // MARK: Limits

    @Test func `and that of a GET is dropped and takes no room`() async throws {
        try await withServer(configured { $0.contentBytes = 10_000 }, answering: AdmittingHandler()) { server in
            var clients: [HTTPRawClient] = []
            for _ in 0..<3 {
                let client = try HTTPRawClient(server.address)
                try await client.send("GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n" + text(59_999))
                clients.append(client)
            }
            await eventually { server.statistics.connectionsOpen == 3 }
            let client = try HTTPRawClient(server.address)
            try await client.send(post("/known", 10_000) + text(10_000))
            #expect(try await client.response().status == .ok)
            for client in clients {
                try await client.send("x" + get("/next"))
                #expect(try await client.response().text == "nothing 0")
                #expect(try await client.response().text == "nothing 0")
            }
        }
    }

    @Test func `and that of strangers gives way to that of a known caller, the oldest first`() async throws {
        try await withServer(configured { $0.contentBytes = 100_000 }, answering: AdmittingHandler()) { server in
            var strangers: [HTTPRawClient] = []
            for _ in 0..<3 {
                let client = try HTTPRawClient(server.address)
                try await client.send(post("/open", 30_000) + text(25_000))
                // Its content is held before the next one's is: the answer to this comes behind it.
                let other = try HTTPRawClient(server.address)
                try await other.send(get("/"))
                _ = try await other.response()
                strangers.append(client)
            }
            let known = try HTTPRawClient(server.address)
            try await known.send(post("/known", 60_000) + text(60_000))
            #expect(try await known.response().text == "known 0 id 60000")
            for client in strangers[..<2] {
                let refusal = try await client.response()
                #expect(refusal.status == .serviceUnavailable)
                #expect(refusal.fields["Retry-After"] == "1")
                #expect(try await client.rest() == "")
            }
            try await strangers[2].send(text(5000))
            #expect(try await strangers[2].response().text == "nothing 30000")
            #expect(server.statistics.refusals.filter { $0.value > 0 } == [.contents: 2])
        }
    }

    @Test func `and that of a known caller does not give way to that of a stranger`() async throws {
        try await withServer(configured { $0.contentBytes = 60_000 }, answering: AdmittingHandler()) { server in
            let known = try HTTPRawClient(server.address)
            try await known.send(post("/known", 50_000) + text(49_999))
            let other = try HTTPRawClient(server.address)
            try await other.send(get("/"))
            _ = try await other.response()
            let stranger = try HTTPRawClient(server.address)
            try await stranger.send(post("/open", 30_000) + text(29_999))
            #expect(try await stranger.response().status == .serviceUnavailable)
            try await known.send("x")
            #expect(try await known.response().text == "known 0 id 50000")
        }
    }

    @Test(arguments: [("/open", true), ("/known", false)])
    func `and its connection gives way to another one while no caller is known`(path: String, givesWay: Bool)
        async throws
    {
        let configuration = configured {
            $0.maximumConnections = 1
            $0.idleGrace = .zero
        }
        try await withServer(configuration, answering: AdmittingHandler()) { server in
            let first = try HTTPRawClient(server.address)
            try await first.send(post(path, 5, "Expect: 100-continue\r\n"))
            #expect(try await first.receive(through: "\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n")
            let second = try HTTPRawClient(server.address)
            try await second.send(get("/"))
            #expect(try await second.response().status == (givesWay ? .ok : .serviceUnavailable))
            if givesWay {
                #expect(try await first.rest() == "")
            } else {
                try await first.send("hello")
                #expect(try await first.response().text == "known 0 id 5")
            }
        }
    }
}
