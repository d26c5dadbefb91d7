import BrokerTesting
import Postgres
import Reactor
import Testing

@Suite struct `PostgreSQL connection` {
    private static func connect(
        _ parameters: String = "sslmode=disable", user: String = "postgres", password: String = PostgresServer.password,
        adjust: (inout PostgresConfiguration) -> Void = { _ in }
    ) async throws -> PostgresConnection {
        let server = try await PostgresServer.shared.value
        var configuration = try PostgresServer.configuration(
            server.uri(database: "postgres", user: user, password: password, parameters: parameters))
        adjust(&configuration)
        return try await PostgresServer.connect(configuration)
    }

    private static func failure(_ body: () async throws -> Void) async -> PostgresError? {
        await #expect(throws: PostgresError.self) { try await body() }
    }

    private static var soon: MonotonicInstant { .after(.seconds(60)) }

    // MARK: Values

    @Test func `values of every type come back, NULL and emptiness apart`() async throws {
        let connection = try await Self.connect()
        let all = (0...255).map { UInt8($0) }
        let result = try await connection.execute(
            PostgresStatement("SELECT $1::text, $2::text, $3::text, $4::bytea, $5::bytea, $6::bytea"),
            [.text("Grüße '; --"), .text(""), .text(nil), .bytes(all), .bytes([]), .bytes(nil)], until: Self.soon)
        let row = try #require(result.first)
        #expect(try row.text(0) == "Grüße '; --")
        #expect(try row.text(1) == "")
        #expect(try row.text(2) == nil)
        #expect(try row.bytes(3) == all)
        #expect(try row.bytes(4) == [])
        #expect(try row.bytes(5) == nil)
        await connection.close()
    }

    @Test(arguments: [Int64.min, -4_294_967_297, -256, -1, 0, 1, 255, 256, 2_147_483_648, .max])
    func `a bigint comes back`(value: Int64) async throws {
        let connection = try await Self.connect()
        let result = try await connection.execute(
            PostgresStatement("SELECT $1, $1::text"), [.integer(value)], until: Self.soon)
        #expect(try result.first?.integer(0) == value)
        #expect(try result.first?.text(1) == "\(value)")
        await connection.close()
    }

    @Test(arguments: [[], [""], ["a"], ["Grüße '; --", "", "{,}", "NULL", String(repeating: "x", count: 70_000)]])
    func `an array of text comes back`(texts: [String]) async throws {
        let connection = try await Self.connect()
        let result = try await connection.execute(
            PostgresStatement("SELECT text FROM unnest($1) WITH ORDINALITY AS row (text, place) ORDER BY place"),
            [.texts(texts)], until: Self.soon)
        #expect(try result.rows.map { try $0.text(0) } == texts)
        await connection.close()
    }

