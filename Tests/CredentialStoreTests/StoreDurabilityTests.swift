import BrokerTesting
import OAuth
import Postgres
import Reactor
import Synchronization
import Testing

@testable import CredentialStore

/// A server that acknowledges commits before they are on its disk forgets them when it crashes.
@Suite struct `The commits of a store in PostgreSQL` {
    private static let alpha = TenantName("alpha")!
    private static let tenant = StoredRecord(id: RecordID(.tenant, alpha), version: 1, sealed: [0])

    private static func record(_ key: String, version: Int64 = 1) -> StoredRecord {
        StoredRecord(id: RecordID(.credentials, alpha, key: key), version: version, sealed: [1])
    }

    /// One commit for each way in which commits are made: one statement, a transaction in one round trip, one in two,
    /// a lease, entries of the log alone.
    private static func commitAll(to store: PostgresRecordStore) async throws {
        let entry = StoredLogEntry(tenant: alpha, key: "k", version: 1, time: Timestamp(seconds: 1), sealed: [2])
        try await store.commit([.insert(tenant)])
        try await store.commit([.require(tenant.id), .insert(record("a")), .append(entry)])
        try await store.commit([.replace(record("a", version: 2), version: 1), .insert(record("b"))])
        try await store.commit([
            .claim(record("a").id, version: 2, holder: "h", replacing: nil, for: .seconds(60))
        ])
        try await store.commit([.append(entry)])
    }

    /// Has the server note, at the end of each transaction that changes records or events, what that ends with.
    private static let watch = [
        "CREATE TABLE noted (value text)",
        """
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO noted VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$
        """,
        """
        CREATE CONSTRAINT TRIGGER noting AFTER INSERT OR UPDATE OR DELETE ON token_broker_records
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()
        """,
        """
        CREATE CONSTRAINT TRIGGER noting AFTER INSERT ON token_broker_events
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()
        """,
    ]

    enum Way: String, CaseIterable {
        case direct
        case withoutNotices
        case pooler
    }

    @Test(arguments: [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply"), ("on", "on")], Way.allCases)
    func `outlive a crash where synchronous_commit is off, and keep a value that was chosen`(
        values: (set: String, found: String), way: Way
    ) async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let uri = server.uri(database: database)
        let direct = try PostgresServer.configuration(uri)
        let bouncer = way == .pooler ? try await PgBouncerServer.start(before: server) : nil
        let configuration = try bouncer?.configuration(database: database) ?? direct
        let preparing = try await PostgresRecordStore.open(
            direct, on: PostgresServer.loop, resolver: PostgresServer.resolver)
        await preparing.close()
        let pool = PostgresServer.pool(direct)
        for statement in Self.watch {
            _ = try await pool.execute(PostgresStatement(trusted: statement), until: .after(.seconds(30)))
        }
        // Also sessions that are open already, as when an operator reloads the server's configuration.
        let found = Mutex<[DurabilityFlaw]>([])
        let store = try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver,
            listening: way == .withoutNotices ? .off : .automatic,
            reportFlaw: { flaw in found.withLock { $0.append(flaw) } })
        #expect(found.withLock { !$0.contains(.synchronousCommit) })
        _ = try await server.run("ALTER DATABASE \(database) SET synchronous_commit = \(values.set)")
        let later = try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver,
            listening: way == .withoutNotices ? .off : .automatic,
            reportFlaw: { flaw in found.withLock { $0.append(flaw) } })
        // A pooler goes on with its sessions of before.
        if let bouncer {
            await later.close()
            await store.close()
            await bouncer.stop()
            let again = try await PgBouncerServer.start(before: server)
            let next = try await PostgresRecordStore.open(
                again.configuration(database: database), on: PostgresServer.loop, resolver: PostgresServer.resolver,
                reportFlaw: { flaw in found.withLock { $0.append(flaw) } })
            try await Self.commitAll(to: next)
            await next.close()
            await again.stop()
        } else {
            try await Self.commitAll(to: later)
            await later.close()
            await store.close()
        }
        let rows = try await pool.execute(
            PostgresStatement("SELECT DISTINCT value FROM noted"), until: .after(.seconds(30)))
        #expect(try rows.rows.map { try $0.text(0) } == [values.found])
        #expect(found.withLock { $0.contains(.synchronousCommit) } == (values.set == "off"))
        await pool.close()
    }

    @Test func `are said to be lost in a crash of a server that does not write, and in tables that it empties`()
        async throws
    {
        let careful = try await PostgresServer(settings: ["fsync = on"])
        let careless = try await PostgresServer(settings: ["fsync = off", "full_page_writes = off"])
        let found = Mutex<Set<DurabilityFlaw>>([])
        for server in [careful, careless] {
            let configuration = try PostgresServer.configuration(server.uri(database: "postgres"))
            let store = try await PostgresRecordStore.open(
                configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver,
                reportFlaw: { flaw in found.withLock { _ = $0.insert(flaw) } })
            if server === careful {
                #expect(found.withLock { $0 } == [])
                #expect(try await store.durabilityFlaws() == [])
            }
            _ = try await server.run("ALTER TABLE token_broker_events SET UNLOGGED")
            let unlogged = DurabilityFlaw.unlogged(table: "token_broker_events")
            #expect(
                try await store.durabilityFlaws()
                    == (server === careful ? [unlogged] : [.fsync, .fullPageWrites, unlogged]))
            await store.close()
        }
        #expect(found.withLock { $0 } == [.fsync, .fullPageWrites])
        try await careful.stop(.immediate)
        try await careless.stop(.immediate)
    }
}
