import BrokerTesting
import Glibc
import HTTPCodec
import HTTPSClient
import Reactor
import Synchronization
import Testing

@Suite(.serialized) struct `Deadlines and cancellation` {
    @Test func `a resolver that does not answer`() async throws {
        let stalled = HangingLookUp()
        defer { stalled.release() }
        let lookUp: NameResolver.LookUp = { (host) throws(ResolutionError) in try stalled.addresses(of: host) }
        try await withClient([set(\.connectTimeout, .milliseconds(100))], lookUp: lookUp) { client in
            #expect(
                await client.failure("https://good.example.test/")
                    == .timedOut(.nameResolution, requestSent: false))
        }
    }

    // H093
    @Test func `a peer that does not accept`() async throws {
        // The queue of a listener from which no process accepts is full after a few connections. The kernel then drops
        // further ones.
        let loop = try EventLoop(name: "test-backlog")
        defer { loop.shutDown() }
        let listener = try Socket.listen(on: SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0), backlog: 0)
        let address = try Socket.localAddress(of: listener.rawValue)
        let filler = Filler(loop: loop)
        await filler.fill(address)
        try await withClient([set(\.connectTimeout, .seconds(1))]) { client in
            #expect(
                await client.failure("https://localhost:\(address.port)/") == .timedOut(.connect, requestSent: false))
        }
        await filler.empty()
        #expect(listener.rawValue >= 0)
    }

    // H093
    @Test(
        arguments: [
            [.withoutHandshake, .hold],
            // A record of 2^14 bytes, sent one byte at a time.
            [
                .withoutHandshake,
                .drip("\u{16}\u{3}\u{3}\u{40}\u{0}" + String(repeating: "\u{2}", count: 16384), milliseconds: 20),
            ],
        ] as [[TLSTestServer.Step]])
    func `a stalled handshake`(script: [TLSTestServer.Step]) async throws {
        let server = try await TLSTestServer(script)
        try await withClient([set(\.tlsHandshakeTimeout, .milliseconds(200))]) { client in
            let failure = await client.failure(server.url())
            #expect(failure == .timedOut(.tlsHandshake, requestSent: false))
            #expect(failure?.requestMayHaveBeenProcessed == false)
        }
    }

    /// The client's limit and the request's limit, in milliseconds. The shorter limit applies.
    @Test(arguments: [(60_000, 1000), (1000, 60_000)])
    func `a limit of the request's own`(client limit: Int, request: Int) async throws {
        let server = try await TLSTestServer([.withoutHandshake, .hold])
        try await withClient([set(\.exchangeTimeout, .milliseconds(limit))]) { client in
            let url = try #require(URLTarget(server.url()))
            await #expect(throws: TransportError.timedOut(.tlsHandshake, requestSent: false)) {
                try await client.send(ClientRequest(method: .get, url: url, timeLimit: .milliseconds(request)))
            }
        }
    }

    // H093
    @Test func `a handshake that the peer prolongs without end`() async throws {
        // HelloRequest, which a client ignores during a handshake (RFC 5246 §7.4.1.1).
        let helloRequest = "\u{16}\u{3}\u{3}\u{0}\u{4}\u{0}\u{0}\u{0}\u{0}"
        let server = try await TLSTestServer([.withoutHandshake, .flood(String(repeating: helloRequest, count: 1000))])
        try await withClient { client in
            #expect(await client.failure(server.url()) == .tlsFailed)
        }
    }

    // H093
    @Test func `a silent server`() async throws {
        let server = try await TLSTestServer([.hold])
        try await withClient([set(\.firstByteTimeout, .milliseconds(200))]) { client in
            let failure = await client.failure(server.url())
            #expect(failure == .timedOut(.firstByte, requestSent: true))
            #expect(failure?.requestMayHaveBeenProcessed == true)
            // The client keeps running, and this connection is closed.
            let report = try await server.report(afterEnds: 1)
            #expect(report.connections == 1)
        }
    }

    @Test func `a response that has arrived is read, also when the loop is held up until the limit has passed`()
        async throws
    {
        let server = try await TLSTestServer(tls: nil, [.read, .await, .send(answer("{}")), .note("sent"), .hold])
        let loop = try EventLoop(name: "test-client")
        var configuration = HTTPSClientConfiguration()
        configuration.targets = .everything
        configuration.firstByteTimeout = .seconds(2)
        let client = try HTTPSClient(
            configuration: configuration, loop: loop,
            resolver: NameResolver { _ in [.v4([127, 0, 0, 1])] })
        async let response = client.post("http://localhost:\(server.port)/token")
        _ = try await server.report(afterRequests: 1)
        // The client's limit began before.
        let limit = MonotonicInstant.after(configuration.firstByteTimeout)
        let isHeldUp = Atomic(false)
        let mayGoOn = Atomic(false)
        loop.execute {
            isHeldUp.store(true, ordering: .releasing)
            while !mayGoOn.load(ordering: .acquiring) { usleep(1000) }
        }
        while !isHeldUp.load(ordering: .acquiring) { await Task.yield() }
        try server.proceed()
        _ = try await server.report(afterRequests: 2)
        while MonotonicInstant.now < limit { try await Task.sleep(for: .milliseconds(10)) }
        mayGoOn.store(true, ordering: .releasing)
        #expect(try await response.status == .ok)
        await client.close()
        loop.shutDown()
    }

    // H093
    @Test func `a response that arrives byte by byte`() async throws {
        let hints = "HTTP/1.1 103 Early Hints\r\nX: " + String(repeating: "x", count: 40) + "\r\n\r\n"
        let texts = [
            "HTTP/1.1 200 OK\r\nX: " + String(repeating: "x", count: 2000),
            "HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + String(repeating: "x", count: 2000),
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + String(repeating: "1\r\nx\r\n", count: 400),
            String(repeating: hints, count: 6) + "H",
        ]
        // At the same time, because each takes as long as the limit.
        try await withThrowingTaskGroup(of: Void.self) { group in
            for text in texts { group.addTask { try await Self.expectTimeout(of: text) } }
            try await group.waitForAll()
        }
    }

    private static func expectTimeout(of text: String) async throws {
        let server = try await TLSTestServer([.read, .drip(text, milliseconds: 20), .hold])
        try await withClient([set(\.exchangeTimeout, .seconds(5))]) { client in
            let start = MonotonicInstant.now
            let failure = await client.failure(server.url())
            #expect(failure == .timedOut(.response, requestSent: true), "\(text.prefix(60))")
            #expect(start.duration(to: .now) < .seconds(20), "\(text.prefix(60))")
            let report = try await server.report(afterEnds: 1)
            #expect(report.connections == 1)
        }
    }

    @Test func `a server that does not read a large request`() async throws {
        let server = try await TLSTestServer([.await, .hold])
        try await withClient([set(\.firstByteTimeout, .milliseconds(500))]) { client in
            let body = String(repeating: "x", count: 64 << 20)
            await #expect(throws: TransportError.timedOut(.sendRequest, requestSent: true)) {
                _ = try await client.post(server.url(), body)
            }
        }
        try server.proceed()
    }

    @Test func `waiting for a free connection can be cancelled`() async throws {
        let server = try await TLSTestServer([.read, .await, .send(answer("{}")), .hold])
        try await withClient([set(\.maximumConnectionsPerOrigin, 1)]) { client in
            async let first = client.post(server.url())
            _ = try await server.report(afterRequests: 1)
            let short = Task { () -> TransportError? in await client.failure(server.url()) }
            short.cancel()
            #expect(await short.value == .cancelled)
            try server.proceed()
            let response = try await first
            #expect(response.text == "{}")
        }
        let report = try await server.report(afterEnds: 1)
        #expect(report.connections == 1)
    }

    @Test func `waiting for a free connection ends at the exchange's deadline`() async throws {
        let server = try await TLSTestServer([.hold])
        try await withClient([set(\.maximumConnectionsPerOrigin, 1), set(\.exchangeTimeout, .seconds(5))]) { client in
            async let first = client.failure(server.url())
            async let second = client.failure(server.url())
            let failures = await [first, second]
            #expect(failures.contains(.timedOut(.firstByte, requestSent: true)))
            // The slot may become free in the last microsecond of the second request's time, which is then too short.
            #expect(
                failures.contains { failure in
                    if case .timedOut(_, requestSent: false) = failure { true } else { false }
                })
        }
    }

    @Test func `cancelling the task closes the connection`() async throws {
        let server = try await TLSTestServer([.read, .hold])
        try await withClient { client in
            let task = Task { await client.failure(server.url()) }
            _ = try await server.report(afterRequests: 1)
            task.cancel()
            #expect(await task.value == .cancelled)
            let report = try await server.report(afterEnds: 1)
            #expect(report.connections == 1)
            #expect(await client.counters.connectionsReused == 0)
        }
    }

    @Test func `a task that was cancelled before sends nothing`() async throws {
        let server = try await TLSTestServer([.serve(answer("{}"))])
        try await withClient { client in
            let (gate, opening) = AsyncStream.makeStream(of: Void.self)
            let task = Task {
                for await _ in gate {}
                return await client.failure(server.url())
            }
            task.cancel()
            opening.finish()
            #expect(await task.value == .cancelled)
            _ = try await client.post(server.url())
        }
        #expect(try await server.report(afterRequests: 1).requests.count == 1)
    }

    @Test func `a closed client refuses requests and lets running exchanges finish`() async throws {
        let server = try await TLSTestServer([.read, .await, .send(answer("{}")), .hold])
        try await withClient { client in
            async let first = client.post(server.url())
            _ = try await server.report(afterRequests: 1)
            async let closed: Void = client.close()
            try server.proceed()
            let response = try await first
            #expect(response.text == "{}")
            await closed
            #expect(await client.failure(server.url()) == .cancelled)
            let report = try await server.report(afterEnds: 1)
            #expect(report.connections == 1)
        }
    }
}

/// Holds connections that fill a listener's queue.
private actor Filler {
    private let loop: EventLoop
    private var held: [Held] = []
    nonisolated var unownedExecutor: UnownedSerialExecutor { unsafe loop.asUnownedSerialExecutor() }

    private final class Held {
        let descriptor: OwnedDescriptor
        init(_ descriptor: consuming OwnedDescriptor) { self.descriptor = descriptor }
    }

    init(loop: EventLoop) { self.loop = loop }

    /// Opens connections until the listener's queue is full.
    func fill(_ address: SocketAddress) async {
        while let descriptor = try? await Socket.connect(to: address, on: loop, until: .after(.milliseconds(300))) {
            held.append(Held(descriptor))
        }
    }

    func empty() { held = [] }
}
