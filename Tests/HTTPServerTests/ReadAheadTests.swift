import BrokerTesting
import HTTPCodec
import HTTPServer
import Reactor
import Testing

/// While the loop is held at `/first`, each test has several clients send, so that their connections have their turns in one
/// turn of the loop.
@Suite struct `Connections that are read ahead of their turns` {
    /// So many bytes are read of a connection at once.
    private static let mostAtOnce = 16_384

    /// Requests for `/a0`, `/a1` and so on, of so many bytes in all.
    private func requests(bytes: Int) -> (text: String, count: Int) {
        var (text, count) = ("", 0)
        while true {
            let request = get("/a\(count)")
            let left = bytes - text.utf8.count
            count += 1
            // The last one has a field that fills the rest.
            if left < 2 * request.utf8.count + 8 {
                let missing = left - request.utf8.count
                return (text + (missing == 0 ? request : get("/a\(count - 1)", filler(missing))), count)
            }
            text += request
        }
    }

    private func filler(_ count: Int) -> String { "X: " + String(repeating: "x", count: count - 5) + "\r\n" }

    /// What has arrived for the server's connections and was not read, by the kernel's table.
    private func unreadBytes(of server: Server) throws -> Int {
        let table = String(decoding: try SmallFile.read("/proc/net/tcp", limit: 1 << 24), as: UTF8.self)
        let port = ":" + String(server.address.port, radix: 16, uppercase: true)
        // The columns: number, local address, remote address, state, `tx_queue:rx_queue`.
        let lines = table.split(separator: "\n").map { $0.split(separator: " ") }
        return lines.filter { $0[1].hasSuffix(port) && $0[3] == "01" }
            .reduce(0) { $0 + (Int($1[4].suffix(8), radix: 16) ?? 0) }
    }

    @Test(arguments: [2, 31, 32, 33, 64])
    func `are up to 32`(count: Int) async throws {
        let handler = TurnHandler()
        try await withServer(answering: handler) { server in
            var clients: [HTTPRawClient] = []
            for _ in 0..<count { clients.append(try await client(of: server)) }
            let first = try await handler.holdLoop(of: server)
            try await clients[0].send(get("/pause"))
            for client in clients.dropFirst() { try await client.send(get("/other")) }
            let sent = get("/pause").utf8.count + (count - 1) * get("/other").utf8.count
            await eventually { (try? unreadBytes(of: server)) == sent }
            handler.first.letGo()
            await handler.pause.isHeld()
            #expect(try unreadBytes(of: server) == max(0, count - 32) * get("/other").utf8.count)
            handler.pause.letGo()
            #expect(try await clients[0].response().text == "/pause")
            for client in clients.dropFirst() { #expect(try await client.response().text == "/other") }
            #expect(try await first.response().text == "/first")
        }
    }

    @Test(arguments: [-1, 0, 1, 16_384])
    func `are answered in full where they have sent more than is read at once`(beyond: Int) async throws {
        let handler = TurnHandler()
        try await withServer(answering: handler) { server in
            let (text, count) = requests(bytes: Self.mostAtOnce + beyond)
            #expect(text.utf8.count == Self.mostAtOnce + beyond)
            // More than there is room for.
            var clients: [HTTPRawClient] = []
            for _ in 0..<6 { clients.append(try await client(of: server)) }
            let first = try await handler.holdLoop(of: server)
            for client in clients { try await client.send(text) }
            handler.first.letGo()
            for client in clients {
                for index in 0..<count { #expect(try await client.response().text == "/a\(index)") }
            }
            #expect(try await first.response().text == "/first")
        }
    }

    @Test func `are answered when the rest of a request comes, whenever that is`() async throws {
        let handler = TurnHandler()
        try await withServer(answering: handler) { server in
            let (paused, during, after) = (
                try await client(of: server), try await client(of: server), try await client(of: server)
            )
            let first = try await handler.holdLoop(of: server)
            try await paused.send(get("/pause"))
            let request = get("/parts")
            let cut = request.index(request.startIndex, offsetBy: 7)
            try await during.send(String(request[..<cut]))
            try await after.send(String(request[..<cut]))
            handler.first.letGo()
            await handler.pause.isHeld()
            // The loop has read what came before, and has not looked at it.
            try await during.send(String(request[cut...]))
            handler.pause.letGo()
            #expect(try await paused.response().text == "/pause")
            #expect(try await during.response().text == "/parts")
            try await after.send(String(request[cut...]))
            #expect(try await after.response().text == "/parts")
            #expect(try await first.response().text == "/first")
        }
    }

    @Test func `are answered like others, whatever they ask`() async throws {
        let handler = TurnHandler()
        try await withServer(answering: handler) { server in
            let (slow, content, malformed, last) = (
                try await client(of: server), try await client(of: server), try await client(of: server),
                try await client(of: server)
            )
            let first = try await handler.holdLoop(of: server)
            try await slow.send(get("/slow") + get("/next"))
            try await content.send(
                "POST /content HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabcd" + get("/next"))
            try await malformed.send("GET /malformed\r\n\r\n")
            try await last.send(get("/last"))
            handler.first.letGo()
            #expect(try await slow.response().text == "/slow")
            #expect(try await slow.response().text == "/next")
            #expect(try await content.response().text == "/content")
            #expect(try await content.response().text == "/next")
            #expect(try await malformed.response().status == .badRequest)
            #expect(try await malformed.rest() == "")
            #expect(try await last.response().text == "/last")
            #expect(try await first.response().text == "/first")
        }
    }

    @Test func `end as others do when the client has gone before their turn`() async throws {
        let handler = TurnHandler()
        try await withServer(answering: handler) { server in
            let (paused, broken, finished, last) = (
                try await client(of: server), try await client(of: server), try await client(of: server),
                try await client(of: server)
            )
            let first = try await handler.holdLoop(of: server)
            try await paused.send(get("/pause"))
            try await broken.send(get("/broken"))
            try await finished.send(get("/finished"))
            try await last.send(get("/last"))
            handler.first.letGo()
            await handler.pause.isHeld()
            await broken.abort()
            await finished.finishSending()
            handler.pause.letGo()
            #expect(try await paused.response().text == "/pause")
            #expect(try await finished.response().text == "/finished")
            #expect(try await finished.rest() == "")
            #expect(try await last.response().text == "/last")
            #expect(try await first.response().text == "/first")
            await eventually { server.statistics.connectionsOpen == 3 }
        }
    }
}
