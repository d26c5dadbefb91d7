import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPServer
import Reactor
import Testing

/// A client whose connections come from 127.0.0.`number`.
private func client(_ server: Server, from number: UInt8) throws -> HTTPRawClient {
    try HTTPRawClient(server.address, from: SocketAddress(ip: .v4([127, 0, 0, number]), port: 0))
}

/// Answers `/hold` when `release` opens, and everything else at once.
private final class HoldingHandler: RequestHandler {
    let release = HTTPLatch()

    func respond(to request: Request) async -> Response {
        if request.path == "/hold" { await release.wait() }
        return Response(.ok)
    }

    func response(toFault status: Status, detail: String) -> Response { Response(status) }
}

/// Answers with more than the kernel takes for a client that does not read.
private final class LargeHandler: RequestHandler {
    func respond(to request: Request) async -> Response {
        Response(.ok, body: request.path == "/large" ? [UInt8](repeating: 0x61, count: 16 << 20) : [0x61])
    }

    func response(toFault status: Status, detail: String) -> Response { Response(status) }
}

/// Nothing gives way because it has waited: what gives way does so for its source's sake.
private func full(_ connections: Int, loops: Int = 1, _ adjust: (inout ServerConfiguration) -> Void = { _ in })
    -> ServerConfiguration
{
    configured {
        $0.maximumConnections = connections
        $0.loopCount = loops
        $0.idleGrace = .seconds(600)
        $0.headTimeout = .seconds(600)
        adjust(&$0)
    }
}

