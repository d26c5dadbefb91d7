import BrokerTesting
import HTTPCodec
import HTTPServer
import Reactor
import Synchronization
import Testing

@Suite(.timeLimit(.minutes(1))) struct `HTTP streams and their clients` {
    // MARK: Clients that leave

    @Test func `a client that has finished sending goes on reading`() async throws {
        let script = StreamScript()
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
        let script = StreamScript()
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
        let clock = ManualLoopClock()
        let configuration = configured { $0.writeTimeout = .seconds(30) }
        try await withServer(configuration, clock: clock, handler: handler) { server in
            let client = try HTTPRawClient(server.address, receiveBufferBytes: 4096)
            let other = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            var before = -1
            while written.load(ordering: .relaxed) != before {
                before = written.load(ordering: .relaxed)
                // Other clients are served at once meanwhile.
                try await other.send(get("/other"))
                #expect(try await other.response().text == "GET /other\n")
                for _ in 0..<4 { await clock.handleInput() }
            }
            #expect(before > 0)
            await clock.advance(by: .milliseconds(29_999))
            #expect(server.statistics.connectionsStalled == 0)
            await clock.advance(by: .milliseconds(500))
            await isCutOff.wait()
            // The kernel takes up to 4 MiB; what lies beyond it is the server's own bound.
            #expect(written.load(ordering: .relaxed) < 8 << 20)
            #expect(server.statistics.connectionsStalled == 1)
            #expect(server.statistics.connectionsOpen == 1)
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
        let clock = ManualLoopClock()
        let script = StreamScript()
        try await withServer(clock: clock, handler: script.handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            _ = try await client.receive(through: chunk("first"))
            // Longer than every time-out.
            await clock.advance(by: .seconds(3600))
            script.write("a")
            #expect(try await client.receive(through: chunk("a")) == chunk("a"))
        }
    }

    @Test func `a silent stream is not idle, and does not give way to a new connection`() async throws {
        let configuration = configured {
            $0.idleGrace = .zero
            $0.maximumConnections = 2
        }
        let script = StreamScript()
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
}
