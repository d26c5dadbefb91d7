import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPServer
import Reactor
import Synchronization
import Testing

/// Remembers what it answers.
private final class NotingHandler: RequestHandler {
    private let seen = Mutex<[(text: String, arrival: MonotonicInstant?)]>([])
    /// Faults and refusals, by path.
    private let faults = Mutex<[String]>([])

    var requests: [String] { seen.withLock { $0.map(\.text) } }
    var arrivals: [MonotonicInstant?] { seen.withLock { $0.map(\.arrival) } }
    var faultPaths: [String] { faults.withLock { $0 } }

    func respond(to request: Request) async -> Response {
        seen.withLock { $0.append(("\(request.method) \(request.path)", request.arrival)) }
        return Response(.ok, body: Array("done".utf8))
    }

    func response(toFault status: Status, detail: String) -> Response { Response(status, body: Array("no path".utf8)) }

    func response(toFault status: Status, detail: String, path: String) -> Response {
        faults.withLock { $0.append("\(status.code) \(path)") }
        return Response(status, body: Array(detail.utf8))
    }
}

@Suite(.timeLimit(.minutes(1))) struct `Requests of clients that have left` {
    private static let changes = [
        "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok", "DELETE /x HTTP/1.1\r\nHost: a\r\n\r\n",
        "PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "PATCH /x HTTP/1.1\r\nHost: a\r\n\r\n",
    ]

    /// Holds the loop while `body` runs, as a process that stands still.
    private func whileHeld(_ server: Server, _ body: () async throws -> Void) async throws {
        let gate = LoopGate()
        server.loops[0].execute { gate.hold() }
        await gate.isHeld()
        do {
            try await body()
            gate.letGo()
        } catch {
            gate.letGo()
            throw error
        }
    }

    /// Also where the connection was known before, and where it waits to be accepted.
    @Test(arguments: changes, [true, false])
    func `are not begun where they may change something`(request: String, isKnown: Bool) async throws {
        let handler = NotingHandler()
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            if isKnown {
                try await client.send(get("/before"))
                _ = try await client.response()
            }
            try await whileHeld(server) {
                try await client.send(request)
                await client.close()
            }
            let other = try HTTPRawClient(server.address)
            try await other.send(get("/after"))
            _ = try await other.response()
            await eventually { server.statistics.connectionsOpen == 1 }
            #expect(handler.requests == (isKnown ? ["GET /before"] : []) + ["GET /after"])
        }
    }

    @Test(arguments: changes)
    func `are not begun either where the client has only finished sending, and it is told`(
        request: String
    ) async throws {
        let handler = NotingHandler()
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await whileHeld(server) {
                try await client.send(request)
                await client.finishSending()
            }
            let response = try await client.response()
            #expect(response.status == .badRequest)
            #expect(response.text.contains("nothing was done"))
            #expect(try await client.rest() == "")
            #expect(handler.requests == [])
            #expect(server.statistics.faults == [.badRequest: 1])
        }
    }

    @Test func `are answered where they only read`() async throws {
        let handler = NotingHandler()
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await whileHeld(server) {
                try await client.send(get("/a") + "HEAD /b HTTP/1.1\r\nHost: a\r\n\r\n")
                await client.finishSending()
            }
            #expect(try await client.response().status == .ok)
            #expect(try await client.response(to: .head).status == .ok)
            #expect(handler.requests == ["GET /a", "HEAD /b"])
        }
    }

    @Test func `are carried out where the client waits`() async throws {
        let handler = NotingHandler()
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await whileHeld(server) { try await client.send(Self.changes.joined()) }
            for _ in Self.changes { #expect(try await client.response().text == "done") }
            #expect(handler.requests == ["POST /x", "DELETE /x", "PUT /x", "PATCH /x"])
        }
    }

    @Test func `are not begun where the client leaves while an earlier one of its requests is answered`() async throws {
        let (begun, release) = (HTTPLatch(), HTTPLatch())
        let seen = Mutex<[String]>([])
        let handler: @Sendable (Request) async -> Response = { request in
            seen.withLock { $0.append(request.path) }
            begun.open()
            await release.wait()
            return Response(.ok)
        }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send("DELETE /1 HTTP/1.1\r\nHost: a\r\n\r\nDELETE /2 HTTP/1.1\r\nHost: a\r\n\r\n")
            await begun.wait()
            await client.finishSending()
            release.open()
            #expect(try await client.response().status == .ok)
            #expect(try await client.response().status == .badRequest)
            #expect(seen.withLock { $0 } == ["/1"])
        }
    }

    // MARK: When they came

    /// For how long the process stood still.
    @Test(arguments: [(2, false), (3, true), (30, true)])
    func `a request that is read after a standstill came when that began`(
        seconds: Int, hasStoodStill: Bool
    ) async throws {
        let handler = NotingHandler()
        let clock = ManualLoopClock()
        try await withServer(clock: clock, answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(get("/before"))
            _ = try await client.response()
            await clock.handleInput()
            let began = clock.now
            clock.move(by: .seconds(seconds))
            try await client.send(get("/waiting"))
            _ = try await client.response()
            #expect(handler.arrivals == [began, hasStoodStill ? began : clock.now])
            // What comes when all that waited has been read, or on a connection that is accepted later, has not waited.
            await clock.advance(by: .milliseconds(1100))
            try await client.send(get("/again"))
            _ = try await client.response()
            #expect(handler.arrivals.last == clock.now)
            let fresh = try HTTPRawClient(server.address)
            try await fresh.send(get("/fresh"))
            _ = try await fresh.response()
            #expect(handler.arrivals.last == clock.now)
            // A minute after it, all that waited has come.
            await clock.advance(by: .seconds(1))
            for _ in 0..<30 { await clock.advance(by: .seconds(2)) }
            let other = try HTTPRawClient(server.address)
            try await other.send(get("/later"))
            _ = try await other.response()
            #expect(handler.arrivals.last == clock.now)
        }
    }

    // MARK: Paths of faults

    private static let long = String(repeating: "q", count: 20_000)
    private static let large = String(repeating: "y", count: 70_000)
    private static let faults: [(request: String, fault: String)] = [
        ("GET /a/b?c=d HTTP/1.1\r\nHost: a\r\nbad field\r\n\r\n", "400 /a/b"),
        ("GET /a/b HTTP/1.1\r\n\r\n", "400 /a/b"),
        ("\r\nPOST /a HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", "400 /a"),
        ("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", "413 /a"),
        ("GET /g HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", "413 /g"),
        ("PUT /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "400 /c"),
        ("GET /ok HTTP/1.1\r\nHost: a\r\n\r\nGET /second HTTP/1.1\r\nbad field\r\n\r\n", "400 /second"),
        ("GET /long?\(long) HTTP/1.1\r\n", "414 /long"),
        ("GET /many HTTP/1.1\r\nHost: a\r\nX: \(large)\r\n", "431 /many"),
        ("GET /cut HTTP/1.1\r\nHost:", "400 /cut"),
        ("POST /cut HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx", "400 /cut"),
    ]

    @Test(arguments: faults)
    func `a fault is answered by the path of its request`(request: String, fault: String) async throws {
        let handler = NotingHandler()
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            // Without waiting for the server, which may close while it is sent.
            try? await client.send(request)
            await client.finishSending()
            _ = try? await client.rest()
            #expect(handler.faultPaths == [fault])
        }
    }

    @Test(arguments: ["nonsense", "GET", "GET ", "GET x HTTP/1.1\r\n\r\n"])
    func `a request without a path is answered as one of none`(request: String) async throws {
        let handler = NotingHandler()
        try await withServer(answering: handler) { server in
            let client = try HTTPRawClient(server.address)
            try await client.send(request)
            await client.finishSending()
            #expect(try await client.rest().hasSuffix("no path"))
            #expect(handler.faultPaths == [])
        }
    }
}