@Suite(.timeLimit(.minutes(1))) struct `One source of many connections` {
    @Test(
        arguments: ["", "G", "GET / HTTP/1.1\r\nX: ", "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx"],
        [1, 2])
    func `does not keep others from being served with what it does not finish`(sent: String, loops: Int) async throws {
        try await withServer(full(40, loops: loops)) { server in
            var slow: [HTTPRawClient] = []
            for _ in 0..<50 {
                let one = try client(server, from: 1)
                try await one.send(sent)
                slow.append(one)
            }
            await eventually { server.statistics.refusals[.source] == 10 }
            #expect(server.statistics.connectionsOpen == 40)
            var others: [HTTPRawClient] = []
            for number in UInt8(2)...9 {
                let other = try client(server, from: number)
                try await other.send(get("/livez"))
                #expect(try await other.response().status == .ok)
                others.append(other)
            }
            #expect(server.statistics.connectionsOpen == 40)
            // What it has just sent may not have been read yet, and then counts as a request under way.
            #expect(server.statistics.connectionsEvicted + (server.statistics.refusals[.displacement] ?? 0) == 8)
            #expect(server.statistics.refusals[.connections] == 0 && server.statistics.refusals[.source] == 10)
        }
    }

    @Test(arguments: [1, 2])
    func `does not keep others from being served with requests that are under way`(loops: Int) async throws {
        let handler = HoldingHandler()
        try await withServer(full(40, loops: loops), answering: handler) { server in
            defer { handler.release.open() }
            var holding: [HTTPRawClient] = []
            for _ in 0..<40 {
                let one = try client(server, from: 1)
                try await one.send(get("/hold"))
                holding.append(one)
            }
            await eventually { server.statistics.requests == 40 }
            // Its own next one is told.
            let refused = try client(server, from: 1)
            #expect(try await refused.response().status == .serviceUnavailable)
            var others: [HTTPRawClient] = []
            for number in UInt8(2)...9 {
                let other = try client(server, from: number)
                try await other.send(get("/livez"))
                #expect(try await other.response().status == .ok)
                others.append(other)
            }
            #expect(server.statistics.refusals.filter { $0.value > 0 } == [.source: 1, .displacement: 8])
            #expect(server.statistics.connectionsOpen == 40)
        }
    }

    // H102
    @Test func `takes nothing from those that have no more than their share`() async throws {
        let handler = HoldingHandler()
        // A share of two.
        try await withServer(full(20), answering: handler) { server in
            defer { handler.release.open() }
            var clients: [HTTPRawClient] = []
            for number in UInt8(1)...10 {
                for _ in 0..<2 { clients.append(try client(server, from: number)) }
            }
            for client in clients { try await client.send(get("/hold")) }
            await eventually { server.statistics.requests == 20 }
            let other = try client(server, from: 11)
            #expect(try await other.response().status == .serviceUnavailable)
            let third = try client(server, from: 1)
            #expect(try await third.response().status == .serviceUnavailable)
            #expect(server.statistics.refusals.filter { $0.value > 0 } == [.connections: 1, .source: 1])
            handler.release.open()
            for client in clients { #expect(try await client.response().status == .ok) }
        }
    }

    /// The grace is ten minutes, as if those that send parts of heads connected again before it is over.
    // H102
    @Test func `refuses no whole request while parts of heads of many sources fill it`() async throws {
        try await withServer(full(20)) { server in
            var slow: [HTTPRawClient] = []
            for number in UInt8(101)...120 {
                let one = try client(server, from: number)
                try await one.send("GET / HTTP/1.1\r\nX: ")
                slow.append(one)
            }
            await eventually { server.statistics.connectionsOpen == 20 }
            var answered = 0
            for number in UInt8(1)...40 {
                // Each of those that give way comes again.
                let again = try client(server, from: 120 + number)
                try await again.send("GET / HTTP/1.1\r\nX: ")
                slow.append(again)
                let honest = try client(server, from: number)
                try await honest.send(get("/livez", "Connection: close\r\n"))
                if try await honest.response().status == .ok { answered += 1 }
                await honest.close()
            }
            #expect(answered == 40)
            #expect(server.statistics.refusals.allSatisfy { $0.value == 0 })
        }
    }

    /// A client that has had an answer keeps its connection for the grace, also where another one asks for a place.
    // H102
    @Test func `takes no place for a new one from connections between two requests`() async throws {
        try await withServer(full(2)) { server in
            let clients = [try client(server, from: 1), try client(server, from: 2)]
            for client in clients {
                try await client.send(get("/"))
                #expect(try await client.response().status == .ok)
            }
            let third = try client(server, from: 3)
            #expect(try await third.response().status == .serviceUnavailable)
            for client in clients {
                try await client.send(get("/"))
                #expect(try await client.response().status == .ok)
            }
            #expect(server.statistics.connectionsEvicted == 0)
        }
    }

    @Test func `may have all connections that no other source asks for`() async throws {
        try await withServer(full(20)) { server in
            var clients: [HTTPRawClient] = []
            for _ in 0..<20 {
                let one = try client(server, from: 1)
                try await one.send(get("/"))
                #expect(try await one.response().status == .ok)
                clients.append(one)
            }
            for client in clients {
                try await client.send(get("/"))
                #expect(try await client.response().status == .ok)
            }
        }
    }

    // H102
    @Test(arguments: [(1, 0), (2, 0), (3, 1)])
    func `is refused over a limit that is set`(count: Int, refused: Int) async throws {
        let handler = HoldingHandler()
        try await withServer(full(20) { $0.maximumConnectionsPerSource = 2 }, answering: handler) { server in
            defer { handler.release.open() }
            var clients: [HTTPRawClient] = []
            for _ in 0..<count {
                let one = try client(server, from: 1)
                try await one.send(get("/hold"))
                clients.append(one)
            }
            await eventually { server.statistics.requests + refused == count }
            if refused > 0 {
                let refusal = try await clients[count - 1].response()
                #expect(refusal.status == .serviceUnavailable)
                #expect(refusal.fields["Retry-After"] == "1")
                #expect(refusal.fields["Connection"] == "close")
            }
            #expect(server.statistics.refusals[.source] == refused)
            let other = try client(server, from: 2)
            try await other.send(get("/"))
            #expect(try await other.response().status == .ok)
            // A connection that closes makes room for another one.
            await clients[0].abort()
            await eventually { server.statistics.connectionsOpen == min(count, 2) }
            let next = try client(server, from: 1)
            try await next.send(get("/"))
            #expect(try await next.response().status == .ok)
        }
    }

    // H102
    @Test func `has its own longest idle connection closed over a limit that is set`() async throws {
        let configuration = full(20) {
            $0.maximumConnectionsPerSource = 2
            $0.idleGrace = .zero
        }
        try await withServer(configuration) { server in
            let other = try client(server, from: 2)
            try await other.send(get("/"))
            #expect(try await other.response().status == .ok)
            let idle = try client(server, from: 1)
            try await idle.send(get("/"))
            #expect(try await idle.response().status == .ok)
            let partial = try client(server, from: 1)
            try await partial.send("GET /late HTTP/1.1\r\n")
            await eventually { server.statistics.connectionsOpen == 3 }
            let third = try client(server, from: 1)
            try await third.send(get("/"))
            #expect(try await third.response().status == .ok)
            #expect(try await idle.rest() == "")
            try await partial.send("Host: a\r\n\r\n")
            #expect(try await partial.response().text == "GET /late\n")
            try await other.send(get("/"))
            #expect(try await other.response().status == .ok)
        }
    }

    @Test func `is not meant where it is a trusted proxy`() async throws {
        let handler = HoldingHandler()
        let configuration = full(20) {
            $0.maximumConnectionsPerSource = 2
            $0.trustedProxies = TrustedProxies([NetworkRange(parsing: "127.0.0.1")!])
        }
        try await withServer(configuration, answering: handler) { server in
            defer { handler.release.open() }
            var clients: [HTTPRawClient] = []
            for _ in 0..<20 {
                let one = try client(server, from: 1)
                try await one.send(get("/hold"))
                clients.append(one)
            }
            await eventually { server.statistics.requests == 20 }
            #expect(server.statistics.refusals.allSatisfy { $0.value == 0 })
        }
    }

    @Test func `gives way with what has waited for longest`() async throws {
        let configuration = configured {
            $0.maximumConnections = 2
            $0.idleGrace = .zero
        }
        let clock = ManualLoopClock()
        try await withServer(configuration, clock: clock) { server in
            let first = try client(server, from: 1)
            try await first.send("GET /first HTTP/1.1\r\n")
            await clock.advance(by: .milliseconds(1))
            let second = try client(server, from: 2)
            try await second.send("GET /second HTTP/1.1\r\n")
            await clock.advance(by: .milliseconds(1))
            #expect(server.statistics.connectionsOpen == 2)
            let third = try client(server, from: 3)
            try await third.send(get("/third"))
            #expect(try await third.response().status == .ok)
            #expect(try await first.rest() == "")
            try await second.send("Host: a\r\n\r\n")
            #expect(try await second.response().text == "GET /second\n")
        }
    }

    @Test func `of many that do not read what they have asked for gives way`() async throws {
        let configuration = configured {
            $0.maximumConnections = 10
            $0.loopCount = 1
            $0.idleGrace = .milliseconds(10)
            $0.answerBytes = 1 << 30
        }
        try await withServer(configuration, answering: LargeHandler()) { server in
            var silent: [HTTPRawClient] = []
            // None has more than its share.
            for number in UInt8(1)...10 {
                let one = try client(server, from: number)
                try await one.send(get("/large"))
                silent.append(one)
            }
            await eventually { server.statistics.requests == 10 }
            var status: Status?
            for _ in 0..<1000 where status != .ok {
                let other = try client(server, from: 20)
                try await other.send(get("/"))
                status = try? await other.response().status
            }
            #expect(status == .ok)
            #expect(server.statistics.connectionsEvicted > 0)
        }
    }

    @Test func `has its longest waiting connection found behind many of other sources`() async throws {
        let handler = HoldingHandler()
        // More than one search looks at.
        let configuration = full(700) {
            $0.maximumConnectionsPerSource = 600
            $0.idleGrace = .zero
        }
        try await withServer(configuration, answering: handler) { server in
            defer { handler.release.open() }
            var holding: [HTTPRawClient] = []
            for _ in 0..<599 {
                let one = try client(server, from: 1)
                try await one.send(get("/hold"))
                holding.append(one)
            }
            await eventually { server.statistics.requests == 599 }
            let idle = try client(server, from: 1)
            try await idle.send(get("/"))
            #expect(try await idle.response().status == .ok)
            var attempts = 0
            var status: Status?
            while status != .ok, attempts < 4 {
                let next = try client(server, from: 1)
                attempts += 1
                do {
                    try await next.send(get("/"))
                    status = try await next.response().status
                } catch {}
            }
            #expect(status == .ok)
            #expect(try await idle.rest() == "")
        }
    }
}

@Suite(.timeLimit(.minutes(1))) struct `Answers that clients do not read` {
    @Test(arguments: [(3, 0), (4, 0), (5, 1), (8, 4)])
    func `are held up to a limit, beyond which the oldest goes`(clients: Int, reset: Int) async throws {
        let answer = [UInt8](repeating: 0x61, count: 16 << 20)
        let configuration = configured {
            // What the kernel takes of an answer is not held: four are less than this, and five are more.
            $0.answerBytes = 4 * answer.count
        }
        try await withServer(configuration, answering: HTTPClosureHandler { _ in Response(.ok, body: answer) }) {
            server in
            var silent: [HTTPRawClient] = []
            for number in 1...clients {
                let one = try HTTPRawClient(server.address)
                try await one.send(get("/"))
                await eventually { server.statistics.requests == number }
                silent.append(one)
            }
            await eventually { server.statistics.refusals[.answers] == reset }
            await eventually { server.statistics.connectionsOpen == clients - reset }
            for client in silent[reset...] {
                #expect(try await client.receive(through: "\r\n\r\n").hasPrefix("HTTP/1.1 200 "))
            }
            #expect(server.statistics.refusals[.answers] == reset)
        }
    }
}
