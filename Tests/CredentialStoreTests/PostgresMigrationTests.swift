import BrokerTesting
import OAuth
import Postgres
import Reactor
import Testing

@testable import CredentialStore

@Suite struct `PostgreSQL migrations` {
    private static var soon: MonotonicInstant { .after(.seconds(60)) }

    private static func pool(_ database: String) async throws -> PostgresPool {
        PostgresServer.pool(try await configuration(database))
    }

    private static func configuration(
        _ database: String, user: String = "postgres", password: String = PostgresServer.password
    ) async throws -> PostgresConfiguration {
        try await PostgresServer.configuration(
            PostgresServer.shared.value.uri(database: database, user: user, password: password))
    }

    private static func open(_ database: String) async throws -> PostgresRecordStore {
        try await PostgresRecordStore.open(
            configuration(database), on: PostgresServer.loop, resolver: PostgresServer.resolver)
    }

    private static func versions(_ pool: PostgresPool) async throws -> [Int64?] {
        try await pool.execute(
            PostgresStatement("SELECT version FROM token_broker_schema ORDER BY version"), until: soon
        ).rows.map { try $0.integer(0) }
    }

    /// Steps of which each fails when it is taken twice.
    private static let steps = (Int64(1)...5).map { version in
        Migration(
            version: version, compatible: 1,
            statements: [PostgresStatement(trusted: "CREATE TABLE step_\(version) (n bigint)")])
    }

    @Test func `the history is numbered from 1 without gaps`() {
        #expect(Migrations.all.map(\.version) == Migrations.all.indices.map { Int64($0) + 1 })
        #expect(Migrations.all.allSatisfy { (1...$0.version).contains($0.compatible) })
    }

    @Test func `are applied once`() async throws {
        let database = try await PostgresServer.shared.value.makeDatabase()
        for _ in 0..<2 {
            let store = try await Self.open(database)
            try await store.check()
            await store.close()
        }
        let pool = try await Self.pool(database)
        #expect(try await Self.versions(pool) == Migrations.all.map(\.version))
        await pool.close()
    }

    @Test func `are applied once by many at the same time`() async throws {
        let database = try await PostgresServer.shared.value.makeDatabase()
        try await withThrowingTaskGroup(of: Migrations.SchemaState.self) { group in
            for _ in 0..<6 {
                group.addTask {
                    let pool = try await Self.pool(database)
                    let state = try await Migrations.apply(Self.steps, through: pool, until: Self.soon)
                    await pool.close()
                    return state
                }
            }
            for try await state in group { #expect(state == .usable) }
        }
        let pool = try await Self.pool(database)
        #expect(try await Self.versions(pool) == [1, 2, 3, 4, 5])
        await pool.close()
    }

    @Test func `go on where an older build stopped`() async throws {
        let pool = try await Self.pool(PostgresServer.shared.value.makeDatabase())
        #expect(try await Migrations.apply(Array(Self.steps.prefix(2)), through: pool, until: Self.soon) == .usable)
        #expect(try await Migrations.apply(Self.steps, through: pool, until: Self.soon) == .usable)
        #expect(try await Self.versions(pool) == [1, 2, 3, 4, 5])
        await pool.close()
    }

    @Test func `a step that fails leaves nothing behind`() async throws {
        let pool = try await Self.pool(PostgresServer.shared.value.makeDatabase())
        let failing = Migration(
            version: 2, compatible: 1,
            statements: [PostgresStatement("CREATE TABLE half (n bigint)"), PostgresStatement("SELECT 1 / 0")])
        await #expect(throws: PostgresError.server(sqlstate: "22012")) {
            try await Migrations.apply([Self.steps[0], failing], through: pool, until: Self.soon)
        }
        #expect(try await Self.versions(pool) == [1])
        let half = try await pool.execute(PostgresStatement("SELECT to_regclass('half') IS NULL"), until: Self.soon)
        #expect(try half.first?.boolean(0) == true)
        await pool.close()
    }

    // H089
    @Test func `a newer schema is used when it says that this build can, and refused otherwise`() async throws {
        let database = try await PostgresServer.shared.value.makeDatabase()
        let store = try await Self.open(database)
        let pool = try await Self.pool(database)
        let known = Int64(Migrations.all.count)
        _ = try await pool.execute(
            Statements.recordMigration, [.integer(known + 1), .integer(known)], until: Self.soon)
        try await store.check()
        let second = try await Self.open(database)
        await second.close()

        _ = try await pool.execute(
            Statements.recordMigration, [.integer(known + 2), .integer(known + 1)], until: Self.soon)
        let refusal = StoreError.damaged(
            "PostgreSQL: the schema has version \(known + 2), this build knows \(known): run a newer build")
        await #expect(throws: refusal) { try await store.check() }
        await #expect(throws: refusal) { _ = try await Self.open(database) }
        #expect(try await Self.versions(pool).last == known + 2)
        await pool.close()
        await store.close()
    }

    @Test func `an up-to-date schema needs a role that can read and write, no more`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let owner = try await Self.open(database)
        await owner.close()
        let pool = try await Self.pool(database)
        let role = "role_\(database)"
        for statement in [
            "CREATE ROLE \(role) LOGIN PASSWORD 'plain'",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON token_broker_records, token_broker_events TO \(role)",
            "GRANT SELECT, UPDATE ON token_broker_log TO \(role)",
            "GRANT SELECT ON token_broker_schema TO \(role)",
        ] {
            _ = try await pool.execute(PostgresStatement(trusted: statement), until: Self.soon)
        }
        let store = try await PostgresRecordStore.open(
            Self.configuration(database, user: role, password: "plain"),
            on: PostgresServer.loop, resolver: PostgresServer.resolver)
        try await store.check()
        let tenant = TenantName("alpha")!
        let record = StoredRecord(id: RecordID(.tenant, tenant), version: 1, sealed: [1], due: Timestamp(seconds: 1))
        let entry = StoredLogEntry(tenant: tenant, key: "k", version: 1, time: Timestamp(seconds: 1), sealed: [1])
        try await store.commit([.insert(record), .append(entry)])
        #expect(try await store.entries(after: 0, tenant: nil, limit: 9).map(\.entry) == [entry])
        #expect(try await store.trimLog(before: .latest, keeping: 0, limit: 9) == 1)
        try await store.commit([.removeAll(tenant)])
        await store.close()
        await pool.close()
    }

    // H089
    @Test func `an older build works beside this one`() async throws {
        let database = try await PostgresServer.shared.value.makeDatabase()
        let pool = try await Self.pool(database)
        let older = Array(Migrations.all.prefix(1))
        #expect(try await Migrations.apply(older, through: pool, until: Self.soon) == .usable)
        // A row as schema version 1 has it.
        func insert(_ key: String) async throws {
            _ = try await pool.execute(
                PostgresStatement(
                    """
                    INSERT INTO token_broker_records (kind, tenant, key, version, sealed, lookup, expires)
                    VALUES ('credentials', 'alpha', $1, 1, '\\x01', NULL, NULL)
                    """), [.text(key)], until: Self.soon)
        }
        try await insert("before")
        let store = try await Self.open(database)
        try await insert("after")
        #expect(try await Migrations.apply(older, through: pool, until: Self.soon) == .usable)
        let expected = ["after", "before"].map { key in
            StoredRecord(id: RecordID(.credentials, TenantName("alpha")!, key: key), version: 1, sealed: [1])
        }
        #expect(try await store.everything() == expected)
        await store.close()
        await pool.close()
    }
}
