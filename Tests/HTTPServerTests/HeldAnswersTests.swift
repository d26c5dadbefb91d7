import BrokerTesting
import HTTPCodec
import HTTPServer
import Testing

@Suite struct `Answers that are sent at the end of a turn` {
    @Test(arguments: [1, 31, 32, 33, 100])
    func `reach the connection that asked, however many there are`(count: Int) async throws {
        let handler = TurnHandler()
        try await withServer(answering: handler) { server in
            var clients: [HTTPRawClient] = []
            for _ in 0..<count { clients.append(try await client(of: server)) }
            let first = try await handler.holdLoop(of: server)
            for (index, client) in clients.enumerated() { try await client.send(get("/a\(index)")) }
            handler.first.letGo()
            for (index, client) in clients.enumerated() { #expect(try await client.response().text == "/a\(index)") }
            #expect(try await first.response().text == "/first")
        }
    }

    @Test func `reach a client that has sent its last byte`() async throws {
        let handler = TurnHandler()
        try await withServer(answering: handler) { server in
            let (half, other) = (try await client(of: server), try await client(of: server))
            let first = try await handler.holdLoop(of: server)
            try await half.send(get("/half"))
            await half.finishSending()
            try await other.send(get("/other"))
            handler.first.letGo()
            #expect(try await half.response().text == "/half")
            #expect(try await half.rest() == "")
            #expect(try await other.response().text == "/other")
            #expect(try await first.response().text == "/first")
        }
    }

    @Test func `come before the request for the content of the next request`() async throws {
        try await withServer(answering: TurnHandler()) { server in
            let client = try await client(of: server)
            try await client.send(get("/a") + get("/b", "Content-Length: 4\r\nExpect: 100-continue\r\n"))
            let text = try await client.receive(through: "100 Continue\r\n\r\n")
            #expect(text.hasPrefix("HTTP/1.1 200 OK\r\n"))
            #expect(text.contains("\r\n\r\n/aHTTP/1.1 100 Continue"))
        }
    }

    @Test func `come before that of a request which is not answered at once`() async throws {
        let handler = TurnHandler()
        try await withServer(answering: handler) { server in
            let (one, two) = (try await client(of: server), try await client(of: server))
            let first = try await handler.holdLoop(of: server)
            try await one.send(get("/one"))
            try await two.send(get("/two") + get("/slow") + get("/three"))
            handler.first.letGo()
            #expect(try await one.response().text == "/one")
            for path in ["/two", "/slow", "/three"] { #expect(try await two.response().text == path) }
            #expect(try await first.response().text == "/first")
        }
    }

    @Test func `of a connection that is reset meanwhile leave those of others as they are`() async throws {
        let handler = TurnHandler()
        try await withServer(answering: handler) { server in
            let (broken, paused, last) = (
                try await client(of: server), try await client(of: server), try await client(of: server)
            )
            let first = try await handler.holdLoop(of: server)
            try await broken.send(get("/broken"))
            try await paused.send(get("/pause"))
            try await last.send(get("/last"))
            handler.first.letGo()
            await handler.pause.isHeld()
            await broken.abort()
            handler.pause.letGo()
            #expect(try await paused.response().text == "/pause")
            #expect(try await last.response().text == "/last")
            #expect(try await first.response().text == "/first")
            await eventually { server.statistics.connectionsOpen == 3 }
            // The slot was freed once.
            let (new, other) = (try await client(of: server), try await client(of: server))
            try await new.send(get("/new"))
            try await other.send(get("/other"))
            #expect(try await new.response().text == "/new")
            #expect(try await other.response().text == "/other")
        }
    }

    /// More than the kernel takes for a peer that does not read.
    @Test func `that the kernel does not take are sent when there is room`() async throws {
        try await withServer(answering: TurnHandler()) { server in
            let (late, other) = (
                try await client(of: server, receiveBufferBytes: 4096), try await client(of: server)
            )
            let count = 8
            for _ in 0..<count {
                try await late.send(get("/large"))
                // Each request has a turn of its own.
                try await other.send(get("/other"))
                #expect(try await other.response().text == "/other")
            }
            for _ in 0..<count { #expect(try await late.response().body.count == TurnHandler.largeCount) }
            try await late.send(get("/end"))
            #expect(try await late.response().text == "/end")
        }
    }
}
