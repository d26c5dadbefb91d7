import BrokerTesting
import OAuth
import Postgres
import Reactor
import Testing

@testable import CredentialStore

/// What the contract of stores does not show of entries that are too many in PostgreSQL.
@Suite struct `Too many entries in PostgreSQL` {
    private let configuration: PostgresConfiguration

    init() async throws {
        let server = try await PostgresServer.shared.value
        configuration = try PostgresServer.configuration(server.uri(database: try await server.makeDatabase()))
    }

    private func open() async throws -> PostgresRecordStore {
        try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver)
    }

    /// The number of a tenant's entries, its markers, and its first sequence.
    private struct Held: Equatable {
        let tenant: String
        let count: Int
        let markers: Int
        let first: Int
    }

    private func held(_ pool: PostgresPool) async throws -> [Held] {
        let statement = PostgresStatement(
            """
            SELECT tenant, count(*) FILTER (WHERE sealed <> ''), count(*) FILTER (WHERE sealed = ''), min(sequence)
            FROM token_broker_events GROUP BY tenant ORDER BY tenant
            """)
        return try await pool.execute(statement, until: .after(.seconds(20))).rows.map { row in
            Held(
                tenant: try row.text(0) ?? "", count: Int(try row.integer(1) ?? 0),
                markers: Int(try row.integer(2) ?? 0), first: Int(try row.integer(3) ?? 0))
        }
    }

    /// A log in which every fifth of the entries is of `beta` and the rest of `alpha`.
    private func fill(_ pool: PostgresPool, count: Int) async throws {
        let statements = [
            PostgresStatement(
                trusted: """
                    INSERT INTO token_broker_events (sequence, tenant, key, version, time, sealed)
                    SELECT n, CASE WHEN n % 5 = 0 THEN 'beta' ELSE 'alpha' END, 'k', 1, 1000, '\\x01'
                    FROM generate_series(1, \(count)) AS n
                    """),
            PostgresStatement(trusted: "UPDATE token_broker_log SET last = \(count)"),
        ]
        for statement in statements { _ = try await pool.execute(statement, until: .after(.seconds(20))) }
    }

    @Test(arguments: [1, 2, 7, 79, 80, 81, 1000])
    func `are counted in slices of any length`(slice: Int) async throws {
        let store = try await open()
        let pool = PostgresServer.pool(configuration)
        try await fill(pool, count: 100)
        let database = StoreDatabase(pool: pool, timeout: .seconds(20)) { _ in }
        let thinning = PostgresThinning(database, slice: slice)
        let bounds = LogBounds(trimmed: 0, last: 100)
        #expect(try await thinning.remove(keeping: 100, limit: 1000, of: bounds) == 0)
        #expect(try await thinning.remove(keeping: 61, limit: 1000, of: bounds) == 39)
        #expect(
            try await held(pool) == [
                Held(tenant: "alpha", count: 41, markers: 1, first: 48),
                Held(tenant: "beta", count: 20, markers: 0, first: 5),
            ])
        // The marker is not counted.
        #expect(try await thinning.remove(keeping: 60, limit: 1000, of: bounds) == 1)
        #expect(try await thinning.remove(keeping: 30, limit: 1000, of: bounds) == 30)
        #expect(
            try await held(pool) == [
                Held(tenant: "alpha", count: 15, markers: 1, first: 81),
                Held(tenant: "beta", count: 15, markers: 1, first: 25),
            ])
        await store.close()
        await pool.close()
    }

    @Test func `lose no more when two replicas remove them at once`() async throws {
        let stores = [try await open(), try await open(), try await open()]
        let pool = PostgresServer.pool(configuration)
        try await fill(pool, count: 5000)
        try await withThrowingTaskGroup(of: Void.self) { group in
            for store in stores {
                group.addTask {
                    while try await store.trimLog(before: Timestamp(seconds: 0), keeping: 2500, limit: 100) > 0 {}
                }
            }
            try await group.waitForAll()
        }
        #expect(
            try await held(pool) == [
                Held(tenant: "alpha", count: 1500, markers: 1, first: 3124),
                Held(tenant: "beta", count: 1000, markers: 0, first: 5),
            ])
        for store in stores { await store.close() }
        await pool.close()
    }

    @Test func `are counted once for all pieces, and not again before there can be too many`() async throws {
        let store = try await open()
        let pool = PostgresServer.pool(configuration)
        try await fill(pool, count: 100)
        let thinning = PostgresThinning(StoreDatabase(pool: pool, timeout: .seconds(20)) { _ in })
        let bounds = LogBounds(trimmed: 0, last: 100)
        #expect(try await thinning.remove(keeping: 60, limit: 10, of: bounds) == 10)
        // Another count would find these, and so would remove others.
        let late = PostgresStatement(
            """
            INSERT INTO token_broker_events (sequence, tenant, key, version, time, sealed)
            SELECT n, 'gamma', 'k', 1, 1000, '\\x01' FROM generate_series(101, 110) AS n
            """)
        _ = try await pool.execute(late, until: .after(.seconds(20)))
        #expect(try await thinning.remove(keeping: 60, limit: 30, of: bounds) == 30)
        #expect(try await thinning.remove(keeping: 60, limit: 30, of: bounds) == 0)
        #expect(try await held(pool).map(\.count) == [40, 20, 10])
        let grown = LogBounds(trimmed: 0, last: 110)
        #expect(try await thinning.remove(keeping: 60, limit: 30, of: grown) == 10)
        #expect(try await held(pool).map(\.count) == [30, 20, 10])
        await store.close()
        await pool.close()
    }
}
