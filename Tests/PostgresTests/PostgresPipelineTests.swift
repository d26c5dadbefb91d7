import BrokerTesting
import Postgres
import Reactor
import Testing

@Suite struct `PostgreSQL pipeline` {
    private static let add = PostgresStatement("SELECT $1 + 1", isPrepared: true)
    private static let insert = PostgresStatement("INSERT INTO t VALUES ($1)", isPrepared: true)
    private static let count = PostgresStatement("SELECT count(*) FROM t")
    private static var soon: MonotonicInstant { .after(.seconds(60)) }

    private static func connect(
        port: UInt16? = nil, usesPooler: Bool = false
    ) async throws -> PostgresConnection {
        var configuration = try await PostgresServer.configuration(
            PostgresServer.shared.value.uri(database: "postgres", port: port))
        configuration.usesPooler = usesPooler
        return try await PostgresServer.connect(configuration)
    }

    private static func withTable(
        usesPooler: Bool = false, _ body: (PostgresConnection) async throws -> Void
    ) async throws {
        let connection = try await connect(usesPooler: usesPooler)
        _ = try await connection.execute(
            PostgresStatement("CREATE TEMPORARY TABLE t (n bigint PRIMARY KEY)"), until: soon)
        try await body(connection)
        if await connection.isInTransaction { Issue.record("a transaction was left open") }
        await connection.close()
    }

    private static func failure(_ body: () async throws -> Void) async -> PostgresError? {
        await #expect(throws: PostgresError.self) { try await body() }
    }

    private static func rows(_ connection: PostgresConnection) async throws -> Int64? {
        try await connection.execute(count, until: soon).first?.integer(0)
    }

    private static func inserts(_ numbers: [Int64]) -> [PostgresCommand] {
        numbers.map { PostgresCommand(insert, [.integer($0)]) }
    }

    @Test(arguments: [false, true])
    func `each statement has its result, in their order`(usesPooler: Bool) async throws {
        try await Self.withTable(usesPooler: usesPooler) { connection in
            for _ in 0..<2 {
                let results = try await connection.pipeline(
                    [
                        PostgresCommand(Self.add, [.integer(1)]),
                        PostgresCommand(
                            PostgresStatement("INSERT INTO t VALUES ($1), ($2)"), [.integer(1), .integer(2)]),
                        PostgresCommand(Self.count),
                        PostgresCommand(PostgresStatement("DELETE FROM t WHERE n > $1"), [.integer(0)]),
                        PostgresCommand(Self.add, [.integer(41)]),
                    ], until: Self.soon)
                #expect(results.count == 5)
                #expect(try results[0].first?.integer(0) == 2)
                #expect(results[1].affectedRows == 2)
                #expect(try results[2].first?.integer(0) == 2)
                #expect(results[3].affectedRows == 2)
                #expect(try results[4].first?.integer(0) == 42)
            }
            #expect(try await connection.pipeline([], until: Self.soon).isEmpty)
            let prepared = try await connection.execute(
                PostgresStatement("SELECT count(*) FROM pg_prepared_statements"), until: Self.soon)
            #expect(try prepared.first?.integer(0) == (usesPooler ? 0 : 1))
        }
    }

    @Test(arguments: [false, true])
    func `is one round trip`(usesPooler: Bool) async throws {
        let relay = try await PostgresRelay(to: PostgresServer.shared.value.port, on: PostgresServer.loop)
        await relay.start()
        let connection = try await Self.connect(port: relay.port, usesPooler: usesPooler)
        let before = await relay.roundTrips
        let commands = (0..<20).map { PostgresCommand(Self.add, [.integer($0)]) }
        _ = try await connection.pipeline(commands, until: Self.soon)
        #expect(await relay.roundTrips == before + 1)
        await connection.close()
        await relay.close()
    }

    @Test(arguments: [false, true])
    func `where one statement fails the others have no effect, and the connection is usable`(
        usesPooler: Bool
    ) async throws {
        try await Self.withTable(usesPooler: usesPooler) { connection in
            for failing in 0..<4 {
                var commands = Self.inserts([1, 2, 3])
                commands.insert(PostgresCommand(PostgresStatement("SELECT 1 / 0")), at: failing)
                let error = await Self.failure { _ = try await connection.pipeline(commands, until: Self.soon) }
                #expect(error == .server(sqlstate: "22012"))
                #expect(try await Self.rows(connection) == 0)
            }
            let results = try await connection.pipeline(Self.inserts([1, 2, 3]), until: Self.soon)
            #expect(results.map(\.affectedRows) == [1, 1, 1])
            #expect(try await Self.rows(connection) == 3)
        }
    }

