import BrokerTesting
import Postgres
import Reactor
import Synchronization
import Testing

@Suite struct `PostgreSQL listener` {
    private static var soon: MonotonicInstant { .after(.seconds(60)) }

    /// A listener with the events that it reports, and a pool that notifies.
    private final class Following: Sendable {
        private let listener: PostgresListener
        private let task = Mutex<Task<Void, Never>?>(nil)
        let events: AsyncStream<PostgresListener.Event>
        let pool: PostgresPool
        let channel: String
        private let signsOfLife: SignsOfLife

        /// How many signs of life have been reported.
        var countOfSigns: Int { signsOfLife.count.load(ordering: .sequentiallyConsistent) }
        /// When `following` was reported last.
        var lastFollowed: MonotonicInstant? { signsOfLife.lastFollowed.withLock { $0 } }

        init(
            listener: PostgresListener, events: AsyncStream<PostgresListener.Event>, pool: PostgresPool,
            channel: String, signsOfLife: SignsOfLife
        ) {
            self.listener = listener
            self.signsOfLife = signsOfLife
            self.events = events
            self.pool = pool
            self.channel = channel
        }

        func start() {
            task.withLock { $0 = Task { await listener.run() } }
        }

        /// Cancels the listener, and waits until it has ended.
        func cancel() async {
            let task = task.withLock { $0 }
            task?.cancel()
            await task?.value
        }

        func notify(_ payload: String) async throws {
            try await Following.notify(pool, channel, payload, soon)
        }

        /// The next event except `alive`.
        func next() async -> PostgresListener.Event? {
            for await event in events where event != .alive { return event }
            return nil
        }

        /// Notifies, and waits until the listener hears it. A notification is lost while the listener has no
        /// connection, and a machine that stalls for longer than the limit loses the connection by itself. Then the
        /// notification is sent again.
        /// - Returns: the other events before it.
        func hear(_ payload: String) async throws -> [PostgresListener.Event] {
            try await notify(payload)
            var others: [PostgresListener.Event] = []
            for await event in events {
                if event == .heard(payload) { return others }
                if event == .following { try await notify(payload) }
                others.append(event)
            }
            Issue.record("the listener ended before it heard '\(payload)'")
            return others
        }

        static func notify(
            _ pool: PostgresPool, _ channel: String, _ payload: String, _ deadline: MonotonicInstant
        ) async throws(PostgresError) {
            _ = try await pool.execute(
                PostgresStatement("SELECT pg_notify($1, $2)"), [.text(channel), .text(payload)], until: deadline)
        }

        func close() async {
            await cancel()
            await pool.close()
        }
    }

    private static let channels = Atomic<Int>(0)

    private final class SignsOfLife: Sendable {
        let count = Atomic<Int>(0)
        let lastFollowed = Mutex<MonotonicInstant?>(nil)
    }

    private static func follow(
        server: PostgresServer, port: UInt16? = nil, interval: Duration = .milliseconds(100),
        limit: Duration = .seconds(30), isProven: Bool = true
    ) throws -> Following {
        let pool = PostgresServer.pool(try PostgresServer.configuration(server.uri(database: "postgres")))
        let configuration = try PostgresServer.configuration(server.uri(database: "postgres", port: port))
        var settings = PostgresListener.Settings()
        settings.interval = interval
        settings.limit = limit
        // One for each test: the tests share a database.
        let channel = "listener_\(channels.add(1, ordering: .relaxed).newValue)"
        let signsOfLife = SignsOfLife()
        let stream = AsyncStream.makeStream(of: PostgresListener.Event.self)
        let listener = PostgresListener(
            configuration, channel: channel, settings: settings, on: PostgresServer.loop,
            resolver: PostgresServer.resolver
        ) { payload, deadline throws(PostgresError) in
            if isProven { try await Following.notify(pool, channel, payload, deadline) }
        } hear: { event in
            if event == .alive { signsOfLife.count.add(1, ordering: .sequentiallyConsistent) }
            if event == .following { signsOfLife.lastFollowed.withLock { $0 = .now } }
            stream.continuation.yield(event)
        }
        return Following(
            listener: listener, events: stream.stream, pool: pool, channel: channel, signsOfLife: signsOfLife)
    }

    private static func isLost(_ event: PostgresListener.Event?) -> Bool {
        if case .lost = event { return true }
        return false
    }

