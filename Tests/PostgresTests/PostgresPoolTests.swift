import BrokerTesting
import Postgres
import Reactor
import Testing

@Suite struct `PostgreSQL pool` {
    private static let session = PostgresStatement("SELECT pg_backend_pid()")
    private static let sleep = PostgresStatement("SELECT pg_sleep(60)")
    private static var soon: MonotonicInstant { .after(.seconds(60)) }

    private static func configuration(
        database: String = "postgres", port: UInt16? = nil
    ) async throws -> PostgresConfiguration {
        try await PostgresServer.configuration(
            PostgresServer.shared.value.uri(database: database, port: port))
    }

    private static func failure(_ body: () async throws -> Void) async -> PostgresError? {
        await #expect(throws: PostgresError.self) { try await body() }
    }

    private static func sessionID(_ pool: PostgresPool) async throws -> Int64? {
        try await pool.execute(session, until: soon).first?.integer(0)
    }

    @Test func `a connection is used again`() async throws {
        let pool = PostgresServer.pool(try await Self.configuration())
        let first = try await Self.sessionID(pool)
        #expect(try await Self.sessionID(pool) == first)
        await pool.close()
    }

    @Test func `many callers share a few connections`() async throws {
        var configuration = try await Self.configuration()
        configuration.maximumConnections = 3
        let pool = PostgresServer.pool(configuration)
        let sessions = try await withThrowingTaskGroup(of: Int64?.self) { group in
            for _ in 0..<200 { group.addTask { try await Self.sessionID(pool) } }
            return try await group.reduce(into: Set<Int64?>()) { $0.insert($1) }
        }
        #expect((1...3).contains(sessions.count))
        #expect(!sessions.contains(nil))
        await pool.close()
    }

