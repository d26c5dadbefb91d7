import BrokerTesting
import OAuth
import Postgres
import Reactor
import Synchronization
import Testing

@testable import CredentialStore

/// What the store's sessions may do, and what operators are told where that is not enough.
@Suite(.timeLimit(.minutes(2))) struct `Sessions of the PostgreSQL store` {
    private static let record = StoredRecord(
        id: RecordID(.credentials, TenantName("alpha")!, key: "default"), version: 1, sealed: [1])

    private static func failure(_ body: () async throws -> Void) async -> StoreError? {
        do {
            try await body()
            return nil
        } catch {
            return error as? StoreError
        }
    }

    private final class Reports: Sendable {
        private let errors = Mutex<[PostgresError]>([])

        func note(_ error: PostgresError) { errors.withLock { $0.append(error) } }

        var last: String { errors.withLock { $0.last.map { String(reflecting: $0) } ?? "" } }
    }

    private static func open(
        _ configuration: PostgresConfiguration, migrates: Bool = true, _ reports: Reports = Reports()
    ) async throws -> PostgresRecordStore {
        try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver, migrates: migrates,
            report: { reports.note($0) })
    }

    /// A database with the tables, and a role that may use them.
    private static func withRole(
        _ body: (_ store: PostgresRecordStore, _ role: String, Reports, _ run: (String) async throws -> Void)
            async throws -> Void
    ) async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let owner = try await PostgresServer.connect(PostgresServer.configuration(server.uri(database: database)))
        func run(_ text: String) async throws {
            _ = try await owner.execute(PostgresStatement(trusted: text), until: .after(.seconds(20)))
        }
        try await open(PostgresServer.configuration(server.uri(database: database))).close()
        let role = "role_\(database)"
        try await run("CREATE ROLE \(role) LOGIN PASSWORD 'plain'")
        try await run("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO \(role)")
        let reports = Reports()
        let store = try await open(
            PostgresServer.configuration(server.uri(database: database, user: role, password: "plain")),
            migrates: false, reports)
        try await body(store, role, reports, run)
        await store.close()
        await owner.close()
    }

    @Test(arguments: [
        ("SELECT, DELETE", "token_broker_records"), ("INSERT", "token_broker_records"),
        ("SELECT", "token_broker_events"),
        ("UPDATE", "token_broker_log"), ("SELECT", "token_broker_schema"),
    ])
    func `without a privilege the store is away until it is back, and operators are told what to grant`(
        privileges: String, table: String
    ) async throws {
        try await Self.withRole { store, role, reports, run in
            try await store.check()
            try await store.commit([.insert(Self.record)])
            try await run("REVOKE \(privileges) ON \(table) FROM \(role)")
            #expect(await Self.failure { try await store.check() } == .unavailable)
            #expect(reports.last.contains("GRANT \(privileges) ON \(table) TO \(role)"), "\(reports.last)")
            if table == "token_broker_records", privileges != "INSERT" {
                #expect(await Self.failure { _ = try await store.read(Self.record.id) } == .unavailable)
            }
            if table == "token_broker_events" {
                #expect(
                    await Self.failure { _ = try await store.entries(after: 0, tenant: nil, limit: 1) } == .unavailable)
            }
            try await run("GRANT \(privileges) ON \(table) TO \(role)")
            try await store.check()
            #expect(try await store.read(Self.record.id) == Self.record)
        }
    }

    @Test func `without its schema the store is away until it is back`() async throws {
        try await Self.withRole { store, role, reports, run in
            try await store.commit([.insert(Self.record)])
            try await run("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
            #expect(await Self.failure { _ = try await store.read(Self.record.id) } == .unavailable)
            #expect(await Self.failure { try await store.check() } == .unavailable)
            #expect(reports.last.contains("GRANT USAGE ON SCHEMA"), "\(reports.last)")
            try await run("GRANT USAGE ON SCHEMA public TO \(role)")
            try await store.check()
            #expect(try await store.read(Self.record.id) == Self.record)
        }
    }

    @Test func `the audit log's table needs its privileges once it is used`() async throws {
        try await Self.withRole { store, role, reports, run in
            try await run("REVOKE ALL ON token_broker_audit FROM \(role)")
            try await store.check()
            let block = AuditBlock(
                chain: "a", first: 1, last: 1, time: Timestamp(seconds: 1), body: [120], hash: [1], signature: nil)
            #expect(
                await Self.failure { try await store.commit([.insert(Self.record), .audit(block)]) } == .unavailable)
            #expect(await Self.failure { try await store.check() } == .unavailable)
            #expect(reports.last.contains("GRANT SELECT, INSERT ON token_broker_audit TO \(role)"), "\(reports.last)")
        }
    }

    // H084
    @Test func `a session of a pooler that leads to a standby is not used`() async throws {
        let primary = try await PostgresServer()
        let replica = try await PostgresServer(replicaOf: primary)
        try await Self.open(PostgresServer.configuration(primary.uri(database: "postgres"))).close()
        try await replica.catchUp(with: primary)
        let pooler = try await PgBouncerServer.start(before: replica)
        let reports = Reports()
        let configuration = try pooler.configuration(database: "postgres")
        #expect(await Self.failure { try await Self.open(configuration, reports).close() } == .unavailable)
        #expect(reports.last.contains("25006") && reports.last.contains("standby"), "\(reports.last)")
        try await primary.stop(.immediate)
        try await replica.promote()
        let store = try await Self.open(configuration)
        try await store.commit([.insert(Self.record)])
        await store.close()
        await pooler.stop()
        try await replica.stop(.immediate)
    }

    @Test func `a pooler that nothing tells of is named with its variable`() async throws {
        let server = try await PostgresServer.shared.value
        let pooler = try await PgBouncerServer.start(before: server)
        let reports = Reports()
        let configuration = try PostgresServer.configuration(pooler.uri(database: "postgres"))
        #expect(await Self.failure { try await Self.open(configuration, reports).close() } == .unavailable)
        #expect(reports.last.contains("TOKEN_BROKER_DATABASE_POOLER=true"), "\(reports.last)")
        await pooler.stop()
    }

    @Test(arguments: [false, true]) func `every query is marked for pgpool, which must not balance it`(
        isPrepared: Bool
    ) async throws {
        let server = try await PostgresServer.shared.value
        let connection = try await PostgresServer.connect(
            PostgresServer.configuration(server.uri(database: "postgres")))
        for text in ["SELECT current_query()", "WITH a AS (SELECT 1) SELECT current_query() FROM a"] {
            let statement = PostgresStatement(trusted: text, isPrepared: isPrepared)
            for _ in 0..<2 {
                let query = try await connection.execute(statement, until: .after(.seconds(20))).first?.text(0)
                #expect(query?.hasPrefix("/*NO LOAD BALANCE*/") == true, "\(query ?? "")")
            }
        }
        await connection.close()
    }
}
