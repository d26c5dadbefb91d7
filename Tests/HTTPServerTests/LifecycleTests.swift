import BrokerTesting
import ExternalText
import Glibc
import HTTPCodec
import HTTPServer
import Reactor
import Synchronization
import Testing

@Suite(.timeLimit(.minutes(1))) struct `HTTP server's life` {
    @Test func `port 0 becomes the port that was chosen`() async throws {
        try await withServer { server in
            #expect(server.address.port != 0)
            #expect(server.address.host == "127.0.0.1")
        }
    }

    @Test func `an address in use is an error`() async throws {
        let loopback = try #require(SocketAddress(numericHost: "127.0.0.1", port: 0))
        // A listener that does not share its port.
        let taken = try Socket.listen(on: loopback)
        let address = try Socket.localAddress(of: taken.rawValue)
        #expect(throws: SystemError.self) {
            try Server(configuration: ServerConfiguration(address: address), handler: HTTPClosureHandler(echo))
        }
        _ = consume taken
    }

    // H098
    @Test func `draining lets a running request end and closes what is idle`() async throws {
        let (begun, release) = (HTTPLatch(), HTTPLatch())
        let handler: @Sendable (Request) async -> Response = { request in
            if request.path == "/slow" {
                begun.open()
                await release.wait()
            }
            return Response(.ok, body: Array(request.path.utf8))
        }
        try await withServer(handler: handler) { server in
            let idle = try HTTPRawClient(server.address)
            try await idle.send(get("/"))
            _ = try await idle.response()
            let silent = try HTTPRawClient(server.address)
            let begunRequest = try HTTPRawClient(server.address)
            try await begunRequest.send("GET /late HTTP/1.1\r\n")
            let busy = try HTTPRawClient(server.address)
            try await busy.send(get("/slow") + get("/next"))
            await begun.wait()
            await eventually { server.statistics.connectionsOpen == 4 }

            async let drained: Void = server.drain(within: .seconds(30))
            #expect(try await idle.rest() == "")
            #expect(try await silent.rest() == "")
            #expect(throws: SystemError.self) { try HTTPRawClient(server.address) }

            try await begunRequest.send("Host: a\r\n\r\n")
            let late = try await begunRequest.response()
            #expect(late.text == "/late")
            #expect(late.fields["connection"] == "close")
            #expect(try await begunRequest.rest() == "")

            release.open()
            let response = try await busy.response()
            #expect(response.text == "/slow")
            #expect(response.fields["connection"] == "close")
            #expect(try await busy.rest() == "")
            for client in [idle, silent, begunRequest, busy] { await client.close() }
            await drained
            #expect(server.statistics.connectionsOpen == 0)
        }
    }

    @Test func `draining waits for answers that are on their way, and closes behind them`() async throws {
        let body = [UInt8](repeating: 0x61, count: 8 << 20)
        let handler: @Sendable (Request) async -> Response = { _ in Response(.ok, body: body) }
        try await withServer(handler: handler) { server in
            let client = try HTTPRawClient(server.address, receiveBufferBytes: 4096)
            let idle = try HTTPRawClient(server.address)
            try await client.send(get("/"))
            await eventually { server.statistics.requests == 1 }
            async let drained: Void = server.drain(within: .seconds(30))
            #expect(try await idle.rest() == "")
            let text = try await client.rest()
            #expect(text.utf8.count > body.count)
            await drained
        }
    }

    // H098
    @Test func `when the grace ends, what is left is reset and its handler cancelled`() async throws {
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
        let clock = ManualLoopClock()
        try await withServer(clock: clock, handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            let idle = try HTTPRawClient(server.address)
            try await client.send(get("/"))
            await begun.wait()
            async let drained: Void = server.drain(within: .seconds(30))
            // The drain closes idle connections when it begins.
            #expect(try await idle.rest() == "")
            await clock.advance(by: .milliseconds(29_999))
            #expect(!cancelled.isOpen)
            await clock.advance(by: .milliseconds(1))
            await drained
            #expect(cancelled.isOpen)
            #expect(server.statistics.connectionsOpen == 0)
            await #expect(throws: HTTPRawClient.Failure.reset) { try await client.receive() }
        }
    }

    @Test func `draining a server without connections ends at once`() async throws {
        try await withServer { server in
            await server.drain(within: .seconds(30))
            await server.drain(within: .seconds(30))
        }
    }

    @Test func `closing ends a drain that is under way`() async throws {
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
            let idle = try HTTPRawClient(server.address)
            try await client.send(get("/"))
            await begun.wait()
            async let drained: Void = server.drain(within: .seconds(1000))
            // Seen from outside, the drain has begun when the idle connection is closed.
            #expect(try await idle.rest() == "")
            await server.close()
            await drained
            #expect(cancelled.isOpen)
            await server.close()
        }
    }

    @Test func `a handler that ignores its cancellation does not delay the end`() async throws {
        let clock = ManualLoopClock()
        let (begun, never) = (HTTPLatch(), HTTPLatch())
        let handler: @Sendable (Request) async -> Response = { _ in
            begun.open()
            await never.wait()
            return Response(.ok)
        }
        try await withServer(clock: clock, handler: handler) { server in
            let client = try HTTPRawClient(server.address)
            let idle = try HTTPRawClient(server.address)
            try await client.send(get("/"))
            await begun.wait()
            async let drained: Void = server.drain(within: .seconds(30))
            #expect(try await idle.rest() == "")
            await clock.advance(by: .seconds(30))
            await drained
            #expect(server.statistics.connectionsOpen == 0)
            never.open()
        }
    }

    /// In a process of its own, since the limit on descriptors is the process's.
    // H101
    @Test func `without descriptors accepting pauses, does not spin, and recovers`() async throws {
        await #expect(processExitsWith: .success) {
            try await withServer(configured { $0.idleGrace = .seconds(60) }) { server in
                let first = try HTTPRawClient(server.address)
                try await first.send(get("/"))
                _ = try await first.response()
                let second = try HTTPRawClient(server.address)
                await eventually { server.statistics.connectionsAccepted == 2 }

                // No number above the ones in use may be given out; the client's socket takes the last.
                var limit = rlimit()
                _ = unsafe getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
                let before = limit
                let highest = dup(0)
                limit.rlim_cur = rlim_t(highest + 1)
                precondition(unsafe setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0)
                Glibc.close(highest)
                let third = try HTTPRawClient(server.address)
                precondition(dup(0) == -1, "a descriptor is left")

                let cpu = clock()
                try await third.send(get("/third"))
                // Three times as long as accepting pauses.
                let isAccepted = await third.hasInput(within: .milliseconds(300))
                precondition(!isAccepted, "a connection is accepted without a descriptor")
                let spent = clock() - cpu
                precondition(spent < CLOCKS_PER_SEC / 10, "accepting spins")
                // The connections that are open are served meanwhile.
                try await second.send(get("/second"))
                let meanwhile = try await second.response().text
                precondition(meanwhile == "GET /second\n")

                limit = before
                precondition(unsafe setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0)
                let late = try await third.response().text
                precondition(late == "GET /third\n")
            }
        }
    }

    @Test func `a second server on the same port is refused`() async throws {
        try await withServer { server in
            let error = #expect(throws: SystemError.self) {
                _ = try Server(
                    configuration: ServerConfiguration(address: server.address), handler: HTTPClosureHandler(echo))
            }
            #expect(error?.number == EADDRINUSE)
        }
    }

    @Test func `an aborted exchange ends the connection without a byte, warm and after a wait`() async throws {
        let handler: @Sendable (Request) async -> Response = { request in
            if request.path == "/slow" { await Task.yield() }
            var response = Response(.ok)
            response.abortsConnection = true
            return response
        }
        try await withServer(handler: handler) { server in
            for path in ["/warm", "/slow"] {
                let client = try HTTPRawClient(server.address)
                try await client.send(get(path))
                #expect(try await client.rest() == "")
            }
        }
    }
}