    @Test func `the first error is told, and an error at the end as well`() async throws {
        try await Self.withTable { connection in
            let first = await Self.failure {
                _ = try await connection.pipeline(
                    [PostgresCommand(PostgresStatement("SELECT 1 / 0")), PostgresCommand(PostgresStatement("SELEC"))],
                    until: Self.soon)
            }
            #expect(first == .server(sqlstate: "22012"))
            _ = try await connection.execute(
                PostgresStatement("CREATE TEMPORARY TABLE d (n bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)"),
                until: Self.soon)
            // The implicit transaction ends at the synchronization point, after every statement has reported
            // completion.
            let last = await Self.failure {
                _ = try await connection.pipeline(
                    [
                        PostgresCommand(PostgresStatement("INSERT INTO d VALUES (1)")),
                        PostgresCommand(PostgresStatement("INSERT INTO d VALUES (1)")),
                    ], until: Self.soon)
            }
            #expect(last == .server(sqlstate: "23505"))
            #expect(try await connection.execute(Self.add, [.integer(1)], until: Self.soon).rowCount == 1)
        }
    }

    @Test func `a transaction can span two pipelines, and end either way`() async throws {
        try await Self.withTable { connection in
            for (end, expected) in [("ROLLBACK", Int64(0)), ("COMMIT", 4)] {
                let begin = [PostgresCommand(PostgresStatement("BEGIN"))]
                #expect(
                    try await connection.pipeline(begin + Self.inserts([1, 2]), until: Self.soon)
                        .map(\.affectedRows) == [0, 1, 1])
                _ = try await connection.pipeline(
                    Self.inserts([3, 4]) + [PostgresCommand(PostgresStatement(trusted: end))], until: Self.soon)
                #expect(try await Self.rows(connection) == expected)
            }
            // After an error the COMMIT is not run, and the transaction stays open.
            let error = await Self.failure {
                _ = try await connection.pipeline(
                    [PostgresCommand(PostgresStatement("BEGIN"))] + Self.inserts([5, 1])
                        + [PostgresCommand(PostgresStatement("COMMIT"))], until: Self.soon)
            }
            #expect(error == .server(sqlstate: "23505"))
            #expect(
                await Self.failure { _ = try await Self.rows(connection) } == .server(sqlstate: "25P02"))
            _ = try await connection.execute(PostgresStatement("ROLLBACK"), until: Self.soon)
            #expect(try await Self.rows(connection) == 4)
        }
    }

    @Test func `what was committed is known whatever comes behind it`() async throws {
        try await Self.withTable { connection async throws in
            let transaction =
                [PostgresCommand(PostgresStatement("BEGIN"))] + Self.inserts([1])
                + [PostgresCommand(PostgresStatement("COMMIT"))]
            let (results, failure) = await connection.outcome(
                of: transaction + [PostgresCommand(PostgresStatement("SELECT 1 / 0"))], until: Self.soon)
            #expect(results.map(\.affectedRows) == [0, 1, 0])
            #expect(failure == .server(sqlstate: "22012"))
            #expect(try await Self.rows(connection) == 1)
            let late = await connection.outcome(
                of: Self.inserts([2]) + [PostgresCommand(PostgresStatement("SELECT pg_sleep(60)"))],
                until: .after(.milliseconds(200)))
            #expect(late.failure == .timedOut)
        }
    }

    @Test func `what both sides' buffers cannot hold passes both ways`() async throws {
        let connection = try await Self.connect()
        let value = (0..<1_000_000).map { UInt8(truncatingIfNeeded: $0 &* 31) }
        let echo = PostgresStatement("SELECT $1::bytea", isPrepared: true)
        let commands = (0..<20).map { _ in PostgresCommand(echo, [.bytes(value)]) }
        let results = try await connection.pipeline(commands, until: Self.soon)
        #expect(results.count == 20)
        for result in results { #expect(try result.first?.bytes(0) == value) }
        let many = try await connection.pipeline(
            (0..<20_000).map { PostgresCommand(Self.add, [.integer($0)]) }, until: Self.soon)
        #expect(try many.map { try $0.first?.integer(0) } == (1...20_000).map { Int64($0) })
        await connection.close()
    }

    @Test func `a statement whose preparation has vanished fails once, and then is run unprepared`() async throws {
        try await Self.withTable { connection in
            _ = try await connection.pipeline(Self.inserts([1]), until: Self.soon)
            _ = try await connection.execute(PostgresStatement("DEALLOCATE ALL"), until: Self.soon)
            let commands = [PostgresCommand(PostgresStatement("INSERT INTO t VALUES (2)"))] + Self.inserts([3])
            let error = await Self.failure { _ = try await connection.pipeline(commands, until: Self.soon) }
            #expect(error == .server(sqlstate: "26000"))
            #expect(try await Self.rows(connection) == 1)
            _ = try await connection.pipeline(commands, until: Self.soon)
            #expect(try await Self.rows(connection) == 3)
        }
    }

    @Test func `a preparation behind an error is made when it is needed again`() async throws {
        try await Self.withTable { connection in
            let commands = [PostgresCommand(PostgresStatement("SELECT 1 / 0"))] + Self.inserts([1, 2])
            _ = await Self.failure { _ = try await connection.pipeline(commands, until: Self.soon) }
            let results = try await connection.pipeline(Self.inserts([1, 2]), until: Self.soon)
            #expect(results.map(\.affectedRows) == [1, 1])
            let count = try await connection.execute(
                PostgresStatement("SELECT count(*) FROM pg_prepared_statements"), until: Self.soon)
            #expect(try count.first?.integer(0) == 1)
        }
    }

    @Test func `after a deadline or a cancellation the connection is closed`() async throws {
        let commands = [
            PostgresCommand(Self.add, [.integer(1)]), PostgresCommand(PostgresStatement("SELECT pg_sleep(60)")),
        ]
        let late = try await Self.connect()
        #expect(
            await Self.failure { _ = try await late.pipeline(commands, until: .after(.milliseconds(100))) } == .timedOut
        )
        #expect(await Self.failure { _ = try await late.pipeline(commands, until: Self.soon) } == .closed)
        let cancelled = try await Self.connect()
        let task = Task { await Self.failure { _ = try await cancelled.pipeline(commands, until: Self.soon) } }
        task.cancel()
        #expect(await task.value == .cancelled)
        #expect(await Self.failure { _ = try await cancelled.pipeline(commands, until: Self.soon) } == .closed)
    }

    @Test func `a session that ends under a pipeline is an error with the server's reason`() async throws {
        let victim = try await Self.connect()
        let killer = try await Self.connect()
        let id = try await victim.execute(PostgresStatement("SELECT pg_backend_pid()"), until: Self.soon)
        let process = try #require(try id.first?.integer(0))
        async let error = Self.failure {
            _ = try await victim.pipeline(
                [
                    PostgresCommand(Self.add, [.integer(1)]), PostgresCommand(PostgresStatement("SELECT pg_sleep(60)")),
                    PostgresCommand(Self.add, [.integer(1)]),
                ], until: Self.soon)
        }
        var isSleeping = false
        while !isSleeping {
            let activity = try await killer.execute(
                PostgresStatement(
                    "SELECT count(*) FROM pg_stat_activity WHERE pid = $1::bigint AND wait_event = 'PgSleep'"),
                [.integer(process)], until: Self.soon)
            isSleeping = try activity.first?.integer(0) == 1
        }
        _ = try await killer.execute(
            PostgresStatement("SELECT pg_terminate_backend($1::bigint::integer)"), [.integer(process)],
            until: Self.soon)
        #expect(await error == .server(sqlstate: "57P01"))
        #expect(await Self.failure { _ = try await victim.pipeline([], until: Self.soon) } == .closed)
        await killer.close()
    }

    @Test(arguments: ["SELECT pg_sleep", "COMMIT"])
    func `a connection that is cut under a pipeline is lost`(text: String) async throws {
        let relay = try await PostgresRelay(to: PostgresServer.shared.value.port, on: PostgresServer.loop)
        await relay.start()
        let connection = try await Self.connect(port: relay.port)
        await relay.set(.cutAnswer(to: text))
        let error = await Self.failure {
            _ = try await connection.pipeline(
                [
                    PostgresCommand(PostgresStatement("BEGIN")),
                    PostgresCommand(PostgresStatement("SELECT pg_sleep(0.1)")),
                    PostgresCommand(PostgresStatement("COMMIT")),
                ], until: Self.soon)
        }
        #expect(error == .connectionLost)
        #expect(await relay.cuts == 1)
        await relay.close()
    }
}
