import BrokerTesting
import HTTPCodec
import HTTPServer
import Reactor
import Synchronization
import Testing

/// Pieces that a test hands to a stream, and how the stream ended.
private final class Script: Sendable {
    let begun = HTTPLatch()
    let ended = HTTPLatch()
    /// Set when a write has thrown.
    let failed = HTTPLatch()
    private let pieces: AsyncStream<[UInt8]>
    private let feed: AsyncStream<[UInt8]>.Continuation

    init() {
        (pieces, feed) = AsyncStream.makeStream()
    }

    func write(_ text: String) { feed.yield(Array(text.utf8)) }

    func finish() { feed.finish() }

    /// Writes the pieces as they come.
    func run(_ stream: ResponseStream) async {
        begun.open()
        do throws(StreamEnded) {
            for await piece in pieces { try await stream.write(piece) }
        } catch {
            failed.open()
        }
        ended.open()
    }

    /// Streams at `/stream`, and echoes anything else.
    var handler: @Sendable (Request) async -> Response {
        { request in
            guard request.path == "/stream" else { return await echo(request) }
            return Response(.ok, fields: ["Content-Type": "text/event-stream"], body: Array("first".utf8)) {
                await self.run($0)
            }
        }
    }
}

/// A response at `/stream` with that stream; anything else is echoed.
private func streaming(
    _ stream: @escaping @Sendable (ResponseStream) async -> Void
) -> @Sendable (Request) async -> Response {
    { request in request.path == "/stream" ? Response(.ok, stream: stream) : await echo(request) }
}

private func chunk(_ text: String) -> String {
    "\(String(text.utf8.count, radix: 16))\r\n\(text)\r\n"
}

