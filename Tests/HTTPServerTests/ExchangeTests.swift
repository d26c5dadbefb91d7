import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPServer
import Reactor
import Synchronization
import Testing

@Suite(.timeLimit(.minutes(1))) struct `HTTP exchanges` {
    @Test func `a request is answered with the fields that the server adds`() async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/a?b=c"))
            let response = try await client.response()
            #expect(response.status == .ok)
            #expect(response.text == "GET /a?b=c\n")
            #expect(response.fields["content-type"] == "text/plain")
            #expect(response.fields.values("content-length") == ["11"])
            #expect(response.fields["date"]?.text.hasSuffix(" GMT") == true)
            #expect(response.fields["connection"] == nil)
            let id = try #require(response.fields["x-request-id"]?.text)
            #expect(id.utf8.count == 32)
            #expect(id.allSatisfy { $0.isHexDigit && !$0.isUppercase })
        }
    }

    // H108
    @Test func `each request has its own identifier, and the handler knows it`() async throws {
        let handler: @Sendable (Request) async -> Response = { Response(.ok, body: Array($0.id.utf8)) }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            var seen: Set<String> = []
            for _ in 0..<100 {
                try await client.send(get("/"))
                let response = try await client.response()
                #expect(response.fields["x-request-id"] == response.text)
                seen.insert(response.text)
            }
            #expect(seen.count == 100)
        }
    }

    @Test func `HEAD gets the length and no content`() async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n" + get("/b"))
            let head = try await client.response(to: .head)
            #expect(head.fields["content-length"] == "8")
            #expect(try await client.response().text == "GET /b\n")
        }
    }

    @Test(arguments: [204, 304]) func `an answer without content has no length`(code: Int) async throws {
        let handler: @Sendable (Request) async -> Response = { _ in Response(Status(code), body: [1]) }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/") + get("/"))
            for _ in 0..<2 {
                let response = try await client.response()
                #expect(response.status.code == code)
                #expect(!response.fields.contains("content-length"))
            }
        }
    }

    @Test(arguments: ["OPTIONS * HTTP/1.1", "BREW /pot HTTP/1.1", "DELETE /x HTTP/1.1"])
    func `every method but CONNECT and TRACE is the handler's`(line: String) async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(line + "\r\nHost: a\r\n\r\n")
            #expect(try await client.response().text == line.dropLast(9) + "\n")
        }
    }

    @Test(arguments: [
        "Content-Length: 11\r\n\r\nhello world",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6;x\r\n world\r\n0\r\n\r\n",
    ])
    func `content arrives whole, at once or one byte at a time`(rest: String) async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            let request = "POST / HTTP/1.1\r\nHost: a\r\n" + rest
            try await client.send(request)
            #expect(try await client.response().text == "POST /\nhello world")
            try await client.drip(request)
            #expect(try await client.response().text == "POST /\nhello world")
            // Two in a row, cut in the middle of the second.
            let two = request + request
            let cut = two.index(two.startIndex, offsetBy: request.count + 20)
            try await client.send(String(two[..<cut]))
            #expect(try await client.response().text == "POST /\nhello world")
            try await client.send(String(two[cut...]))
            #expect(try await client.response().text == "POST /\nhello world")
        }
    }

    @Test func `content larger than one read arrives whole`() async throws {
        try await withServer(configured { $0.limits.bodyBytes = 1_000_000 }) { server in
            let client = try HTTPRawClient(server.address)
            let body = (0..<1_000_000).map { UInt8(truncatingIfNeeded: $0 &* 31 >> 3) }
            try await client.send(Array("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n".utf8) + body)
            #expect(Array(try await client.response().body.dropFirst(6)) == body)
        }
    }

    @Test(
        arguments: [
            ("HTTP/1.1", "", nil), ("HTTP/1.1", "Connection: close\r\n", "close"), ("HTTP/1.0", "", "close"),
            ("HTTP/1.0", "Connection: keep-alive\r\n", "keep-alive"),
        ] as [(String, String, String?)])
    func `persistence follows version and Connection`(version: String, field: String, answer: String?) async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            for _ in 0..<2 {
                try await client.send("GET / \(version)\r\nHost: a\r\n\(field)\r\n")
                let response = try await client.response()
                #expect(response.fields["connection"] == answer)
                if answer == "close" {
                    #expect(try await client.rest() == "")
                    return
                }
            }
        }
    }

    @Test func `a handler can close the connection, and what was pipelined behind is not served`() async throws {
        let handler: @Sendable (Request) async -> Response = { request in
            Response(.ok, body: Array(request.path.utf8), closesConnection: true)
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/a") + get("/b"))
            let response = try await client.response()
            #expect(response.text == "/a")
            #expect(response.fields["connection"] == "close")
            #expect(try await client.rest() == "")
            #expect(server.statistics.requests == 1)
        }
    }

    @Test func `a response that would break the head apart becomes a 500`() async throws {
        let handler: @Sendable (Request) async -> Response = { _ in
            Response(.ok, fields: ["X": "a\r\nSet-Cookie: b"], body: [1])
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/"))
            let text = try await client.rest()
            #expect(text.hasPrefix("HTTP/1.1 500 "))
            #expect(!text.contains("Set-Cookie"))
        }
    }

    // MARK: Pipelining

    // H011
    @Test func `answers keep the order of their requests although a later one is ready earlier`() async throws {
        let (begun, release) = (HTTPLatch(), HTTPLatch())
        let handler: @Sendable (Request) async -> Response = { request in
            if request.path == "/slow" {
                begun.open()
                await release.wait()
            }
            return Response(.ok, body: Array(request.path.utf8))
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/slow") + get("/fast") + get("/last"))
            await begun.wait()
            // Another connection of the same loop is served meanwhile.
            let other = try HTTPRawClient(server.address)
            try await other.send(get("/fast"))
            #expect(try await other.response().text == "/fast")
            #expect(server.statistics.requests == 2)
            release.open()
            for path in ["/slow", "/fast", "/last"] { #expect(try await client.response().text == path) }
        }
    }

    @Test func `pipelined answers that need no waiting leave in one write`() async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            let requests = (0..<50).map { get("/\($0)") }.joined()
            try await client.send(requests)
            let first = String(decoding: try await client.receive(), as: UTF8.self)
            #expect(first.components("HTTP/1.1 200 OK") == 50)
        }
    }

    @Test func `thousands of pipelined requests do not deepen the stack`() async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(String(repeating: get("/"), count: 3000))
            for _ in 0..<3000 { #expect(try await client.response().status == .ok) }
            #expect(server.statistics.requests == 3000)
        }
    }

    // MARK: Expectations

    @Test func `a client that waits is asked for its content`() async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
            let interim = String(decoding: try await client.receive(), as: UTF8.self)
            #expect(interim == "HTTP/1.1 100 Continue\r\n\r\n")
            try await client.send("hi")
            #expect(try await client.response().text == "POST /\nhi")
        }
    }

    @Test func `a client that does not wait is not asked`() async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nhi")
            let text = String(decoding: try await client.receive(), as: UTF8.self)
            #expect(text.hasPrefix("HTTP/1.1 200 OK"))
        }
    }

    // H007
    @Test(arguments: [
        ("Content-Length: 2\r\nExpect: teapot", 417), ("Content-Length: 65537\r\nExpect: 100-continue", 413),
        ("Content-Length: 65537", 413),
    ])
    func `what will not be taken is refused without asking for it`(fields: String, code: Int) async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("POST / HTTP/1.1\r\nHost: a\r\n\(fields)\r\n\r\n")
            let text = try await client.rest()
            #expect(text.hasPrefix("HTTP/1.1 \(code) "))
            #expect(server.statistics.requests == 0)
        }
    }

    // MARK: Clients that leave

    // H013
    @Test func `a half-closed client gets its answer although the handler has to wait`() async throws {
        let (begun, release, wasCancelled) = (HTTPLatch(), HTTPLatch(), HTTPLatch())
        let handler: @Sendable (Request) async -> Response = { _ in
            begun.open()
            await release.wait()
            if Task.isCancelled { wasCancelled.open() }
            return Response(.ok, body: Array("late".utf8))
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/"))
            await begun.wait()
            await client.finishSending()
            // The server has seen the end before the handler goes on: an exchange of another client lies between.
            let other = try HTTPRawClient(server.address)
            try await other.send("nonsense\r\n")
            _ = try await other.rest()
            release.open()
            #expect(try await client.response().text == "late")
            #expect(try await client.rest() == "")
            #expect(!wasCancelled.isOpen)
        }
    }

    // H013
    @Test func `all requests that a half-closed client has pipelined are answered`() async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/a") + get("/b"))
            await client.finishSending()
            #expect(try await client.response().text == "GET /a\n")
            #expect(try await client.response().text == "GET /b\n")
            #expect(try await client.rest() == "")
        }
    }

    @Test func `a request that ends early is answered 400`() async throws {
        try await withServer { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("GET / HTTP/1.1\r\nHost:")
            await client.finishSending()
            #expect(try await client.rest().hasPrefix("HTTP/1.1 400 "))
        }
    }

    @Test func `a client that is gone cancels its handler`() async throws {
        let (begun, cancelled) = (HTTPLatch(), HTTPLatch())
        let handler: @Sendable (Request) async -> Response = { _ in
            await withTaskCancellationHandler {
                begun.open()
                await cancelled.wait()
            } onCancel: {
                cancelled.open()
            }
            return Response(.ok)
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/"))
            await begun.wait()
            await client.abort()
            await cancelled.wait()
            await eventually { server.statistics.connectionsOpen == 0 }
        }
    }

    @Test func `answering a client that has closed does no harm`() async throws {
        let (begun, release) = (HTTPLatch(), HTTPLatch())
        let handler: @Sendable (Request) async -> Response = { request in
            if request.path == "/slow" {
                begun.open()
                await release.wait()
            }
            return Response(.ok, body: [UInt8](repeating: 0x61, count: 100_000))
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/slow") + get("/") + get("/"))
            await begun.wait()
            await client.close()
            release.open()
            await eventually { server.statistics.connectionsOpen == 0 }
            let other = try HTTPRawClient(server.address)
            try await other.send(get("/"))
            #expect(try await other.response().body.count == 100_000)
        }
    }

    // MARK: The warm path

    /// While the loop is held up, a request arrives and an action is queued. On the next turn readiness comes before
    /// queued work, so a handler that ran as a job of its own would run after the action. The action then waits, on the
    /// loop's thread, for an answer that has to be out already.
    @Test func `a request that needs no waiting is answered before the call that started it returns`() async throws {
        let order = Mutex<[String]>([])
        let handler: @Sendable (Request) async -> Response = { _ in
            order.withLock { $0.append("handler") }
            return Response(.ok)
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/"))
            _ = try await client.response()
            order.withLock { $0 = [] }
            let loop = try #require(server.loops.first)
            let (held, sent, done) = (HTTPLatch(), HTTPLatch(), HTTPLatch())
            let answer = Mutex<[UInt8]>([])
            loop.execute {
                held.open()
                while !sent.isOpen {}
                loop.execute {
                    order.withLock { $0.append("next job") }
                    let bytes = try? client.receiveBlocking()
                    answer.withLock { $0 = bytes ?? [] }
                    done.open()
                }
            }
            await held.wait()
            try await client.send(get("/"))
            sent.open()
            await done.wait()
            #expect(order.withLock { $0 } == ["handler", "next job"])
            #expect(answer.withLock { String(decoding: $0, as: UTF8.self) }.hasPrefix("HTTP/1.1 200 OK"))
        }
    }

    @Test func `a handler stays on its loop's thread, also after it was suspended`() async throws {
        let loop = Mutex<EventLoop?>(nil)
        let handler: @Sendable (Request) async -> Response = { _ in
            let before = loop.withLock { $0?.isCurrent ?? false }
            await Task.yield()
            let after = loop.withLock { $0?.isCurrent ?? false }
            return Response(.ok, body: Array("\(before) \(after)".utf8))
        }
        try await withServer(handler: handler) { server in
            loop.withLock { $0 = server.loops.first }
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/"))
            #expect(try await client.response().text == "true true")
        }
    }

    @Test func `several loops share the address`() async throws {
        let used = Mutex<Set<Int>>([])
        let loops = Mutex<[EventLoop]>([])
        let handler: @Sendable (Request) async -> Response = { _ in
            let index = loops.withLock { $0.firstIndex { $0.isCurrent } }
            used.withLock { _ = $0.insert(index ?? -1) }
            return Response(.ok)
        }
        try await withServer(configured { $0.loopCount = 3 }, handler: handler) { server in
            loops.withLock { $0 = server.loops }
            for _ in 0..<60 {
                let client = try HTTPRawClient(server.address)
                try await client.send(get("/"))
                #expect(try await client.response().status == .ok)
            }
            // The kernel spreads by hash: that 60 connections leave one of three loops out has a chance of 1e-10.
            #expect(used.withLock { $0 } == [0, 1, 2])
            #expect(server.statistics.connectionsAccepted == 60)
        }
    }
}

extension String {
    /// How often `part` occurs.
    func components(_ part: String) -> Int {
        var (count, rest) = (0, self[...])
        while let range = rest.firstRange(of: part) {
            count += 1
            rest = rest[range.upperBound...]
        }
        return count
    }
}
