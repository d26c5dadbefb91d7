import BrokerTesting
import ExternalText
import Glibc
import HTTPCodec
import HTTPServer
import Reactor
import Synchronization
import Testing

@Suite(.timeLimit(.minutes(1))) struct `HTTP time-outs` {
    /// Sends `start` and then one byte a second. The server answers with 408 after ten seconds and not before: each byte
    /// would extend a time-out that was counted from the last read.
    private func drip(_ client: HTTPRawClient, after start: String, _ clock: ManualLoopClock) async throws {
        try await client.send(start)
        for _ in 0..<9 {
            await clock.advance(by: .seconds(1))
            #expect(await !client.hasInput(within: .zero))
            try await client.send("a")
        }
        await clock.advance(by: .milliseconds(999))
        #expect(await !client.hasInput(within: .zero))
        await clock.advance(by: .milliseconds(500))
        let response = try await client.response()
        #expect(response.status == .requestTimeout)
        #expect(response.fields["connection"] == "close")
        #expect(try await client.rest() == "")
    }

    // H008
    @Test func `a head has to be complete in time, however steadily it comes`() async throws {
        let clock = ManualLoopClock()
        try await withServer(configured { $0.headTimeout = .seconds(10) }, clock: clock) { server in
            try await drip(try HTTPRawClient(server.address), after: "GET / HTTP/1.1\r\nX: ", clock)
        }
    }

    // H008
    @Test func `content has to be complete in time, however steadily it comes`() async throws {
        let clock = ManualLoopClock()
        try await withServer(configured { $0.bodyTimeout = .seconds(10) }, clock: clock) { server in
            let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n"
            try await drip(try HTTPRawClient(server.address), after: head, clock)
        }
    }

    @Test(arguments: [true, false])
    func `a connection that sends nothing in time is closed without an answer`(isFirst: Bool) async throws {
        let clock = ManualLoopClock()
        let configuration = configured {
            $0.headTimeout = isFirst ? .seconds(60) : .seconds(10)
            $0.idleTimeout = isFirst ? .seconds(10) : .seconds(60)
        }
        try await withServer(configuration, clock: clock) { server in
            let client = try HTTPRawClient(server.address)
            if !isFirst {
                try await client.send(get("/"))
                _ = try await client.response()
            }
            await clock.advance(by: .milliseconds(59_999))
            #expect(server.statistics.connectionsOpen == 1)
            await clock.advance(by: .milliseconds(500))
            #expect(server.statistics.connectionsOpen == 0)
            #expect(try await client.rest() == "")
        }
    }

    @Test func `a request that comes at the last moment is answered, and its connection stays`() async throws {
        let clock = ManualLoopClock()
        let clients = Mutex<[HTTPRawClient]>([])
        let handler: @Sendable (Request) async -> Response = { request in
            let clients = clients.withLock { $0 }
            switch request.path {
            case "/hold":
                // Until the first connection's time is up, and a check of the deadlines is due.
                try? clients[2].sendBlocking(Array(get("/then").utf8))
                clock.move(by: .seconds(60))
            case "/then":
                // After this turn has asked for ready descriptors, and before it checks the deadlines.
                try? clients[0].sendBlocking(Array(get("/late").utf8))
            default: break
            }
            return Response(.ok, body: Array(request.path.utf8))
        }
        let configuration = configured { $0.idleTimeout = .seconds(60) }
        try await withServer(configuration, clock: clock, handler: handler) { server in
            let three = try (0..<3).map { _ in try HTTPRawClient(server.address) }
            clients.withLock { $0 = three }
            defer { clients.withLock { $0 = [] } }
            try await three[0].send(get("/first"))
            #expect(try await three[0].response().text == "/first")
            try await three[1].send(get("/hold"))
            #expect(try await three[0].response().text == "/late")
            try await three[0].send(get("/again"))
            #expect(try await three[0].response().text == "/again")
        }
    }

    @Test func `many time-outs at once leave others their turns`() async throws {
        // The check of the deadlines ends its turn after some dozen readings of the clock.
        let clock = ManualLoopClock(step: .microseconds(2))
        let server = Mutex(Server?.none)
        let client = Mutex(HTTPRawClient?.none)
        let open = Mutex(Set<Int>())
        // The next request is there before the turn ends that answers this one, while there are other connections.
        let handler: @Sendable (Request) async -> Response = { _ in
            if let count = server.withLock({ $0?.statistics.connectionsOpen }), count > 1 {
                open.withLock { _ = $0.insert(count) }
                client.withLock { try? $0?.sendBlocking(Array(get("/").utf8)) }
            }
            return Response(.ok)
        }
        let configuration = configured { $0.headTimeout = .seconds(2) }
        try await withServer(configuration, clock: clock, handler: handler) { running in
            let silent = try (0..<1000).map { _ in try SilentClient(running.address) }
            let asking = try HTTPRawClient(running.address)
            await eventually { running.statistics.connectionsOpen == silent.count + 1 }
            server.withLock { $0 = running }
            client.withLock { $0 = asking }
            defer { server.withLock { $0 = nil } }
            defer { client.withLock { $0 = nil } }
            try await asking.send(get("/"))
            #expect(try await asking.response().status == .ok)
            clock.move(by: .seconds(2))
            while running.statistics.connectionsOpen > 1 {
                #expect(try await asking.response().status == .ok)
            }
            let between = open.withLock { $0.filter { (2...silent.count).contains($0) } }
            #expect(between.count > 5, "\(between.sorted())")
        }
    }

    @Test func `time-outs of requests do not count while a handler works`() async throws {
        let clock = ManualLoopClock()
        let (begun, release) = (HTTPLatch(), HTTPLatch())
        let handler: @Sendable (Request) async -> Response = { _ in
            begun.open()
            await release.wait()
            return Response(.ok)
        }
        try await withServer(clock: clock, handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
            await begun.wait()
            // Longer than every time-out.
            await clock.advance(by: .seconds(3600))
            release.open()
            #expect(try await client.response().status == .ok)
        }
    }

    // MARK: Slow peers

    /// Waits until the server answers nothing more, because its peer does not read.
    private func allIsSent(by server: Server, _ clock: ManualLoopClock) async {
        var before = -1
        while server.statistics.requests != before {
            before = server.statistics.requests
            for _ in 0..<4 { await clock.handleInput() }
        }
    }

    // H009
    @Test func `a peer that does not read is dropped, and what it could make the server queue is bounded`() async throws
    {
        let body = [UInt8](repeating: 0x61, count: 32_768)
        let handler: @Sendable (Request) async -> Response = { _ in Response(.ok, body: body) }
        let clock = ManualLoopClock()
        let configuration = configured { $0.writeTimeout = .seconds(30) }
        try await withServer(configuration, clock: clock, handler: handler) { server in
            let client = try HTTPRawClient(server.address, receiveBufferBytes: 4096)
            // 64 MiB of answers are asked for.
            try await client.send(String(repeating: get("/"), count: 2048))
            await allIsSent(by: server, clock)
            await clock.advance(by: .milliseconds(29_999))
            #expect(server.statistics.connectionsStalled == 0)
            await clock.advance(by: .milliseconds(500))
            #expect(server.statistics.connectionsStalled == 1)
            #expect(server.statistics.connectionsOpen == 0)
            // The kernel takes up to 4 MiB; what lies beyond it is the server's own bound.
            #expect(server.statistics.requests * body.count < 8 << 20)
            await #expect(throws: HTTPRawClient.Failure.reset) {
                while true { if try await client.receive().isEmpty { break } }
            }
        }
    }

    @Test func `a peer that reads slowly but steadily gets everything`() async throws {
        let body = [UInt8](repeating: 0x61, count: 32_768)
        let handler: @Sendable (Request) async -> Response = { _ in Response(.ok, body: body) }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address, receiveBufferBytes: 4096)
            try await client.send(String(repeating: get("/"), count: 400))
            for _ in 0..<400 { #expect(try await client.response().body.count == body.count) }
        }
    }

    /// The server does not read the requests that have arrived while the peer does not read.
    @Test func `a peer that pauses in reading is not late with requests that have arrived`() async throws {
        let body = [UInt8](repeating: 0x61, count: 32_768)
        let handler: @Sendable (Request) async -> Response = { _ in Response(.ok, body: body) }
        let clock = ManualLoopClock()
        let configuration = configured { $0.headTimeout = .seconds(10) }
        try await withServer(configuration, clock: clock, handler: handler) { server in
            let client = try HTTPRawClient(server.address, receiveBufferBytes: 4096)
            try await client.send(String(repeating: get("/"), count: 200))
            await allIsSent(by: server, clock)
            // Twice as long as a head may take.
            await clock.advance(by: .seconds(20))
            for _ in 0..<200 { #expect(try await client.response().status == .ok) }
        }
    }

    // H010
    @Test func `slow peers do not delay others`() async throws {
        try await withServer { server in
            var slow: [HTTPRawClient] = []
            for _ in 0..<30 {
                let client = try HTTPRawClient(server.address)
                try await client.send("GET / HTTP/1.1\r\nX: ")
                slow.append(client)
            }
            let fast = try HTTPRawClient(server.address)
            for _ in 0..<100 {
                for client in slow.prefix(3) { try await client.send("a") }
                try await fast.send(get("/"))
                #expect(try await fast.response().status == .ok)
            }
        }
    }
}

/// A connection that nothing is sent on.
private final class SilentClient {
    private let descriptor: OwnedDescriptor

    init(_ address: SocketAddress) throws {
        descriptor = OwnedDescriptor(
            adopting: try retryingInterrupts("socket") {
                socket(address.family, CInt(SOCK_STREAM.rawValue) | CInt(SOCK_CLOEXEC.rawValue), 0)
            })
        let number = descriptor.rawValue
        try retryingInterrupts("connect") { unsafe address.withSockaddr { unsafe Glibc.connect(number, $0, $1) } }
    }
}
