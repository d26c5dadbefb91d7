import BrokerTesting
import Dispatch
import HTTPCodec
import HTTPServer
import Reactor
import Testing
import TokenBroker

@Suite(.timeLimit(.minutes(1))) struct `A listener for probes and metrics` {
    private static let operations = ["/livez", "/healthz", "/readyz", "/metrics"]

    @Test(arguments: operations + ["/openapi.yaml", "/docs", "/credentials"])
    func `serves them alone, and the other listener everything else`(path: String) async throws {
        let isOperation = Self.operations.contains(path)
        let other = path == "/credentials" ? 401 : 200
        for (scope, status) in [
            (Service.Scope.operations, isOperation ? 200 : 404), (.api, isOperation ? 404 : other),
            (.all, isOperation ? 200 : other),
        ] {
            try await withSocket(scope: scope) { broker, _, client in
                // Readiness is not to be refused because the time for it was skipped.
                broker.time.holdSleeps()
                try await client.send("GET \(path) HTTP/1.1\r\nHost: a\r\n\r\n")
                #expect(try await client.response().status.code == status)
            }
        }
    }

    @Test func `does not serve tokens`() async throws {
        try await withSocket(scope: .operations) { _, key, client in
            for _ in 0..<3 {
                try await client.send("GET /credentials HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \(key)\r\n\r\n")
                #expect(try await client.response().status == .notFound)
            }
        }
    }

    /// Its own thread: what the other one's does is nothing to it.
    @Test func `answers while the loop of the other one is blocked`() async throws {
        final class BlockedHandler: RequestHandler {
            let begun = HTTPLatch()
            private let mayGo = DispatchSemaphore(value: 0)

            func respond(to request: Request) async -> Response {
                begun.open()
                block()
                return Response(.ok)
            }

            /// Not for longer than half a minute: a test that fails before it lets go is not to hang.
            private func block() { _ = mayGo.wait(timeout: .now() + 30) }

            func letGo() { mayGo.signal() }

            func response(toFault status: Status, detail: String) -> Response { Response(status) }
        }
        let handler = BlockedHandler()
        let loopback = SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0)
        let main = try Server(configuration: ServerConfiguration(address: loopback, loopCount: 1), handler: handler)
        let blocked = try HTTPRawClient(main.address)
        try await blocked.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await handler.begun.wait()
        try await withSocket(scope: .operations) { broker, _, client in
            broker.time.holdSleeps()
            broker.broker.observe { main.statistics }
            for path in Self.operations {
                try await client.send("GET \(path) HTTP/1.1\r\nHost: a\r\n\r\n")
                #expect(try await client.response().status == .ok)
            }
        }
        handler.letGo()
        #expect(try await blocked.response().status == .ok)
        await main.close()
    }

    // H098
    @Test func `is told by the program's configuration, and says so until the end that it drains`() async throws {
        let directory = StoreFixtureDirectory()
        let (port, other) = (try PostgresServer.freePort(), try PostgresServer.freePort())
        let process = try await BrokerProcess.start(
            port: port, ["DATA_DIR": directory.path, "OPERATIONS_LISTEN": "127.0.0.1:\(other)"])
        let main = SocketAddress(ip: .v4([127, 0, 0, 1]), port: port)
        let operations = SocketAddress(ip: .v4([127, 0, 0, 1]), port: other)
        func status(_ path: String, _ client: HTTPRawClient) async throws -> Int {
            try await client.send("GET \(path) HTTP/1.1\r\nHost: a\r\n\r\n")
            return try await client.response().status.code
        }
        let (caller, probe) = (try HTTPRawClient(main), try HTTPRawClient(operations))
        #expect(try await status("/readyz", probe) == 200)
        #expect(try await status("/readyz", caller) == 404)
        #expect(try await status("/openapi.yaml", caller) == 200)
        let check = try await TestProcess.start(
            [BrokerProcess.program("token-broker"), "healthcheck"],
            environment: ["TOKEN_BROKER_OPERATIONS_LISTEN": "127.0.0.1:\(other)", "TOKEN_BROKER_LISTEN": "127.0.0.1:9"])
        #expect(await check.exitStatus() == 0)
        // A stream of events, which is cut short in a drain, would be too quick: a request that does not end is not.
        try await caller.send(
            "PUT /tenants/t1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer \(BrokerHarness.adminKey)\r\n"
                + "Content-Type: application/json\r\nContent-Length: 18\r\nExpect: 100-continue\r\n\r\n")
        _ = try await caller.receive(through: "\r\n\r\n")
        async let ended = process.terminate()
        _ = try await process.line { $0.contains(#""event":"draining""#) }
        let late = try HTTPRawClient(operations)
        #expect(try await status("/readyz", late) == 503)
        #expect(try await status("/livez", late) == 200)
        try await caller.send(#"{"client_id": "c"}"#)
        #expect(try await caller.response(to: .put).status == .created)
        #expect(await ended == 0)
    }

    @Test(
        arguments: [
            ("OPERATIONS_LISTEN", "8081", 78), ("OPERATIONS_LISTEN", "127.0.0.1:8080", 78),
            ("OPERATIONS_LISTEN", "127.0.0.1:8081", 0), ("OPERATIONS_LISTEN", "[::]:8081", 0),
            ("MAX_CONNECTIONS_PER_SOURCE", "0", 78), ("MAX_CONNECTIONS_PER_SOURCE", "1", 0),
            ("MAX_CONNECTIONS_PER_SOURCE", "1000000", 0), ("MAX_CONNECTIONS_PER_SOURCE", "1000001", 78),
        ] as [(String, String, Int32)])
    func `and limits for each source are checked at the start`(name: String, value: String, status: Int32) async throws
    {
        let process = try await TestProcess.start(
            [BrokerProcess.program("token-broker"), "config", "check"], environment: ["TOKEN_BROKER_\(name)": value])
        #expect(await process.exitStatus() == status)
    }
}
