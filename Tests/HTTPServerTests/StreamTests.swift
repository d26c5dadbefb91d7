import BrokerTesting
import HTTPCodec
import HTTPServer
import Reactor
import Synchronization
import Testing

@Suite(.timeLimit(.minutes(1))) struct `HTTP streams` {
    // MARK: What is sent

    @Test func `pieces arrive as chunks while the stream is open`() async throws {
        let script = StreamScript()
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
        let script = StreamScript()
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
        let script = StreamScript()
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
        let script = StreamScript()
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
        let script = StreamScript()
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
        let script = StreamScript()
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

    // MARK: The server's end

    @Test func `draining lets a stream end by itself and closes behind it`() async throws {
        let script = StreamScript()
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
            await client.close()
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
        let clock = ManualLoopClock()
        let script = StreamScript()
        try await withServer(clock: clock, handler: script.handler) { server in
            let client = try HTTPRawClient(server.address)
            let idle = try HTTPRawClient(server.address)
            try await client.send(get("/stream"))
            _ = try await client.receive(through: chunk("first"))
            await script.begun.wait()
            async let drained: Void = server.drain(within: .seconds(30))
            #expect(try await idle.rest() == "")
            await clock.advance(by: .milliseconds(29_999))
            #expect(server.statistics.connectionsOpen == 1)
            await clock.advance(by: .milliseconds(1))
            await drained
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