    @Test func `hears what is notified, in its order, and shows that it is alive`() async throws {
        let following = try Self.follow(server: try await PostgresServer.shared.value)
        following.start()
        var events = following.events.makeAsyncIterator()
        #expect(await events.next() == .following)
        for index in 0..<50 { try await following.notify("\(index)") }
        var heard: [String] = []
        var heartbeats = 0
        while heard.count < 50 || heartbeats < 3 {
            switch await events.next() {
            case .heard(let payload): heard.append(payload)
            case .alive: heartbeats += 1
            default:
                Issue.record("not following")
                return
            }
        }
        #expect(heard == (0..<50).map { "\($0)" })
        await following.close()
    }

    @Test func `a notification is heard before the next sign of life`() async throws {
        let following = try Self.follow(server: try await PostgresServer.shared.value, interval: .milliseconds(20))
        following.start()
        var events = following.events.makeAsyncIterator()
        #expect(await events.next() == .following)
        var heartbeats = 0
        for index in 0..<20 {
            try await following.notify("\(index)")
            let before = following.countOfSigns
            while true {
                let event = await events.next()
                if event == .heard("\(index)") { break }
                #expect(event == .alive)
                heartbeats += 1
            }
            // At most one round trip began before the notification.
            #expect(heartbeats - before <= 1)
        }
        await following.close()
    }

    @Test func `a connection that says nothing any more is lost, and another one is made`() async throws {
        let server = try await PostgresServer.shared.value
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        let following = try Self.follow(server: server, port: relay.port, limit: .seconds(2))
        following.start()
        #expect(await following.next() == .following)
        _ = try await following.hear("before")
        await relay.set(.swallow)
        let start = MonotonicInstant.now
        var event = await following.next()
        // The notification may have been sent twice.
        while event == .heard("before") { event = await following.next() }
        #expect(event == .lost(.timedOut))
        #expect(start.duration(to: .now) < .seconds(30))
        try await following.notify("missed")
        await relay.set(.forward)
        // The next connection may have been taken before, and would wait for an answer that is lost.
        await relay.cutAll()
        #expect(await following.next() == .following)
        #expect(try await !following.hear("after").contains(.heard("missed")))
        await relay.cutAll()
        event = await following.next()
        while event == .heard("after") { event = await following.next() }
        #expect(Self.isLost(event))
        #expect(await following.next() == .following)
        await following.close()
        await relay.close()
    }

    // H087
    @Test func `follows again after its server was killed and restarted, and says once that it was lost`() async throws
    {
        let server = try await PostgresServer()
        let following = try Self.follow(server: server)
        following.start()
        #expect(await following.next() == .following)
        for shutdown in [PostgresServer.Shutdown.immediate, .fast] {
            try await server.stop(shutdown)
            #expect(Self.isLost(await following.next()))
            try await server.start()
            let start = MonotonicInstant.now
            #expect(await following.next() == .following)
            let followed = try #require(following.lastFollowed)
            #expect(start.duration(to: followed) < .seconds(10))
        }
        await following.close()
        try await server.stop(.immediate)
    }

    @Test func `a channel on which the proof is not heard is not followed`() async throws {
        let following = try Self.follow(
            server: try await PostgresServer.shared.value, limit: .seconds(2), isProven: false)
        following.start()
        var events = following.events.makeAsyncIterator()
        let lost = await events.next()
        guard case .lost(.unexpectedResult(let text)) = lost else {
            Issue.record("\(String(describing: lost))")
            return
        }
        #expect(text.hasPrefix("a notification sent as a test did not arrive on the listening connection"))
        await following.close()
    }

    @Test func `cancelling ends the session, whatever is under way, and nothing is reported afterwards`() async throws {
        let server = try await PostgresServer.shared.value
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        let idle = try Self.follow(server: server)
        idle.start()
        await idle.cancel()
        await relay.set(.swallow)
        let connecting = try Self.follow(server: server, port: relay.port, limit: .seconds(60))
        connecting.start()
        while await relay.accepted == 0 { await Task.yield() }
        await connecting.cancel()
        let pausing = try Self.follow(server: server, port: try PostgresServer.freePort())
        pausing.start()
        var events = pausing.events.makeAsyncIterator()
        #expect(Self.isLost(await events.next()))
        await pausing.close()
        let following = try Self.follow(server: server)
        following.start()
        events = following.events.makeAsyncIterator()
        #expect(await events.next() == .following)
        await following.cancel()
        let sessions = PostgresStatement(
            "SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'LISTEN listener_tests'")
        var count: Int64?
        while count != 0 { count = try await following.pool.execute(sessions, until: Self.soon).first?.integer(0) }
        await following.close()
        await connecting.close()
        await idle.close()
        await relay.close()
    }
}