    @Test func `an array of bigint is read, with what is NULL in it`() async throws {
        let connection = try await Self.connect()
        let row = try #require(
            try await connection.execute(
                PostgresStatement(
                    """
                    SELECT '{}'::bigint[], '{1,NULL,-2,9223372036854775807,-9223372036854775808}'::bigint[],
                        NULL::bigint[], '[5:6]={7,NULL}'::bigint[], '{{1,2},{3,4}}'::bigint[], '{1}'::integer[], 1::bigint
                    """), until: Self.soon
            ).first)
        #expect(try row.integers(0) == [])
        #expect(try row.integers(1) == [1, nil, -2, .max, .min])
        #expect(try row.integers(2) == nil)
        #expect(try row.integers(3) == [7, nil])
        for column in 4...6 {
            #expect(throws: PostgresError.unexpectedResult("a column is not an array of bigint")) {
                try row.integers(column)
            }
        }
        await connection.close()
    }

    @Test func `smaller integers, booleans and other kinds of text are read`() async throws {
        let connection = try await Self.connect()
        let row = try #require(
            try await connection.execute(
                PostgresStatement(
                    "SELECT (-2)::smallint, (-70000)::integer, true, false, 'v'::varchar, 'n'::name, NULL::boolean"),
                until: Self.soon
            ).first)
        #expect(try row.integer(0) == -2)
        #expect(try row.integer(1) == -70000)
        #expect(try row.boolean(2) == true)
        #expect(try row.boolean(3) == false)
        #expect(try row.text(4) == "v")
        #expect(try row.text(5) == "n")
        #expect(try row.boolean(6) == nil)
        await connection.close()
    }

    @Test func `a column of another type is an error, not a guess`() async throws {
        let connection = try await Self.connect()
        let row = try #require(
            try await connection.execute(PostgresStatement("SELECT 1.5::float8, 'x'::text"), until: Self.soon).first)
        #expect(throws: PostgresError.unexpectedResult("a column is not an integer")) { try row.integer(0) }
        #expect(throws: PostgresError.unexpectedResult("a column is not bytea")) { try row.bytes(1) }
        #expect(throws: PostgresError.unexpectedResult("a column is not text")) { try row.text(0) }
        #expect(throws: PostgresError.unexpectedResult("a column is not boolean")) { try row.boolean(1) }
        await connection.close()
    }

    @Test func `rows keep their order and affected rows are counted`() async throws {
        let connection = try await Self.connect()
        _ = try await connection.execute(PostgresStatement("CREATE TEMPORARY TABLE t (n bigint)"), until: Self.soon)
        let inserted = try await connection.execute(
            PostgresStatement("INSERT INTO t SELECT generate_series(1, $1)"), [.integer(1000)], until: Self.soon)
        #expect(inserted.affectedRows == 1000)
        #expect(inserted.rowCount == 0)
        let selected = try await connection.execute(
            PostgresStatement("SELECT n FROM t ORDER BY n DESC"), until: Self.soon)
        #expect(try selected.rows.map { try $0.integer(0) } == (1...1000).reversed().map { Int64($0) })
        let none = try await connection.execute(
            PostgresStatement("UPDATE t SET n = 0 WHERE n > 1000"), until: Self.soon)
        #expect(none.affectedRows == 0)
        #expect(none.first == nil)
        await connection.close()
    }

    @Test func `values larger than the socket's buffers pass both ways`() async throws {
        let connection = try await Self.connect()
        let value = (0..<9_000_000).map { UInt8(truncatingIfNeeded: $0 &* 31) }
        let result = try await connection.execute(
            PostgresStatement("SELECT $1::bytea"), [.bytes(value)], until: Self.soon)
        #expect(try result.first?.bytes(0) == value)
        await connection.close()
    }

    // MARK: Errors

    @Test func `a refused statement names its SQLSTATE and leaves the connection usable`() async throws {
        let connection = try await Self.connect()
        for (statement, sqlstate) in [
            (PostgresStatement("SELECT 1 FROM absent_table"), "42P01"), (PostgresStatement("SELEC 1"), "42601"),
            (PostgresStatement("SELECT 1 / 0"), "22012"), (PostgresStatement("SELECT 'hunter2'::bigint"), "22P02"),
        ] {
            let error = await Self.failure { _ = try await connection.execute(statement, until: Self.soon) }
            #expect(error == .server(sqlstate: sqlstate))
        }
        let result = try await connection.execute(PostgresStatement("SELECT 1::bigint"), until: Self.soon)
        #expect(try result.first?.integer(0) == 1)
        await connection.close()
    }

    @Test func `an error that comes at the commit is not taken for success`() async throws {
        let connection = try await Self.connect()
        _ = try await connection.execute(
            PostgresStatement("CREATE TEMPORARY TABLE d (n bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)"),
            until: Self.soon)
        let error = await Self.failure {
            _ = try await connection.execute(PostgresStatement("INSERT INTO d VALUES (1), (1)"), until: Self.soon)
        }
        #expect(error == .server(sqlstate: "23505"))
        await connection.close()
    }

    @Test func `text with a zero byte is refused by the server and not cut`() async throws {
        let connection = try await Self.connect()
        let error = await Self.failure {
            _ = try await connection.execute(PostgresStatement("SELECT $1::text"), [.text("a\0b")], until: Self.soon)
        }
        #expect(error == .server(sqlstate: "22021"))
        await connection.close()
    }

    @Test func `notices and COPY disturb nothing that follows`() async throws {
        let connection = try await Self.connect()
        _ = try await connection.execute(
            PostgresStatement("DO $$ BEGIN RAISE NOTICE 'a notice'; END $$"), until: Self.soon)
        let error = await Self.failure {
            _ = try await connection.execute(PostgresStatement("COPY (SELECT 1) TO STDOUT"), until: Self.soon)
        }
        guard case .unexpectedResult = error else {
            Issue.record("COPY was accepted")
            return
        }
        let after = await Self.failure {
            _ = try await connection.execute(PostgresStatement("SELECT 1"), until: Self.soon)
        }
        #expect(after == .closed)
    }

    // H058
    @Test func `no error shows a value or SQL`() async throws {
        let connection = try await Self.connect()
        let error = await Self.failure {
            _ = try await connection.execute(
                PostgresStatement("SELECT $1::text::bigint"), [.text("hunter2")], until: Self.soon)
        }
        let shown = "\(error!) \(String(reflecting: error!))"
        #expect(!shown.contains("hunter2"))
        #expect(!shown.contains("SELECT"))
        #expect("\(PostgresValue.text("hunter2"))" == "an SQL value")
        await connection.close()
    }

    // MARK: Prepared statements

    @Test func `a prepared statement is prepared once and used again`() async throws {
        let connection = try await Self.connect()
        let statement = PostgresStatement("SELECT $1 + 1", isPrepared: true)
        for value in Int64(0)..<3 {
            let result = try await connection.execute(statement, [.integer(value)], until: Self.soon)
            #expect(try result.first?.integer(0) == value + 1)
        }
        let count = try await connection.execute(
            PostgresStatement("SELECT count(*) FROM pg_prepared_statements"), until: Self.soon)
        #expect(try count.first?.integer(0) == 1)
        await connection.close()
    }

    @Test func `behind a pooler nothing is prepared under a name`() async throws {
        let connection = try await Self.connect { $0.usesPooler = true }
        let statement = PostgresStatement("SELECT $1 + 1", isPrepared: true)
        let result = try await connection.execute(statement, [.integer(1)], until: Self.soon)
        #expect(try result.first?.integer(0) == 2)
        let count = try await connection.execute(
            PostgresStatement("SELECT count(*) FROM pg_prepared_statements"), until: Self.soon)
        #expect(try count.first?.integer(0) == 0)
        await connection.close()
    }

    @Test func `a prepared statement that has vanished is run all the same`() async throws {
        let connection = try await Self.connect()
        let statement = PostgresStatement("SELECT $1 + 1", isPrepared: true)
        _ = try await connection.execute(statement, [.integer(1)], until: Self.soon)
        _ = try await connection.execute(PostgresStatement("DEALLOCATE ALL"), until: Self.soon)
        let result = try await connection.execute(statement, [.integer(2)], until: Self.soon)
        #expect(try result.first?.integer(0) == 3)
        await connection.close()
    }

    @Test func `a name never means another client's statement`() async throws {
        // As behind a pooler: a session with prepared statements of another client.
        let connection = try await Self.connect()
        let statement = PostgresStatement("SELECT $1 + 1", isPrepared: true)
        _ = try await connection.execute(statement, [.integer(1)], until: Self.soon)
        _ = try await connection.execute(PostgresStatement("DEALLOCATE ALL"), until: Self.soon)
        let other = PostgresStatement("SELECT $1 + 2", isPrepared: true)
        let prepared = try await connection.execute(other, [.integer(1)], until: Self.soon)
        #expect(try prepared.first?.integer(0) == 3)
        let result = try await connection.execute(statement, [.integer(1)], until: Self.soon)
        #expect(try result.first?.integer(0) == 2)
        await connection.close()
    }

    @Test func `in a transaction a vanished statement is the transaction's error, once`() async throws {
        let connection = try await Self.connect()
        let statement = PostgresStatement("SELECT $1 + 1", isPrepared: true)
        _ = try await connection.execute(statement, [.integer(1)], until: Self.soon)
        _ = try await connection.execute(PostgresStatement("DEALLOCATE ALL"), until: Self.soon)
        _ = try await connection.execute(PostgresStatement("BEGIN"), until: Self.soon)
        let error = await Self.failure {
            _ = try await connection.execute(statement, [.integer(2)], until: Self.soon)
        }
        #expect(error == .server(sqlstate: "26000"))
        _ = try await connection.execute(PostgresStatement("ROLLBACK"), until: Self.soon)
        _ = try await connection.execute(PostgresStatement("BEGIN"), until: Self.soon)
        let result = try await connection.execute(statement, [.integer(2)], until: Self.soon)
        #expect(try result.first?.integer(0) == 3)
        await connection.close()
    }

    @Test func `a prepared statement survives a change of its table`() async throws {
        let connection = try await Self.connect()
        let statement = PostgresStatement("SELECT * FROM changing", isPrepared: true)
        _ = try await connection.execute(
            PostgresStatement("CREATE TEMPORARY TABLE changing (a text)"), until: Self.soon)
        _ = try await connection.execute(statement, until: Self.soon)
        _ = try await connection.execute(PostgresStatement("ALTER TABLE changing ADD b text"), until: Self.soon)
        #expect(try await connection.execute(statement, until: Self.soon).rowCount == 0)
        await connection.close()
    }

    // MARK: Deadlines and ends

    @Test func `after a deadline the connection is closed`() async throws {
        let connection = try await Self.connect()
        let start = MonotonicInstant.now
        let error = await Self.failure {
            _ = try await connection.execute(
                PostgresStatement("SELECT pg_sleep(60)"), until: .after(.milliseconds(100)))
        }
        #expect(error == .timedOut)
        #expect(start.duration(to: .now) < .seconds(10))
        let after = await Self.failure {
            _ = try await connection.execute(PostgresStatement("SELECT 1"), until: Self.soon)
        }
        #expect(after == .closed)
    }

    @Test func `after a cancellation the connection is closed`() async throws {
        let connection = try await Self.connect()
        let task = Task {
            await Self.failure {
                _ = try await connection.execute(PostgresStatement("SELECT pg_sleep(60)"), until: Self.soon)
            }
        }
        task.cancel()
        #expect(await task.value == .cancelled)
        let after = await Self.failure {
            _ = try await connection.execute(PostgresStatement("SELECT 1"), until: Self.soon)
        }
        #expect(after == .closed)
    }

    @Test func `the server ends a statement that runs too long by itself`() async throws {
        let connection = try await Self.connect { $0.statementTimeout = .milliseconds(50) }
        let error = await Self.failure {
            _ = try await connection.execute(PostgresStatement("SELECT pg_sleep(60)"), until: Self.soon)
        }
        #expect(error == .server(sqlstate: "57014"))
        await connection.close()
    }

    @Test func `a session that is ended under a statement is an error with the server's reason`() async throws {
        let victim = try await Self.connect()
        let killer = try await Self.connect()
        let id = try await victim.execute(PostgresStatement("SELECT pg_backend_pid()"), until: Self.soon)
        let process = try #require(try id.first?.integer(0))
        async let error = Self.failure {
            _ = try await victim.execute(PostgresStatement("SELECT pg_sleep(60)"), until: Self.soon)
        }
        // Waits until the statement runs.
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
        await killer.close()
    }

    // MARK: Connecting

    @Test func `a wrong password is refused with its SQLSTATE and not shown`() async throws {
        let error = await Self.failure { _ = try await Self.connect(password: "hunter2") }
        guard case .connectionFailed(let sqlstate, _) = error else {
            Issue.record("connected")
            return
        }
        #expect(sqlstate == "28P01")
        #expect(!String(reflecting: error!).contains("hunter2"))
        #expect(String(reflecting: error!).contains("(SQLSTATE 28P01), the password is wrong: "))
    }

    @Test func `an unknown database is refused with its SQLSTATE`() async throws {
        let server = try await PostgresServer.shared.value
        let error = await Self.failure {
            _ = try await PostgresServer.connect(PostgresServer.configuration(server.uri(database: "absent")))
        }
        #expect(error?.sqlstate == "3D000")
    }

    @Test func `a port without a server is refused at once`() async throws {
        let server = try await PostgresServer.shared.value
        let uri = server.uri(database: "postgres", port: try PostgresServer.freePort())
        let start = MonotonicInstant.now
        let error = await Self.failure { _ = try await PostgresServer.connect(PostgresServer.configuration(uri)) }
        guard case .connectionFailed(nil, _) = error else {
            Issue.record("connected")
            return
        }
        #expect(start.duration(to: .now) < .seconds(20))
    }

    @Test func `a server that never answers meets the connect deadline`() async throws {
        let server = try await PostgresServer.shared.value
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        await relay.set(.swallow)
        let relayPort = relay.port
        var configuration = try PostgresServer.configuration(server.uri(database: "postgres", port: relayPort))
        configuration.connectTimeout = .milliseconds(200)
        let silent = configuration
        let error = await Self.failure { _ = try await PostgresServer.connect(silent) }
        #expect(error == .connectionFailed(sqlstate: nil, detail: "no answer in time"))
        await relay.close()
    }

    @Test func `a Unix-domain socket is used without a look-up`() async throws {
        let server = try await PostgresServer.shared.value
        let connection = try await PostgresServer.connect(
            PostgresServer.configuration(
                "host=\(server.socketDirectory) port=\(server.port) user=postgres dbname=postgres"))
        let result = try await connection.execute(
            PostgresStatement("SELECT inet_server_addr() IS NULL"), until: Self.soon)
        #expect(try result.first?.boolean(0) == true)
        await connection.close()
    }

    @Test func `a name is looked up, and each of its addresses tried`() async throws {
        let server = try await PostgresServer.shared.value
        let connection = try await PostgresServer.connect(
            PostgresServer.configuration(
                "host=localhost port=\(server.port) user=postgres password=\(PostgresServer.password) dbname=postgres "
                    + "sslmode=disable"))
        _ = try await connection.execute(PostgresStatement("SELECT 1"), until: Self.soon)
        await connection.close()
    }

    @Test func `a name that does not exist is an error that names it to operators only`() async throws {
        let error = await Self.failure {
            _ = try await PostgresServer.connect(PostgresServer.configuration("host=absent.invalid user=postgres"))
        }
        guard case .connectionFailed = error else {
            Issue.record("connected")
            return
        }
        #expect(!"\(error!)".contains("absent.invalid"))
        #expect(String(reflecting: error!).contains("absent.invalid"))
    }

    @Test func `the next host is tried when the first is unknown, silent, down or read-only`() async throws {
        let server = try await PostgresServer.shared.value
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        await relay.set(.swallow)
        let relayPort = relay.port
        let closed = try PostgresServer.freePort()
        var configuration = try PostgresServer.configuration(
            "host=absent.invalid,127.0.0.1,127.0.0.1,localhost port=1,\(relayPort),\(closed),\(server.port) "
                + "user=postgres password=\(PostgresServer.password) dbname=postgres sslmode=disable")
        configuration.connectTimeout = .seconds(12)
        let connection = try await PostgresServer.connect(configuration)
        await connection.close()
        await relay.close()

        let readOnly = "-cdefault_transaction_read_only%3Don"
        let error = await Self.failure {
            _ = try await PostgresServer.connect(
                PostgresServer.configuration(
                    "postgresql://postgres:\(PostgresServer.password)@127.0.0.1:\(server.port),127.0.0.1:\(closed)/"
                        + "postgres?sslmode=disable&options=\(readOnly)"))
        }
        guard case .connectionFailed = error else {
            Issue.record("a read-only server was accepted")
            return
        }
    }

    @Test func `a silent host holds up one connection for its share, and the next one begins at the other host`()
        async throws
    {
        let server = try await PostgresServer.shared.value
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        await relay.set(.swallow)
        let relayPort = relay.port
        var configuration = try PostgresServer.configuration(
            "host=127.0.0.1,127.0.0.1 port=\(relayPort),\(server.port) "
                + "user=postgres password=\(PostgresServer.password) dbname=postgres sslmode=disable")
        configuration.connectTimeout = .seconds(60)
        configuration.hostTimeout = .seconds(1)
        var start = MonotonicInstant.now
        await (try PostgresServer.connect(configuration)).close()
        #expect((Duration.seconds(1) ..< .seconds(20)).contains(start.duration(to: .now)))
        start = .now
        await (try PostgresServer.connect(configuration)).close()
        #expect(start.duration(to: .now) < .seconds(1))
        await relay.close()
    }

    @Test func `a refused password does not lead to the next host`() async throws {
        let server = try await PostgresServer.shared.value
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        let relayPort = relay.port
        let error = await Self.failure {
            _ = try await PostgresServer.connect(
                PostgresServer.configuration(
                    "host=127.0.0.1,127.0.0.1 port=\(server.port),\(relayPort) user=postgres password=wrong "
                        + "dbname=postgres sslmode=disable"))
        }
        #expect(error?.sqlstate == "28P01")
        #expect(await relay.accepted == 0)
        await relay.close()
    }

    // MARK: TLS

    @Test func `a certificate of the right authority for the right host is accepted`() async throws {
        let server = try await PostgresServer.shared.value
        let connection = try await PostgresServer.connect(
            PostgresServer.configuration(
                "host=localhost port=\(server.port) user=postgres password=\(PostgresServer.password) dbname=postgres "
                    + "sslmode=verify-full sslrootcert=\(server.authority)"))
        let value = (0..<300_000).map { UInt8(truncatingIfNeeded: $0) }
        let result = try await connection.execute(
            PostgresStatement("SELECT $1::bytea, ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"),
            [.bytes(value)], until: Self.soon)
        #expect(try result.first?.bytes(0) == value)
        #expect(try result.first?.boolean(1) == true)
        await connection.close()
    }

    // H069
    @Test func `a certificate for another host is refused`() async throws {
        let server = try await PostgresServer.shared.value
        let error = await Self.failure {
            _ = try await PostgresServer.connect(
                PostgresServer.configuration(
                    "host=database.example hostaddr=127.0.0.1 port=\(server.port) user=postgres "
                        + "password=\(PostgresServer.password) sslmode=verify-full sslrootcert=\(server.authority)"))
        }
        guard case .connectionFailed(nil, let detail) = error else {
            Issue.record("connected")
            return
        }
        #expect(detail.contains("database.example"))
    }

    // H069
    @Test func `a certificate of another authority is refused`() async throws {
        let server = try await PostgresServer.shared.value
        let error = await Self.failure {
            _ = try await PostgresServer.connect(
                PostgresServer.configuration(
                    "host=localhost port=\(server.port) user=postgres password=\(PostgresServer.password) "
                        + "sslmode=verify-full sslrootcert=\(server.otherAuthority)"))
        }
        guard case .connectionFailed(nil, _) = error else {
            Issue.record("connected")
            return
        }
    }
}
