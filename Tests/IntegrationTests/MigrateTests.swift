import BrokerTesting
import HTTPCodec
import Postgres
import Reactor
import Testing

/// `token-broker migrate`, and `serve` with a role that may not change the schema.
@Suite(.timeLimit(.minutes(3)))
struct `Migrating the schema` {
    private let password = PostgresServer.password

    /// A database with an owner, and a role that may read and write the owner's tables and make none.
    private func makeDatabase(_ server: PostgresServer) async throws -> (owner: String, broker: String) {
        let name = try await server.makeDatabase()
        let pool = PostgresServer.pool(try PostgresServer.configuration(server.uri(database: name)))
        let (owner, broker) = ("\(name)_owner", "\(name)_broker")
        for statement in [
            "CREATE ROLE \(owner) LOGIN PASSWORD '\(password)'", "CREATE ROLE \(broker) LOGIN PASSWORD '\(password)'",
            "ALTER DATABASE \(name) OWNER TO \(owner)",
            """
            ALTER DEFAULT PRIVILEGES FOR ROLE \(owner)
            GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO \(broker)
            """,
        ] {
            _ = try await pool.execute(PostgresStatement(trusted: statement), until: .after(.seconds(30)))
        }
        await pool.close()
        return (server.uri(database: name, user: owner), server.uri(database: name, user: broker))
    }

    /// Runs the program to its end, with no variable but those of a migration; both its outputs.
    private func run(
        _ command: String, _ database: String, _ variables: [String: String] = [:]
    ) async throws -> (status: Int32, output: String) {
        try await BrokerProcess.run([command], variables.merging(["DATABASE_URL": database]) { given, _ in given })
    }

    @Test func `the owner migrates, and a role that may change nothing of the schema serves`() async throws {
        let (owner, broker) = try await makeDatabase(try await PostgresServer.shared.value)
        let keys = ["MIGRATE": "false", "MASTER_KEYS": BrokerHarness.masterKeys]
        let variables = keys.merging(["ADMIN_KEY": BrokerHarness.adminKey]) { given, _ in given }

        let early = try await run("serve", broker, variables)
        #expect(early.status == 1)
        #expect(early.output.contains("the schema has version 0, this build needs "), "\(early.output)")
        #expect(early.output.contains("run token-broker migrate"), "\(early.output)")

        for _ in 0..<2 {
            let migration = try await run("migrate", owner)
            #expect(migration.status == 0, "\(migration.output)")
            #expect(migration.output.contains(#""event":"schema_up_to_date""#), "\(migration.output)")
        }

        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(
            port: port, keys.merging(["DATABASE_URL": broker]) { given, _ in given })
        let client = try BrokerClient(port: port)
        #expect(try await client.call(.put, "/tenants/t1", body: #"{"client_id": "c1"}"#).status == 201)
        #expect(try await client.call(.get, "/tenants/t1").status == 200)
        #expect(try await client.call(.get, "/readyz", key: nil).status == 200)
        #expect(await process.terminate() == 0)
    }

    @Test func `several at once all end well`() async throws {
        let (owner, _) = try await makeDatabase(try await PostgresServer.shared.value)
        try await withThrowingTaskGroup(of: (status: Int32, output: String).self) { group in
            for _ in 0..<4 { group.addTask { try await run("migrate", owner) } }
            for try await migration in group { #expect(migration.status == 0, "\(migration.output)") }
        }
    }

    @Test func `a role that may make no tables is told what it lacks, at once`() async throws {
        let (_, broker) = try await makeDatabase(try await PostgresServer.shared.value)
        let migration = try await run("migrate", broker)
        #expect(migration.status == 1)
        #expect(migration.output.contains("the role's privileges"), "\(migration.output)")
        #expect(migration.output.contains("SQLSTATE 42501"), "\(migration.output)")
        #expect(!migration.output.contains(password))
    }

    @Test func `a database that starts is waited for`() async throws {
        let server = try await PostgresServer()
        let (owner, _) = try await makeDatabase(server)
        try await server.stop(.fast)
        let process = try await BrokerProcess.start(command: ["migrate"], ["DATABASE_URL": owner])
        _ = try await process.line { $0.contains(#""event":"store_failed""#) }
        try await server.start()
        #expect(await process.exitStatus() == 0, "\(process.lines)")
        #expect(process.lines.last?.contains(#""event":"schema_up_to_date""#) == true)
    }

    @Test func `a signal ends the wait for a database`() async throws {
        let port = try PostgresServer.freePort()
        let process = try await BrokerProcess.start(
            command: ["migrate"], ["DATABASE_URL": "postgresql://nobody@127.0.0.1:\(port)/none"])
        _ = try await process.line { $0.contains(#""event":"store_failed""#) }
        #expect(await process.terminate() == 130)
    }

    @Test func `without a database there is nothing to migrate, and that is told as a fault`() async throws {
        let migration = try await run("migrate", "")
        #expect(migration.status == 78)
        #expect(migration.output.contains("TOKEN_BROKER_DATABASE_URL is required to migrate"), "\(migration.output)")
    }
}
