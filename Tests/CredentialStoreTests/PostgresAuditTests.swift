import BrokerTesting
import OAuth
import Postgres
import Reactor
import Synchronization
import Testing

@testable import CredentialStore

@Suite struct `PostgreSQL audit log` {
    private static func open(
        _ database: String, user: String = "postgres", port: UInt16? = nil, usesPooler: Bool = false,
        report: @escaping @Sendable (PostgresError) -> Void = { _ in }
    ) async throws -> PostgresRecordStore {
        var configuration = try await PostgresServer.configuration(
            PostgresServer.shared.value.uri(database: database, user: user, port: port))
        configuration.usesPooler = usesPooler
        return try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver, migrates: user == "postgres",
            report: report)
    }

    private static func run(_ statement: String, in database: String, user: String = "postgres") async throws -> String?
    {
        let uri = try await PostgresServer.shared.value.uri(database: database, user: user)
        let pool = PostgresServer.pool(try PostgresServer.configuration(uri))
        var sqlstate: String?
        do throws(PostgresError) {
            _ = try await pool.execute(PostgresStatement(trusted: statement), until: .after(.seconds(30)))
        } catch .server(let state) {
            sqlstate = state
        }
        await pool.close()
        return sqlstate
    }

    /// A database with the schema, and a role that has been granted `privileges` on the audit log.
    private static func database(_ privileges: String) async throws -> (name: String, role: String) {
        let database = try await PostgresServer.shared.value.makeDatabase()
        await (try open(database)).close()
        let role = "\(database)_broker"
        for statement in [
            "CREATE ROLE \(role) LOGIN PASSWORD '\(PostgresServer.password)'",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON token_broker_records, token_broker_events TO \(role)",
            "GRANT SELECT, UPDATE ON token_broker_log TO \(role)", "GRANT SELECT ON token_broker_schema TO \(role)",
            "GRANT \(privileges) ON token_broker_audit TO \(role)",
        ] {
            #expect(try await run(statement, in: database) == nil)
        }
        return (database, role)
    }

    /// What no role may do but the owner, and the owner not by mistake.
    private static let changes = [
        "UPDATE token_broker_audit SET body = ''", "UPDATE token_broker_audit SET hash = hash WHERE chain = 'x'",
        "DELETE FROM token_broker_audit", "DELETE FROM token_broker_audit WHERE chain = 'a-1'",
        "TRUNCATE token_broker_audit",
        "INSERT INTO token_broker_audit SELECT * FROM token_broker_audit ON CONFLICT (chain, first_entry) "
            + "DO UPDATE SET body = ''",
    ]

    // H109
    @Test(arguments: ["INSERT, SELECT", "ALL"])
    func `a role that does not own the table can only insert, whatever it was granted`(privileges: String) async throws
    {
        let (database, role) = try await Self.database(privileges)
        let store = try await Self.open(database, user: role)
        let block = AuditBlock.sample("a-1", 1)
        try await store.commit([.audit(block)])
        for statement in Self.changes {
            #expect(try await Self.run(statement, in: database, user: role) == "42501", "\(statement)")
        }
        let permitted =
            "DO $$ BEGIN SET LOCAL token_broker.removes_audit = 'on'; DELETE FROM token_broker_audit; END $$"
        #expect(try await Self.run(permitted, in: database, user: role) == "42501")
        // A table of the role's own, in place of the one that names the owners of tables.
        let disguised = """
            DO $$ BEGIN
                CREATE TEMPORARY TABLE pg_class (oid oid, relowner oid);
                INSERT INTO pg_temp.pg_class
                    SELECT 'token_broker_audit'::regclass, oid FROM pg_roles WHERE rolname = current_user;
                SET LOCAL token_broker.removes_audit = 'on';
                DELETE FROM token_broker_audit;
            END $$
            """
        #expect(try await Self.run(disguised, in: database, user: role) == "42501")
        await #expect(throws: StoreError.self) { try await store.removeAuditChain("a-1") }
        #expect(try await store.auditBlocks(of: "a-1", after: 0, limit: 9) == [block])
        await store.close()

        for statement in Self.changes {
            #expect(try await Self.run(statement, in: database) == "42501", "\(statement)")
        }
        let owner = try await Self.open(database)
        try await owner.removeAuditChain("a-1")
        #expect(try await owner.allAuditChains() == [])
        await owner.close()
    }

    // H109
    @Test func `a role that may not insert makes no audited change`() async throws {
        let (database, role) = try await Self.database("SELECT")
        let reported = Mutex<[PostgresError]>([])
        let store = try await Self.open(database, user: role) { error in reported.withLock { $0.append(error) } }
        let record = StoredRecord(
            id: RecordID(.credentials, TenantName("alpha")!, key: "k"), version: 1, sealed: [1])
        for changes in [[RecordChange.insert(record)], []] {
            let error = await #expect(throws: StoreError.self) {
                try await store.commit(changes + [.audit(.sample("a-1", 1))])
            }
            #expect(error == .unavailable)
        }
        let text = reported.withLock { $0.last.map { String(reflecting: $0) } } ?? ""
        #expect(text.contains("42501") && text.contains("the role lacks a privilege: grant it"), "\(text)")
        #expect(try await store.read(record.id) == nil)
        await store.close()
    }

    @Test func `a block whose answer was lost is found out to be stored, and one that did not arrive is not`()
        async throws
    {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        // Statements are sent as text, so that the relay can recognize them.
        let store = try await Self.open(database, port: relay.port, usesPooler: true)
        await relay.set(.cutAnswer(to: "INSERT INTO token_broker_audit"))
        try await store.commit([.audit(.sample("a-1", 1))])
        await relay.set(.cutBefore("INSERT INTO token_broker_audit"))
        await #expect(throws: StoreError.unavailable) { try await store.commit([.audit(.sample("a-1", 2))]) }
        #expect(await relay.cuts == 2)
        #expect(try await store.allAuditChains().map(\.end.sequence) == [1])
        await store.close()
        await relay.close()
    }

    @Test func `a chain without its first block is in the list by name`() async throws {
        let connection = try await PostgresServer.shared.value.connectionToNewSchema()
        let store = try await PostgresRecordStore.open(
            try PostgresServer.configuration(connection), on: PostgresServer.loop, resolver: PostgresServer.resolver)
        for block in [AuditBlock.sample("a-1", 1), .sample("b-1", 2), .sample("", 1, time: 9)] {
            try await store.commit([.audit(block)])
        }
        #expect(try await store.allAuditChains(limit: 1).map(\.end.chain) == ["", "a-1", "b-1"])
        #expect(try await store.allAuditChains(.newestFirst, limit: 1).map(\.end.chain) == ["", "a-1"])
        await store.close()
    }

    @Test func `a number that is taken makes the outcome unknown, and changes nothing`() async throws {
        let connection = try await PostgresServer.shared.value.connectionToNewSchema()
        let store = try await PostgresRecordStore.open(
            try PostgresServer.configuration(connection), on: PostgresServer.loop, resolver: PostgresServer.resolver)
        try await store.commit([.audit(.sample("a-1", 1))])
        let record = StoredRecord(
            id: RecordID(.credentials, TenantName("alpha")!, key: "k"), version: 1, sealed: [1])
        for changes in [[RecordChange.insert(record)], []] {
            await #expect(throws: StoreError.unavailable) {
                try await store.commit(changes + [.audit(.sample("a-1", 1, time: 2))])
            }
        }
        #expect(try await store.read(record.id) == nil)
        await store.close()
    }
}
