import BrokerCore
import BrokerTesting
import CredentialStore
import Cryptography
import HTTPCodec
import HTTPSClient
import OAuth
import Postgres
import Reactor
import Synchronization
import Testing
import TokenBroker

/// What becomes of what a provider has granted while PostgreSQL refuses to store it until an operator has put that right.
@Suite struct `Commits that PostgreSQL refuses` {
    /// What refuses the commits of grants, and what ends that.
    struct Fault: Sendable, CustomTestStringConvertible {
        let sqlstate: String
        let begin: String
        let end: String

        var testDescription: String { sqlstate }

        static let all = [
            Fault(
                sqlstate: "42501", begin: "REVOKE INSERT ON token_broker_events FROM ITS_ROLE",
                end: "GRANT INSERT ON token_broker_events TO ITS_ROLE"),
            Fault(
                sqlstate: "42P01", begin: "ALTER TABLE token_broker_events RENAME TO elsewhere",
                end: "ALTER TABLE elsewhere RENAME TO token_broker_events"),
            Fault(
                sqlstate: "23514",
                begin: "ALTER TABLE token_broker_events ADD CONSTRAINT extra CHECK (false) NOT VALID",
                end: "ALTER TABLE token_broker_events DROP CONSTRAINT extra"),
        ]
    }

    private static func open(
        _ database: String, user: String = "postgres", _ report: @escaping @Sendable (PostgresError) -> Void = { _ in }
    ) async throws -> PostgresRecordStore {
        let configuration = try await PostgresServer.configuration(
            PostgresServer.shared.value.uri(database: database, user: user))
        return try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver, migrates: user == "postgres",
            report: report)
    }

    private static func run(_ statement: String, in database: String, role: String) async throws {
        let uri = try await PostgresServer.shared.value.uri(database: database)
        let pool = PostgresServer.pool(try PostgresServer.configuration(uri))
        _ = try await pool.execute(
            PostgresStatement(trusted: statement.replacing("ITS_ROLE", with: role)), until: .after(.seconds(30)))
        await pool.close()
    }

    /// A broker whose role owns nothing, and the SQLSTATEs that its database reports.
    private static func withBroker(
        _ body: (BrokerHarness, _ run: @escaping @Sendable (String) async throws -> Void, _ reported: () -> Set<String>)
            async throws -> Void
    ) async throws {
        let database = try await PostgresServer.shared.value.makeDatabase()
        await (try open(database)).close()
        let role = "\(database)_broker"
        try await run("CREATE ROLE \(role) LOGIN PASSWORD '\(PostgresServer.password)'", in: database, role: role)
        try await run("GRANT ALL ON ALL TABLES IN SCHEMA public TO ITS_ROLE", in: database, role: role)
        let reported = Mutex<Set<String>>([])
        let store = try await open(database, user: role) { error in
            if let sqlstate = error.sqlstate { reported.withLock { _ = $0.insert(sqlstate) } }
        }
        let time = ManualTime()
        // The database refuses claims that have come too late by its own clock.
        time.moveClock(by: time.now.duration(to: SystemTime().now))
        let broker = try await BrokerHarness(store: store, time: time)
        await broker.makeTenant()
        let operate: @Sendable (String) async throws -> Void = { try await run($0, in: database, role: role) }
        let states = { reported.withLock { $0 } }
        try await body(broker, operate, states)
        await broker.broker.core.finish()
        await store.close()
    }

    // H077
    @Test(arguments: Fault.all)
    func `a refreshed token is kept until the store takes it, and callers get 503 meanwhile`(fault: Fault) async throws
    {
        try await Self.withBroker { broker, run, reported in
            await broker.set("a1", refresh: "r1", lifetime: .zero)
            broker.transport.enqueue(
                .forward { _ in
                    try? await run(fault.begin)
                    return ClientResponse(
                        status: .ok, fields: Fields(), body: Array(BrokerHarness.token("a2", refresh: "r2").utf8))
                })
            for _ in 0..<2 {
                let refused = await broker.get()
                #expect((refused.status, refused.code) == (503, "storage_unavailable"), "\(refused.text)")
                #expect((refused.retryAfter ?? 0) >= 1)
            }
            #expect(reported().contains(fault.sqlstate))
            try await run(fault.end)
            #expect(await broker.get().token == "a2")
            #expect(broker.transport.seen.count == 1)
            let next = try await BrokerHarness(store: broker.store, time: broker.time)
            next.transport.enqueue(.json(200, BrokerHarness.token("a3", refresh: "r3")))
            #expect(await next.get("policy=local_force_refresh").token == "a3")
            #expect(next.transport.seen.last?.form["refresh_token"] == "r2")
        }
    }

    // H077
    @Test(arguments: Fault.all)
    func `the token of a login is kept until the store takes it, and the login completes then`(fault: Fault)
        async throws
    {
        try await Self.withBroker { broker, run, reported in
            let login = await broker.beginLogin()
            broker.transport.enqueue(
                .forward { _ in
                    try? await run(fault.begin)
                    return ClientResponse(
                        status: .ok, fields: Fields(), body: Array(BrokerHarness.token("a1", refresh: "r1").utf8))
                })
            let waits = await broker.callback("code=c&state=\(login.state)", accept: "application/json")
            #expect((waits.status, waits.code) == (503, "storage_unavailable"), "\(waits.text)")
            #expect(reported().contains(fault.sqlstate))
            #expect(await broker.progress(login.id).json["status"]?.text == "pending")
            try await run(fault.end)
            while await broker.progress(login.id).json["status"]?.text == "pending" { await Task.yield() }
            #expect(await broker.progress(login.id).json["status"]?.text == "completed")
            #expect(await broker.get().token == "a1")
        }
    }
}