@Suite(.timeLimit(.minutes(1))) struct `HTTP streams` {
    // MARK: What is sent

    @Test func `pieces arrive as chunks while the stream is open`() async throws {
        let script = Script()
        try await withServer(handler: script.handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            // Nothing has been written yet: the head does not wait for it.
            let head = try await client.receive(through: "\r\n\r\n")
            #expect(head.hasPrefix("HTTP/1.1 200 OK\r\nDate: "))
            #expect(head.contains("\r\nTransfer-Encoding: chunked\r\n"))
            #expect(head.contains("\r\nContent-Type: text/event-stream\r\n"))
            #expect(head.contains("\r\nX-Request-ID: "))
            #expect(!head.contains("Content-Length"))
            #expect(!head.contains("Connection"))
            #expect(try await client.receive(through: "\r\nfirst\r\n") == chunk("first"))
            for text in ["a", "0123456789abcdef", "c\r\n\r\n"] {
                script.write(text)
                #expect(try await client.receive(through: chunk(text)) == chunk(text))
                #expect(!script.ended.isOpen)
            }
            script.finish()
            #expect(try await client.receive(through: "0\r\n\r\n") == "0\r\n\r\n")
            #expect(!script.failed.isOpen)
        }
    }

    @Test func `no bytes are no piece`() async throws {
        let script = Script()
        try await withServer(handler: script.handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            for text in ["", "a", "", "b", ""] { script.write(text) }
            script.finish()
            #expect(try await client.response().text == "firstab")
            try await client.send(get("/next"))
            #expect(try await client.response().text == "GET /next\n")
        }
    }

    @Test func `what a stream begins with leaves together with its head`() async throws {
        let (begun, isLookedAt) = (HTTPLatch(), HTTPLatch())
        let handler = streaming { stream in
            for text in ["a", "b"] { try? await stream.write(Array(text.utf8)) }
            begun.open()
            while !isLookedAt.isOpen {}
            try? await stream.write(Array("c".utf8))
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            await begun.wait()
            #expect(await !client.hasInput(within: .milliseconds(50)))
            isLookedAt.open()
            let text = String(decoding: try await client.receive(), as: UTF8.self)
            #expect(text.hasSuffix("\r\n\r\n" + chunk("a") + chunk("b") + chunk("c") + "0\r\n\r\n"))
        }
    }

    @Test(arguments: [65_535, 65_536, 65_537, 1_000_000])
    func `one piece may be larger than what may be unsent`(count: Int) async throws {
        let piece = (0..<count).map { UInt8(truncatingIfNeeded: $0 &* 31 >> 3) }
        let handler = streaming { stream in
            for _ in 0..<5 { try? await stream.write(piece) }
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address, receiveBufferBytes: 4096)
            try await client.send(get("/stream") + get("/next"))
            var expected: [UInt8] = []
            for _ in 0..<5 { expected += piece }
            var text = try await client.receive(through: "\r\n\r\n")
            for _ in 0..<5 {
                text = try await client.receive(through: "\r\n")
                #expect(text == String(count, radix: 16) + "\r\n")
                #expect(try await client.receive(exactly: count) == piece)
                #expect(try await client.receive(exactly: 2) == Array("\r\n".utf8))
            }
            #expect(try await client.receive(through: "\r\n\r\n") == "0\r\n\r\n")
            #expect(try await client.response().text == "GET /next\n")
        }
    }

    @Test(arguments: ["Content-Length", "Transfer-Encoding"])
    func `a field that only the server may write becomes a 500, and the stream is not run`(name: String) async throws {
        let wasRun = HTTPLatch()
        let handler: @Sendable (Request) async -> Response = { _ in
            Response(.ok, fields: [name: "5"]) { _ in wasRun.open() }
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/"))
            #expect(try await client.rest().hasPrefix("HTTP/1.1 500 "))
            #expect(!wasRun.isOpen)
        }
    }

    // MARK: Where it ends

    @Test func `the connection goes on behind a stream, also with what was pipelined during it`() async throws {
        let script = Script()
        try await withServer(handler: script.handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            await script.begun.wait()
            try await client.send(get("/during"))
            script.write("a")
            _ = try await client.receive(through: chunk("a"))
            #expect(server.statistics.requests == 1)
            script.finish()
            #expect(try await client.receive(through: "0\r\n\r\n") == "0\r\n\r\n")
            #expect(try await client.response().text == "GET /during\n")
            try await client.send(get("/after"))
            #expect(try await client.response().text == "GET /after\n")
        }
    }

    @Test(arguments: ["", "Connection: keep-alive\r\n"])
    func `for HTTP 1.0 the end of the connection ends the content`(field: String) async throws {
        let script = Script()
        try await withServer(handler: script.handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("GET /stream HTTP/1.0\r\n\(field)\r\n")
            let head = try await client.receive(through: "\r\n\r\n")
            #expect(!head.contains("Transfer-Encoding"))
            #expect(!head.contains("Content-Length"))
            #expect(head.contains("\r\nConnection: close\r\n"))
            script.write("a")
            #expect(try await client.receive(through: "a") == "firsta")
            // What was sent too much does not turn the close into a reset.
            try await client.send("too much")
            script.write("b")
            script.finish()
            #expect(try await client.rest() == "b")
        }
    }

    @Test(arguments: ["HTTP/1.0", "HTTP/1.1"])
    func `what arrives at the moment of its end takes nothing from a stream that ends its connection`(
        version: String
    ) async throws {
        let gate = LoopGate()
        let handler = streaming { stream in
            try? await stream.write(Array("all of it".utf8))
            // The loop is not told of what comes now before the stream has ended.
            gate.hold()
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("GET /stream \(version)\r\nHost: a\r\nConnection: close\r\n\r\n")
            await gate.isHeld()
            try await client.send("too much")
            gate.letGo()
            _ = try await client.receive(through: "\r\n\r\n")
            let content = version == "HTTP/1.0" ? "all of it" : chunk("all of it") + "0\r\n\r\n"
            #expect(try await client.rest() == content)
        }
    }

    @Test func `a client that asked for the close gets it behind the last chunk`() async throws {
        let script = Script()
        try await withServer(handler: script.handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream", "Connection: close\r\n"))
            #expect(try await client.receive(through: "\r\n\r\n").contains("\r\nConnection: close\r\n"))
            script.finish()
            #expect(try await client.rest() == chunk("first") + "0\r\n\r\n")
        }
    }

    @Test(
        arguments: [
            ("HTTP/1.1", nil, "chunked"), ("HTTP/1.0", "keep-alive", nil),
        ] as [(String, String?, String?)])
    func `HEAD gets the head alone, and the stream is not run`(
        version: String, connection: String?, coding: String?
    ) async throws {
        let script = Script()
        try await withServer(handler: script.handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("HEAD /stream \(version)\r\nHost: a\r\nConnection: keep-alive\r\n\r\n" + get("/next"))
            let head = try await client.response(to: .head)
            #expect(head.fields["transfer-encoding"] == coding)
            #expect(head.fields["connection"] == connection)
            #expect(!head.fields.contains("content-length"))
            #expect(try await client.response().text == "GET /next\n")
            #expect(!script.begun.isOpen)
        }
    }

    @Test(arguments: [204, 304]) func `a status without content has no stream either`(code: Int) async throws {
        let wasRun = HTTPLatch()
        let handler: @Sendable (Request) async -> Response = { _ in Response(Status(code)) { _ in wasRun.open() } }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/") + get("/"))
            for _ in 0..<2 {
                let response = try await client.response()
                #expect(response.status.code == code)
                #expect(!response.fields.contains("transfer-encoding"))
            }
            #expect(!wasRun.isOpen)
        }
    }

    @Test func `a stream that outlives its response reaches no later one`() async throws {
        let kept = Mutex<ResponseStream?>(nil)
        let outcome = Mutex<[Bool]>([])
        let handler: @Sendable (Request) async -> Response = { _ in
            Response(.ok) { stream in
                if let old = kept.withLock({ $0 }) {
                    let error = await #expect(throws: StreamEnded.self) { try await old.write([0x61]) }
                    outcome.withLock { $0.append(error != nil) }
                }
                kept.withLock { $0 = stream }
                try? await stream.write([0x62])
            }
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            for _ in 0..<2 {
                try await client.send(get("/"))
                #expect(try await client.response().text == "b")
            }
            let last = try #require(kept.withLock { $0 })
            await #expect(throws: StreamEnded.self) { try await last.write([0x61]) }
            #expect(outcome.withLock { $0 } == [true])
            try await client.send(get("/"))
            #expect(try await client.response().text == "b")
        }
    }

    // MARK: Clients that leave

    @Test func `a client that has finished sending goes on reading`() async throws {
        let script = Script()
        try await withServer(handler: script.handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            await script.begun.wait()
            await client.finishSending()
            // The server has seen the end before the stream goes on: an exchange of another client lies between.
            let other = try HTTPRawClient(server.address)
            try await other.send("nonsense\r\n")
            _ = try await other.rest()
            _ = try await client.receive(through: chunk("first"))
            for text in ["a", "b"] {
                script.write(text)
                #expect(try await client.receive(through: chunk(text)) == chunk(text))
            }
            script.finish()
            #expect(try await client.rest() == "0\r\n\r\n")
            #expect(!script.failed.isOpen)
        }
    }

    @Test func `a reset ends a stream that is silent`() async throws {
        let script = Script()
        try await withServer(handler: script.handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            await script.begun.wait()
            await client.abort()
            // AsyncStream ends when its task is cancelled.
            await script.ended.wait()
            #expect(!script.failed.isOpen)
            #expect(server.statistics.connectionsOpen == 0)
        }
    }

    @Test func `a client that has closed is found out by writing to it`() async throws {
        let (begun, isGone) = (HTTPLatch(), HTTPLatch())
        let handler = streaming { stream in
            begun.open()
            do throws(StreamEnded) {
                while true {
                    try await stream.write([0x61])
                    await Task.yield()
                }
            } catch {
                isGone.open()
            }
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            await begun.wait()
            _ = try await client.receive(through: chunk("a"))
            await client.close()
            await isGone.wait()
            #expect(server.statistics.connectionsOpen == 0)
        }
    }

    @Test(arguments: [false, true]) func `a reset ends a write that waits`(isWarm: Bool) async throws {
        let ended = HTTPLatch()
        let handler: @Sendable (Request) async -> Response = { request in
            if !isWarm { await Task.yield() }
            return Response(.ok) { stream in
                // More than the kernel takes.
                do throws(StreamEnded) {
                    try await stream.write([UInt8](repeating: 0x61, count: 32 << 20))
                } catch {
                    ended.open()
                }
            }
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address, receiveBufferBytes: 4096)
            try await client.send(get("/"))
            _ = try await client.receive(through: "\r\n2000000\r\n")
            #expect(!ended.isOpen)
            await client.abort()
            await ended.wait()
            await eventually { server.statistics.connectionsOpen == 0 }
        }
    }

    /// The handler, its stream and the write that finds the client gone are all one turn.
    @Test func `a stream whose client left before its first write is cancelled`() async throws {
        let (begun, left, failed, cancelled) = (HTTPLatch(), HTTPLatch(), HTTPLatch(), HTTPLatch())
        let handler = streaming { stream in
            begun.open()
            while !left.isOpen {}
            do throws(StreamEnded) {
                try await stream.write([UInt8](repeating: 0x61, count: 100_000))
            } catch {
                failed.open()
            }
            await withTaskCancellationHandler {
                await cancelled.wait()
            } onCancel: {
                cancelled.open()
            }
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            await begun.wait()
            await client.abort()
            left.open()
            await cancelled.wait()
            #expect(failed.isOpen)
        }
    }

    @Test func `a cancelled write throws, waiting or about to, and the stream may go on`() async throws {
        let (isQueued, hasThrown) = (HTTPLatch(), HTTPLatch())
        let handler = streaming { stream in
            let waiting = Task { try await stream.write([UInt8](repeating: 0x61, count: 32 << 20)) }
            await isQueued.wait()
            waiting.cancel()
            await #expect(throws: StreamEnded.self) { try await waiting.value }
            let isCancelled = HTTPLatch()
            let late = Task {
                await isCancelled.wait()
                try await stream.write([0x62])
            }
            late.cancel()
            isCancelled.open()
            await #expect(throws: StreamEnded.self) { try await late.value }
            hasThrown.open()
            try? await stream.write([0x63])
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address, receiveBufferBytes: 4096)
            try await client.send(get("/stream") + get("/next"))
            _ = try await client.receive(through: "\r\n\r\n")
            #expect(try await client.receive(through: "\r\n") == "2000000\r\n")
            isQueued.open()
            await hasThrown.wait()
            _ = try await client.receive(exactly: 32 << 20)
            #expect(try await client.receive(through: "\r\n") == "\r\n")
            #expect(try await client.receive(through: "0\r\n\r\n") == chunk("c") + "0\r\n\r\n")
            #expect(try await client.response().text == "GET /next\n")
        }
    }

    // MARK: Slow clients

    @Test func `a client that does not read suspends its writer, and is reset after the write time-out`() async throws {
        let piece = [UInt8](repeating: 0x61, count: 32_768)
        let written = Atomic<Int>(0)
        let isCutOff = HTTPLatch()
        let handler = streaming { stream in
            do throws(StreamEnded) {
                while true {
                    try await stream.write(piece)
                    written.add(piece.count, ordering: .relaxed)
                }
            } catch {
                isCutOff.open()
            }
        }
        try await withServer(configured { $0.writeTimeout = .milliseconds(500) }, handler: handler) { server in
            let client = try HTTPRawClient(server.address, receiveBufferBytes: 4096)
            let other = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            // Others are served at once meanwhile.
            var served = 0
            while !isCutOff.isOpen {
                try await other.send(get("/other"))
                #expect(try await other.response().text == "GET /other\n")
                served += 1
            }
            #expect(served > 1)
            // The kernel takes up to 4 MiB; what lies beyond it is the server's own bound.
            #expect(written.load(ordering: .relaxed) < 8 << 20)
            await eventually { server.statistics.connectionsStalled == 1 && server.statistics.connectionsOpen == 1 }
            await #expect(throws: HTTPRawClient.Failure.reset) {
                while true { if try await client.receive().isEmpty { break } }
            }
        }
    }

    @Test func `writers of one stream wait together, and their pieces stay whole`() async throws {
        let handler = streaming { stream in
            await withTaskGroup { group in
                for letter in UInt8(ascii: "a")...UInt8(ascii: "j") {
                    group.addTask {
                        for _ in 0..<20 { try? await stream.write([UInt8](repeating: letter, count: 50_000)) }
                    }
                }
            }
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address, receiveBufferBytes: 4096)
            try await client.send(get("/stream"))
            _ = try await client.receive(through: "\r\n\r\n")
            var counts: [UInt8: Int] = [:]
            for _ in 0..<200 {
                #expect(try await client.receive(through: "\r\n") == "c350\r\n")
                let piece = try await client.receive(exactly: 50_000)
                let letter = try #require(piece.first)
                #expect(piece.allSatisfy { $0 == letter })
                counts[letter, default: 0] += 1
                #expect(try await client.receive(through: "\r\n") == "\r\n")
            }
            #expect(counts.count == 10)
            #expect(counts.values.allSatisfy { $0 == 20 })
            #expect(try await client.receive(through: "0\r\n\r\n") == "0\r\n\r\n")
        }
    }

    @Test func `a silent stream meets no time-out`() async throws {
        let configuration = configured {
            $0.headTimeout = .milliseconds(50)
            $0.bodyTimeout = .milliseconds(50)
            $0.idleTimeout = .milliseconds(50)
            $0.writeTimeout = .milliseconds(50)
        }
        let script = Script()
        try await withServer(configuration, handler: script.handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            _ = try await client.receive(through: chunk("first"))
            // Each of these ends by the time-out for its first request, so that time has passed several times over.
            for _ in 0..<4 {
                let silent = try HTTPRawClient(server.address)
                #expect(try await silent.rest() == "")
            }
            script.write("a")
            #expect(try await client.receive(through: chunk("a")) == chunk("a"))
        }
    }

    @Test func `a silent stream is not idle, and does not give way to a new connection`() async throws {
        let configuration = configured {
            $0.idleGrace = .zero
            $0.maximumConnections = 2
        }
        let script = Script()
        try await withServer(configuration, handler: script.handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            _ = try await client.receive(through: chunk("first"))
            let idle = try HTTPRawClient(server.address)
            try await idle.send(get("/"))
            _ = try await idle.response()
            let newer = try HTTPRawClient(server.address)
            try await newer.send(get("/"))
            _ = try await newer.response()
            #expect(try await idle.rest() == "")
            script.write("a")
            #expect(try await client.receive(through: chunk("a")) == chunk("a"))
            #expect(server.statistics.refusals[.connections] == 0)
        }
    }

    // MARK: Turns

    @Test func `a write for which there is room does not give up its turn`() async throws {
        let loop = Mutex<EventLoop?>(nil)
        let isOvertaken = Mutex<[Bool]>([])
        let handler = streaming { stream in
            // Behind the turn that the handler began in, in which what is written waits for the head.
            await Task.yield()
            let next = HTTPLatch()
            loop.withLock { $0 }?.execute { next.open() }
            for _ in 0..<10 {
                try? await stream.write([0x61])
                isOvertaken.withLock { $0.append(next.isOpen) }
            }
        }
        try await withServer(handler: handler) { server in
            loop.withLock { $0 = server.loops.first }
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            #expect(try await client.response().text == "aaaaaaaaaa")
            #expect(isOvertaken.withLock { $0 } == [Bool](repeating: false, count: 10))
        }
    }

    /// The stream holds its loop until another request has arrived, then writes more than fits into one turn and less
    /// than the kernel takes, so that no write has to wait.
    @Test func `a stream that has always something to write gives way to others`() async throws {
        let written = Atomic<Int>(0)
        let (begun, sent) = (HTTPLatch(), HTTPLatch())
        let handler: @Sendable (Request) async -> Response = { request in
            if request.path == "/other" {
                return Response(.ok, body: Array(String(written.load(ordering: .relaxed)).utf8))
            }
            return Response(.ok) { stream in
                begun.open()
                while !sent.isOpen {}
                for _ in 0..<5000 {
                    try? await stream.write([0x61])
                    written.add(1, ordering: .relaxed)
                }
            }
        }
        try await withServer(handler: handler) { server in
            let other = try HTTPRawClient(server.address)
            try await other.send(get("/other"))
            #expect(try await other.response().text == "0")
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            await begun.wait()
            try await other.send(get("/other"))
            sent.open()
            let count = try #require(Int(try await other.response().text))
            #expect(count < 5000)
            #expect(try await client.response().body.count == 5000)
        }
    }

    @Test func `each of many streams gets every message`() async throws {
        let subscribers = Mutex<[AsyncStream<[UInt8]>.Continuation]>([])
        let handler = streaming { stream in
            let (messages, feed) = AsyncStream<[UInt8]>.makeStream()
            subscribers.withLock { $0.append(feed) }
            for await message in messages { try? await stream.write(message) }
        }
        try await withServer(configured { $0.loopCount = 2 }, handler: handler) { server in
            var clients: [HTTPRawClient] = []
            for _ in 0..<200 {
                let client = try HTTPRawClient(server.address)
                try await client.send(get("/stream"))
                clients.append(client)
            }
            await eventually { subscribers.withLock { $0.count } == 200 }
            for number in 0..<50 {
                for feed in subscribers.withLock({ $0 }) { feed.yield(Array("\(number);".utf8)) }
            }
            for feed in subscribers.withLock({ $0 }) { feed.finish() }
            let expected = (0..<50).map { "\($0);" }.joined()
            for client in clients { #expect(try await client.response().text == expected) }
        }
    }

    // MARK: The server's end

    @Test func `draining lets a stream end by itself and closes behind it`() async throws {
        let script = Script()
        try await withServer(handler: script.handler) { server in
            let idle = try HTTPRawClient(server.address)
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            await script.begun.wait()
            await eventually { server.statistics.connectionsOpen == 2 }
            async let drained: Void = server.drain(within: .seconds(30))
            // Seen from outside, the drain has begun when the idle connection is closed.
            #expect(try await idle.rest() == "")
            _ = try await client.receive(through: chunk("first"))
            script.write("bye")
            #expect(try await client.receive(through: chunk("bye")) == chunk("bye"))
            script.finish()
            #expect(try await client.rest() == "0\r\n\r\n")
            await drained
            #expect(script.ended.isOpen)
            #expect(!script.failed.isOpen)
        }
    }

    @Test func `what arrives at the moment of its end takes nothing from a stream that outlasted a drain`() async throws
    {
        let (begun, mayEnd, gate) = (HTTPLatch(), HTTPLatch(), LoopGate())
        let handler = streaming { stream in
            try? await stream.write(Array("all of it".utf8))
            begun.open()
            await mayEnd.wait()
            gate.hold()
        }
        try await withServer(handler: handler) { server in
            let idle = try HTTPRawClient(server.address)
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            await begun.wait()
            await eventually { server.statistics.connectionsOpen == 2 }
            async let drained: Void = server.drain(within: .seconds(30))
            #expect(try await idle.rest() == "")
            mayEnd.open()
            await gate.isHeld()
            try await client.send(get("/next"))
            gate.letGo()
            _ = try await client.receive(through: "\r\n\r\n")
            #expect(try await client.rest() == chunk("all of it") + "0\r\n\r\n")
            await client.close()
            await drained
        }
    }

    @Test func `when the grace ends, a stream that goes on is reset and cancelled`() async throws {
        let script = Script()
        try await withServer(handler: script.handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            _ = try await client.receive(through: chunk("first"))
            await script.begun.wait()
            let begin = MonotonicInstant.now
            await server.drain(within: .milliseconds(200))
            #expect(begin.duration(to: .now) >= .milliseconds(200))
            #expect(server.statistics.connectionsOpen == 0)
            await #expect(throws: HTTPRawClient.Failure.reset) { try await client.receive() }
            await script.ended.wait()
        }
    }

    @Test func `closing waits for a stream whose writer waits`() async throws {
        let (begun, ended) = (HTTPLatch(), HTTPLatch())
        let handler = streaming { stream in
            begun.open()
            await #expect(throws: StreamEnded.self) {
                while true { try await stream.write([UInt8](repeating: 0x61, count: 1 << 20)) }
            }
            ended.open()
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address, receiveBufferBytes: 4096)
            try await client.send(get("/stream"))
            await begun.wait()
            await server.close()
            #expect(ended.isOpen)
        }
    }

    @Test func `a stream may be run without a server`() async throws {
        let pieces = Mutex<[[UInt8]]>([])
        let stream = ResponseStream { bytes in pieces.withLock { $0.append(bytes) } }
        try await stream.write([1, 2])
        try await stream.write([])
        try await stream.write([3])
        #expect(pieces.withLock { $0 } == [[1, 2], [3]])
    }
}
