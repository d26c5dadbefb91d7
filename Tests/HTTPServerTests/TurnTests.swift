import BrokerTesting
import Glibc
import HTTPCodec
import HTTPServer
import Reactor
import Synchronization
import Testing

/// Blocks the loop at its first request until a test lets it go on, and records the paths of the requests.
private final class GatedHandler: RequestHandler {
    let gate = LoopGate()
    private let state = Mutex<[String]>([])
    private let clock: ManualLoopClock?
    private let delay: Duration

    /// - Parameters:
    ///   - clock: shows how much time the handler takes; nil when it takes none.
    ///   - delay: how long the first request takes when the loop goes on.
    init(_ clock: ManualLoopClock? = nil, delay: Duration = .zero) {
        self.clock = clock
        self.delay = delay
    }

    /// The paths of the requests, in order.
    var paths: [String] { state.withLock { $0 } }

    func respond(to request: Request) async -> Response {
        let isFirst = state.withLock { paths in
            paths.append(request.path)
            return paths.count == 1
        }
        if isFirst {
            gate.hold()
            clock?.move(by: delay)
        }
        return Response(.ok)
    }

    func response(toFault status: Status, detail: String) -> Response { Response(status) }

    /// Answers `GET /quick`, which takes 3 ms.
    func answerNow(
        _ head: borrowing RequestHead, _ bytes: Span<UInt8>, from peer: PeerIdentity?, into answer: NowAnswer
    ) -> Int? {
        guard head.isRequest("GET", for: "/quick", in: bytes) else { return nil }
        clock?.move(by: .milliseconds(3))
        answer.write([])
        return 0
    }
}

/// What is answered at once.
private let quickRequest = "GET /quick HTTP/1.1\r\nHost: h\r\n\r\n"

@Suite struct `The turns of a loop` {
    @Test func `a connection with many requests gives way to one with few`() async throws {
        let handler = GatedHandler()
        try await withServer(answering: handler) { server in
            let (first, greedy, modest) = (
                try HTTPRawClient(server.address), try HTTPRawClient(server.address), try HTTPRawClient(server.address)
            )
            for client in [greedy, modest] {
                try await client.send(quickRequest)
                #expect(try await client.response().status == .ok)
            }
            try await first.send(get("/first"))
            await handler.gate.isHeld()
            let count = 600
            try await greedy.send(String(repeating: get("/greedy"), count: count))
            try await modest.send(get("/modest"))
            handler.gate.letGo()
            #expect(try await modest.response().status == .ok)
            for _ in 0..<count { #expect(try await greedy.response().status == .ok) }
            // A portion, and no more than one.
            let before = try #require(handler.paths.firstIndex(of: "/modest"))
            #expect(before <= 1 + 16)
            #expect(handler.paths.count == count + 2)
        }
    }

    @Test func `a connection in the middle of a request comes behind one that begins a request`() async throws {
        let handler = GatedHandler()
        try await withServer(answering: handler) { server in
            let first = try HTTPRawClient(server.address)
            var slow: [HTTPRawClient] = []
            for _ in 0..<20 {
                let client = try HTTPRawClient(server.address)
                try await client.send(quickRequest)
                #expect(try await client.response().status == .ok)
                try await client.send("GET /slow HTT")
                slow.append(client)
            }
            let modest = try HTTPRawClient(server.address)
            try await modest.send(quickRequest)
            #expect(try await modest.response().status == .ok)
            try await first.send(get("/first"))
            await handler.gate.isHeld()
            for client in slow { try await client.send("P/1.1\r\nHost: a\r\n\r\n") }
            try await modest.send(get("/modest"))
            handler.gate.letGo()
            for client in slow { #expect(try await client.response().status == .ok) }
            #expect(try await modest.response().status == .ok)
            #expect(handler.paths[..<2] == ["/first", "/modest"])
        }
    }

    @Test func `a connection that waits for its turn does not give way to a new one`() async throws {
        let handler = GatedHandler()
        let configuration = configured {
            $0.maximumConnections = 2
            $0.idleGrace = .zero
        }
        try await withServer(configuration, answering: handler) { server in
            let (first, second) = (try HTTPRawClient(server.address), try HTTPRawClient(server.address))
            try await second.send(quickRequest)
            #expect(try await second.response().status == .ok)
            try await first.send(get("/first"))
            await handler.gate.isHeld()
            // Its turn comes behind the listener's.
            try await second.send("POST /second HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok")
            let third = try HTTPRawClient(server.address)
            try await third.send(get("/third"))
            handler.gate.letGo()
            // The first has been answered by then, and gives way, although the second was idle for longer.
            #expect(try await first.response().status == .ok)
            #expect(try await second.response().status == .ok)
            #expect(try await third.response().status == .ok)
        }
    }

    /// The loop has no pause for longer than a burst, and more connections are ready than one turn serves.
    @Test func `what is answered at once is refused, too, where it waited for too long`() async throws {
        let clock = ManualLoopClock()
        let handler = GatedHandler(clock, delay: .milliseconds(150))
        try await withServer(clock: clock, answering: handler) { server in
            let first = try HTTPRawClient(server.address)
            var clients: [HTTPRawClient] = []
            for _ in 0..<200 {
                let client = try HTTPRawClient(server.address)
                try await client.send(quickRequest)
                #expect(try await client.response().status == .ok)
                clients.append(client)
            }
            try await first.send(get("/first"))
            await handler.gate.isHeld()
            for client in clients { try await client.send(quickRequest) }
            handler.gate.letGo()
            var (answered, refused) = (0, 0)
            for client in clients {
                if isRefused(try await client.response()) { refused += 1 } else { answered += 1 }
            }
            // At least the requests of the first turn are answered. A turn takes longer than a request may wait.
            #expect(answered >= 16 && refused > 0)
            #expect(server.statistics.refusals[.overload] == refused)
            #expect(handler.paths == ["/first"])
            for client in clients {
                try await client.send(quickRequest)
                #expect(try await client.response().status == .ok)
            }
        }
    }
}
