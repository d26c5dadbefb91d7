import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

/// `GET /events` over real connections.
@Suite(.timeLimit(.minutes(5))) struct `Events over sockets` {
    /// A broker in memory whose time stands still, behind a server.
    private static func serve(
        writeTimeout: Duration = .seconds(30), _ body: (BrokerHarness, Server) async throws -> Void
    ) async throws {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false))
        await broker.makeTenant()
        let configuration = ServerConfiguration(
            address: SocketAddress(ip: .v4([127, 0, 0, 1]), port: 0), loopCount: 2, writeTimeout: writeTimeout)
        let server = try Server(configuration: configuration, handler: broker.service)
        let result: Result<Void, any Error>
        do {
            result = .success(try await body(broker, server))
        } catch {
            result = .failure(error)
        }
        broker.broker.beginDraining()
        await server.drain(within: .seconds(10))
        await broker.broker.core.finish()
        await server.close()
        try result.get()
    }

    @Test func `two hundred listeners all get fifty events in order`() async throws {
        try await Self.serve { broker, server in
            var listeners: [SSEClient] = []
            for _ in 0..<200 { listeners.append(try await SSEClient(server.address, tenant: "t1")) }
            #expect(broker.broker.events.listenerCount == 200)
            for number in 0..<50 { await broker.set("a", storageKey: "k\(number)") }
            let expected = try await broker.loggedEvents()
            #expect(expected.count == 50)
            for listener in listeners { #expect(try await listener.events(50) == expected) }
            for listener in listeners { await listener.close() }
        }
    }

    @Test func `a listener that does not read is cut off, and others go on meanwhile`() async throws {
        try await Self.serve(writeTimeout: .seconds(1)) { broker, server in
            let tenant = try #require(TenantName("t1"))
            let data = #"{"storage_key":"k","filler":"\#(String(repeating: "x", count: 400_000))"}"#
            for number in 0..<40 {
                try await broker.vault.commit([
                    .append(
                        OpenLogEntry(
                            tenant: tenant, key: "k", version: Int64(number), time: broker.time.now,
                            content: SecretBytes(utf8: "login.failed \(data)\n")))
                ])
            }
            let slow = try await SSEClient(server.address, tenant: "t1", lastID: "0-9999", receiveBufferBytes: 4096)
            let other = try await SSEClient(server.address, tenant: "t1")
            for number in 1...20 {
                await broker.set("a", storageKey: "k\(number)")
                #expect(try await other.events(number).count == number)
            }
            let deadline = MonotonicInstant.after(.seconds(30))
            while server.statistics.connectionsStalled == 0, MonotonicInstant.now < deadline { await Task.yield() }
            #expect(server.statistics.connectionsStalled == 1)
            await #expect(throws: (any Error).self) { try await slow.toEnd() }
            await broker.set("a", storageKey: "k21")
            #expect(try await other.events(21).last?.storageKey == "k21")
            await other.close()
        }
    }

    @Test func `HEAD is answered with the head alone, and the connection goes on`() async throws {
        try await Self.serve { broker, server in
            let client = try HTTPRawClient(server.address)
            let fields = "Host: broker\r\nAuthorization: Bearer \(BrokerHarness.adminKey)\r\n\r\n"
            for _ in 0..<2 {
                try await client.send("HEAD /events HTTP/1.1\r\n" + fields)
                let head = try await client.response(to: .head)
                #expect(head.status == .ok)
                #expect(head.fields["Content-Type"] == "text/event-stream")
                #expect(head.body.isEmpty)
                try await client.send("GET /livez HTTP/1.1\r\n" + fields)
                #expect(try await client.response().status == .ok)
            }
            #expect(broker.broker.events.listenerCount == 0)
            await client.close()
        }
    }

    @Test func `the place of a client that goes away is free after the next event`() async throws {
        try await Self.serve { broker, server in
            let client = try await SSEClient(server.address, tenant: "t1")
            #expect(broker.broker.events.listenerCount == 1)
            await client.close()
            let deadline = MonotonicInstant.after(.seconds(30))
            while broker.broker.events.listenerCount > 0, MonotonicInstant.now < deadline {
                await broker.set("a")
                await Task.yield()
            }
            #expect(broker.broker.events.listenerCount == 0)
        }
    }

    /// The program with one tenant.
    private static func startProcess(
        _ directory: StoreFixtureDirectory
    ) async throws -> (TestProcess, BrokerClient, SocketAddress) {
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(
            port: port, ["DATA_DIR": directory.path, "MASTER_KEYS": BrokerHarness.masterKeys])
        let broker = try BrokerClient(port: port)
        #expect(try await broker.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#).status == 201)
        return (process, broker, SocketAddress(ip: .v4([127, 0, 0, 1]), port: port))
    }

    @Test func `a stop ends every stream in good order`() async throws {
        let directory = StoreFixtureDirectory()
        let (process, broker, address) = try await Self.startProcess(directory)
        let listeners = [
            try await SSEClient(address, tenant: "t1"), try await SSEClient(address),
            try await SSEClient(address, lastID: "77-0"),
        ]
        try await Self.set(broker, "k1")
        // The third one is told first that it may have missed events.
        for (listener, count) in zip(listeners, [1, 1, 2]) {
            #expect(try await listener.events(count).last?.storageKey == "k1")
        }
        let begin = MonotonicInstant.now
        async let status = process.terminate()
        for (listener, count) in zip(listeners, [1, 1, 2]) { #expect(try await listener.toEnd().count == count) }
        for listener in listeners { await listener.close() }
        #expect(await status == 0)
        // Far less than the grace.
        #expect(begin.duration(to: .now) < .seconds(15))
        await broker.close()
    }

    @Test func `a process sends each listener ten times a second at most, however many events there are`() async throws
    {
        let directory = StoreFixtureDirectory()
        let (process, broker, address) = try await Self.startProcess(directory)
        let listeners = [try await SSEClient(address, tenant: "t1"), try await SSEClient(address)]
        let begin = MonotonicInstant.now
        for number in 0..<200 { try await Self.set(broker, "k\(number)") }
        for listener in listeners {
            #expect(try await listener.events(200).map(\.storageKey) == (0..<200).map { "k\($0)" })
            let spans = begin.duration(to: .now).milliseconds / 100
            // The beginning of the stream, the first event, and what the last span has begun with.
            #expect(await listener.chunks <= Int(spans) + 3)
            await listener.close()
        }
        #expect(await process.terminate() == 0)
        await broker.close()
    }

    private static func set(_ broker: BrokerClient, _ storageKey: String) async throws {
        let answer = try await broker.call(
            .put, "/credentials", tenant: "t1",
            body: #"{"storage_key": "\#(storageKey)", "credentials": {"client_id": "c1", "token": "a"}}"#)
        #expect(answer.status == 200, "\(answer.text)")
    }

    @Test func `what one replica stores, a listener to another one hears of in order, within a few seconds`()
        async throws
    {
        let server = try await PostgresServer.shared.value
        let variables = [
            "DATABASE_URL": server.uri(database: try await server.makeDatabase()),
            "MASTER_KEYS": BrokerHarness.masterKeys,
        ]
        let ports = [try PostgresServer.freePort(), try PostgresServer.freePort()]
        var processes: [TestProcess] = []
        for port in ports { processes.append(try await BrokerProcess.start(port: port, variables)) }
        let writers = try ports.map { try BrokerClient(port: $0) }
        #expect(try await writers[0].call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#).status == 201)
        let addresses = ports.map { SocketAddress(ip: .v4([127, 0, 0, 1]), port: $0) }
        let listeners = [
            try await SSEClient(addresses[0], tenant: "t1"), try await SSEClient(addresses[1], tenant: "t1"),
        ]
        try await Self.set(writers[0], "first")
        let stored = MonotonicInstant.now
        #expect(try await listeners[1].events(1).map(\.storageKey) == ["first"])
        #expect(stored.duration(to: .now) < .seconds(10))

        try await withThrowingTaskGroup { group in
            for (index, writer) in writers.enumerated() {
                group.addTask { for number in 0..<30 { try await Self.set(writer, "r\(index)-\(number)") } }
            }
            try await group.waitForAll()
        }
        let heard = [try await listeners[0].events(61), try await listeners[1].events(61)]
        #expect(heard[0] == heard[1])
        for index in 0..<2 {
            let keys = heard[0].compactMap(\.storageKey).filter { $0.hasPrefix("r\(index)-") }
            #expect(keys == (0..<30).map { "r\(index)-\($0)" })
        }
        // An id from one replica leads on at the other.
        let resumed = try await SSEClient(addresses[1], tenant: "t1", lastID: heard[0][40].id)
        #expect(try await resumed.events(20) == Array(heard[0][41...]))
        for listener in listeners + [resumed] { await listener.close() }
        for process in processes { #expect(await process.terminate() == 0) }
        for writer in writers { await writer.close() }
    }
}