    @Test func `a refused statement costs no connection`() async throws {
        let pool = PostgresServer.pool(try await Self.configuration())
        let before = try await Self.sessionID(pool)
        #expect(
            await Self.failure { _ = try await pool.execute(PostgresStatement("SELECT 1 / 0"), until: Self.soon) }
                == .server(sqlstate: "22012"))
        #expect(try await Self.sessionID(pool) == before)
        await pool.close()
    }

    @Test func `a transaction left open goes with its connection`() async throws {
        let pool = PostgresServer.pool(try await Self.configuration())
        let before = try await pool.withConnection(until: Self.soon) { connection throws(PostgresError) in
            _ = try await connection.execute(PostgresStatement("BEGIN"), until: Self.soon)
            return try await connection.execute(Self.session, until: Self.soon).first?.integer(0)
        }
        #expect(try await Self.sessionID(pool) != before)
        await pool.close()
    }

    @Test func `after a deadline another connection is used`() async throws {
        let pool = PostgresServer.pool(try await Self.configuration())
        let before = try await Self.sessionID(pool)
        #expect(
            await Self.failure { _ = try await pool.execute(Self.sleep, until: .after(.milliseconds(100))) }
                == .timedOut)
        #expect(try await Self.sessionID(pool) != before)
        await pool.close()
    }

    @Test func `a connection that died while idle is replaced before it is lent`() async throws {
        let pool = PostgresServer.pool(try await Self.configuration())
        let other = PostgresServer.pool(try await Self.configuration())
        let victim = try #require(try await Self.sessionID(pool))
        // Waits until the server has ended the session.
        let ended = try await other.execute(
            PostgresStatement("SELECT pg_terminate_backend($1::bigint::integer, 10000)"), [.integer(victim)],
            until: Self.soon)
        #expect(try ended.first?.boolean(0) == true)
        #expect(try await Self.sessionID(pool) != victim)
        await pool.close()
        await other.close()
    }

    @Test func `a server that turned read-only is left for a new connection`() async throws {
        let database = try await PostgresServer.shared.value.makeDatabase()
        let pool = PostgresServer.pool(try await Self.configuration(database: database))
        let before = try await Self.sessionID(pool)
        let error = await Self.failure {
            _ = try await pool.withConnection(until: Self.soon) { connection throws(PostgresError) in
                _ = try await connection.execute(
                    PostgresStatement("SET default_transaction_read_only = on"), until: Self.soon)
                _ = try await connection.execute(PostgresStatement("CREATE TABLE t (n bigint)"), until: Self.soon)
            }
        }
        #expect(error == .server(sqlstate: "25006"))
        #expect(try await Self.sessionID(pool) != before)
        _ = try await pool.execute(PostgresStatement("CREATE TABLE t (n bigint)"), until: Self.soon)
        await pool.close()
    }

    // H106
    @Test func `when all connections stay in use the wait is bounded, and then the queue`() async throws {
        var configuration = try await Self.configuration()
        configuration.maximumConnections = 1
        configuration.maximumWaiters = 2
        configuration.waitTimeout = .seconds(5)
        let pool = PostgresServer.pool(configuration)
        let borrowed = AsyncStream.makeStream(of: Void.self)
        let holder = Task {
            defer { borrowed.continuation.finish() }
            return try await pool.withConnection(until: Self.soon) { connection throws(PostgresError) in
                borrowed.continuation.yield()
                return try await connection.execute(Self.sleep, until: Self.soon)
            }
        }
        for await _ in borrowed.stream { break }
        // Now one borrower has the connection, two wait, and further ones are refused.
        let errors = await withTaskGroup(of: PostgresError?.self) { group in
            for _ in 0..<50 {
                group.addTask { await Self.failure { _ = try await pool.execute(Self.session, until: Self.soon) } }
            }
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(errors == Array(repeating: .exhausted, count: 50))
        holder.cancel()
        await #expect(throws: PostgresError.cancelled) { try await holder.value }
        #expect(try await Self.sessionID(pool) != nil)
        await pool.close()
    }

    @Test func `a caller that is cancelled while it waits leaves the queue`() async throws {
        var configuration = try await Self.configuration()
        configuration.maximumConnections = 1
        configuration.maximumWaiters = 1
        let pool = PostgresServer.pool(configuration)
        let borrowed = AsyncStream.makeStream(of: Void.self)
        let release = AsyncStream.makeStream(of: Void.self)
        let holder = Task {
            defer { borrowed.continuation.finish() }
            return try await pool.withConnection(until: Self.soon) { connection throws(PostgresError) in
                borrowed.continuation.yield()
                for await _ in release.stream { break }
            }
        }
        for await _ in borrowed.stream { break }
        for _ in 0..<3 {
            let waiter = Task { await Self.failure { _ = try await Self.sessionID(pool) } }
            waiter.cancel()
            #expect(await waiter.value == .cancelled)
        }
        release.continuation.yield()
        try await holder.value
        #expect(try await Self.sessionID(pool) != nil)
        await pool.close()
    }

    @Test func `closing waits for borrowers and refuses all other callers`() async throws {
        let pool = PostgresServer.pool(try await Self.configuration())
        let borrowed = AsyncStream.makeStream(of: Void.self)
        let holder = Task {
            defer { borrowed.continuation.finish() }
            return try await pool.withConnection(until: Self.soon) { connection throws(PostgresError) in
                borrowed.continuation.yield()
                return try await connection.execute(
                    PostgresStatement("SELECT pg_sleep(0.3)"), until: Self.soon
                ).rowCount
            }
        }
        for await _ in borrowed.stream { break }
        await pool.close()
        #expect(try await holder.value == 1)
        #expect(await Self.failure { _ = try await Self.sessionID(pool) } == .closed)
        await pool.close()
    }

    // MARK: Faults, each at a server or relay of its own

    @Test func `an absent server is reported at once, and only one caller at a time tries it`() async throws {
        let server = try await PostgresServer.shared.value
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        await relay.set(.swallow)
        let relayPort = relay.port
        var configuration = try await Self.configuration(port: relayPort)
        configuration.connectTimeout = .milliseconds(300)
        let pool = PostgresServer.pool(configuration)
        let refused = await Self.failure { _ = try await Self.sessionID(pool) }
        #expect(refused == .connectionFailed(sqlstate: nil, detail: "no answer in time"))
        let start = MonotonicInstant.now
        let errors = await withTaskGroup(of: PostgresError?.self) { group in
            for _ in 0..<100 { group.addTask { await Self.failure { _ = try await Self.sessionID(pool) } } }
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(errors.allSatisfy { $0 == refused })
        #expect(start.duration(to: .now) < .seconds(10))
        #expect(await relay.accepted <= 20)

        await relay.set(.forward)
        let deadline = Self.soon
        var session: Int64?
        while session == nil, MonotonicInstant.now < deadline { session = try? await Self.sessionID(pool) }
        #expect(session != nil)
        await pool.close()
        await relay.close()
    }

    @Test func `a pool outlives a crash, a stop and a restart of its server`() async throws {
        let server = try await PostgresServer()
        let pool = PostgresServer.pool(try PostgresServer.configuration(server.uri(database: "postgres")))
        let victim = try #require(try await Self.sessionID(pool))
        async let interrupted = Self.failure { _ = try await pool.execute(Self.sleep, until: Self.soon) }
        let other = PostgresServer.pool(try PostgresServer.configuration(server.uri(database: "postgres")))
        var isSleeping = false
        while !isSleeping {
            isSleeping =
                try await other.execute(
                    PostgresStatement("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"),
                    until: Self.soon
                ).first?.integer(0) == 1
        }
        server.crash(session: victim)
        #expect(await interrupted == .connectionLost)
        await Self.recovered(pool)

        try await server.stop(.fast)
        guard case .connectionFailed = await Self.failure({ _ = try await Self.sessionID(pool) }) else {
            Issue.record("a stopped server answered")
            return
        }
        try await server.start()
        await Self.recovered(pool)

        try await server.stop(.immediate)
        try await server.start()
        await Self.recovered(pool)
        await pool.close()
        await other.close()
        try await server.stop(.immediate)
    }

    /// Repeats a statement until it succeeds. The pauses of the pool limit how often.
    private static func recovered(_ pool: PostgresPool) async {
        let deadline = soon
        while MonotonicInstant.now < deadline {
            if let session = try? await sessionID(pool), session > 0 { return }
        }
        Issue.record("the pool did not recover")
    }
}
