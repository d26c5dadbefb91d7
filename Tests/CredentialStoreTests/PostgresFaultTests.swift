import BrokerTesting
import OAuth
import Postgres
import Reactor
import Synchronization
import Testing

@testable import CredentialStore

/// How a store behaves while its database has a fault, and how soon it works again afterwards.
@Suite(.timeLimit(.minutes(3))) struct `PostgreSQL faults` {
    private static let record = StoredRecord(
        id: RecordID(.credentials, TenantName("alpha")!, key: "k"), version: 1, sealed: [1])

    /// A call takes at most its time limit, and as long again to find out its outcome.
    private static let limit: Duration = .seconds(8)
    /// The time from the server's restart to the first write. The aim is 2 s on an idle machine.
    private static let recovery: Duration = .seconds(5)

    private static func configuration(_ uri: String) throws -> PostgresConfiguration {
        var configuration = try PostgresConfiguration(uri)
        configuration.connectTimeout = .seconds(2)
        configuration.waitTimeout = .seconds(2)
        configuration.statementTimeout = .seconds(3)
        return configuration
    }

    private static func open(_ configuration: PostgresConfiguration) async throws -> PostgresRecordStore {
        try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver)
    }

    private static func expectRecovery(_ time: Duration?, _ what: String) {
        guard let time else {
            Issue.record("no recovery: \(what)")
            return
        }
        print("recovery after \(what): \(time)")
        #expect(time < recovery)
    }

    private static func failure(_ body: () async throws -> Void) async -> StoreError? {
        await #expect(throws: StoreError.self) { try await body() }
    }

    @Test func `a server that was killed is used again when it is back`() async throws {
        let server = try await PostgresServer()
        let store = try await Self.open(Self.configuration(server.uri(database: "postgres")))
        let traffic = PostgresTraffic(store, limit: Self.limit)
        for round in 0..<3 {
            #expect(await traffic.time(from: .now, toWrite: true) != nil)
            if round == 2 { try await server.stop(.fast) } else { try await server.kill() }
            #expect(await traffic.time(from: .now, toWrite: false, failing: true) != nil)
            try await server.start()
            Self.expectRecovery(await traffic.time(from: .now, toWrite: true), "a restart")
        }
        await traffic.stop()
        await store.close()
        try await server.stop(.immediate)
    }

    // H084
    @Test func `after a failover the new server is used, and the old one no more`() async throws {
        let primary = try await PostgresServer()
        let replica = try await PostgresServer(replicaOf: primary)
        // The standby must have every acknowledged write.
        _ = try await primary.run("ALTER SYSTEM SET synchronous_standby_names = '*'")
        _ = try await primary.run("SELECT pg_reload_conf()")
        let uri =
            "postgresql://postgres:\(PostgresServer.password)@\(primary.address):\(primary.port),"
            + "\(replica.address):\(replica.port)/postgres?sslmode=disable"
        let store = try await Self.open(Self.configuration(uri))
        let traffic = PostgresTraffic(store, limit: Self.limit)
        #expect(await traffic.time(from: .now, toWrite: true) != nil)
        try await primary.kill()
        #expect(await traffic.time(from: .now, toWrite: false, failing: true) != nil)
        try await replica.promote()
        Self.expectRecovery(await traffic.time(from: .now, toWrite: true), "a failover to another host")
        try await store.check()
        await traffic.stop()
        await store.close()
        try await replica.stop(.immediate)
    }

    // H084
    @Test func `a name that leads elsewhere after a failover is followed, though not to a standby`() async throws {
        let primary = try await PostgresServer()
        let replica = try await PostgresServer(replicaOf: primary)
        let address = Mutex(primary.address)
        let configuration = try Self.configuration(
            "postgresql://postgres:\(PostgresServer.password)@database.example:\(primary.port)/postgres?sslmode=disable"
        )
        let resolver = try NameResolver { _ throws(ResolutionError) in
            [SocketAddress(numericHost: address.withLock { $0 }, port: 0)!.ip]
        }
        let pool = PostgresPool(configuration, on: PostgresServer.loop, resolver: resolver)
        let whoAmI = PostgresStatement("SELECT host(inet_server_addr())")
        #expect(try await pool.execute(whoAmI, until: .after(.seconds(3))).first?.text(0) == primary.address)
        try await primary.kill()
        address.withLock { $0 = replica.address }
        let start = MonotonicInstant.now
        while start.duration(to: .now) < .milliseconds(500) {
            await #expect(throws: PostgresError.self) { _ = try await pool.execute(whoAmI, until: .after(.seconds(3))) }
        }
        try await replica.promote()
        let promoted = MonotonicInstant.now
        var found: String?
        while found == nil, promoted.duration(to: .now) < Self.recovery {
            found = try? await pool.execute(whoAmI, until: .after(.seconds(3))).first?.text(0)
        }
        #expect(found == replica.address)
        print("recovery after a failover behind a name: \(promoted.duration(to: .now))")
        await pool.close()
        try await replica.stop(.immediate)
    }

    // H084
    @Test func `a server that takes no writes for a while is read from, and written to as soon as it takes them`()
        async throws
    {
        let server = try await PostgresServer()
        let store = try await Self.open(Self.configuration(server.uri(database: "postgres")))
        let traffic = PostgresTraffic(store, limit: Self.limit)
        #expect(await traffic.time(from: .now, toWrite: true) != nil)
        try await server.setReadOnly(true)
        #expect(await traffic.time(from: .now, toWrite: true, failing: true) != nil)
        #expect(await traffic.time(from: .now, toWrite: false) != nil)
        #expect(await Self.failure { try await store.check() } == .unavailable)
        try await server.setReadOnly(false)
        Self.expectRecovery(await traffic.time(from: .now, toWrite: true), "a read-only server")
        await traffic.stop()
        try await store.check()
        await store.close()
        try await server.stop(.immediate)
    }

    // H106
    @Test func `a server without room for a connection refuses in time, and lets in as soon as there is room`()
        async throws
    {
        let server = try await PostgresServer(settings: ["max_connections = 12", "superuser_reserved_connections = 0"])
        let configuration = try Self.configuration(server.uri(database: "postgres"))
        let first = try await Self.open(configuration)
        try await first.commit([.insert(Self.record)])
        var hogs: [PostgresConnection] = []
        while let hog = try? await PostgresServer.connect(configuration) { hogs.append(hog) }
        // The borrower of the connection keeps it while other callers wait.
        try await withThrowingTaskGroup(of: StoredRecord?.self) { group in
            for _ in 0..<50 { group.addTask { try await first.read(Self.record.id) } }
            for try await found in group { #expect(found == Self.record) }
        }
        let start = MonotonicInstant.now
        #expect(await Self.failure { _ = try await Self.open(configuration) } == .unavailable)
        #expect(start.duration(to: .now) < Self.limit)
        await first.close()
        for hog in hogs { await hog.close() }
        let second = try await Self.open(configuration)
        #expect(try await second.read(Self.record.id) == Self.record)
        await second.close()
        try await server.stop(.immediate)
    }

    @Test func `a pooler without room refuses in time, and lets in as soon as there is room`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let pooler = try await PgBouncerServer.start(before: server, poolSize: 1, clientLimit: 4, queryWait: 1)
        var configuration = try Self.configuration(pooler.uri(database: database))
        configuration.usesPooler = true
        configuration.maximumConnections = 2
        // The pooler refuses callers that wait for a second, and its first connection to a busy server may take longer.
        let begun = MonotonicInstant.now
        var opened: PostgresRecordStore?
        while opened == nil, begun.duration(to: .now) < .seconds(30) { opened = try? await Self.open(configuration) }
        let store = try #require(opened)
        // A transaction occupies the only connection to the server.
        let hog = try await PostgresServer.connect(configuration)
        _ = try await hog.execute(Statements.begin, until: .after(.seconds(20)))
        _ = try await hog.execute(PostgresStatement("SELECT 1"), until: .after(.seconds(20)))
        let start = MonotonicInstant.now
        #expect(await Self.failure { _ = try await store.read(Self.record.id) } == .unavailable)
        #expect(await Self.failure { try await store.commit([.insert(Self.record)]) } == .unavailable)
        #expect(start.duration(to: .now) < Self.limit * 2)
        _ = try await hog.execute(Statements.rollback, until: .after(.seconds(20)))
        let released = MonotonicInstant.now
        while (try? await store.commit([.insert(Self.record)])) == nil, released.duration(to: .now) < Self.recovery {}
        #expect(try await store.read(Self.record.id) == Self.record)
        // The server has no connection left.
        await store.close()
        var hogs = [hog]
        while hogs.count < 10, let hog = try? await PostgresServer.connect(configuration) { hogs.append(hog) }
        #expect(hogs.count < 10)
        let crowded = configuration
        #expect(await Self.failure { _ = try await Self.open(crowded) } == .unavailable)
        for hog in hogs { await hog.close() }
        let again = try await Self.open(configuration)
        #expect(try await again.read(Self.record.id) == Self.record)
        await again.close()
        await pooler.stop()
    }

    @Test func `a pooler that is restarted is used again`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        let first = try await PgBouncerServer.start(before: server)
        await relay.lead(to: first.port)
        var configuration = try Self.configuration(
            "postgresql://postgres@127.0.0.1:\(relay.port)/\(database)?sslmode=disable")
        configuration.usesPooler = true
        let store = try await Self.open(configuration)
        let traffic = PostgresTraffic(store, limit: Self.limit)
        #expect(await traffic.time(from: .now, toWrite: true) != nil)
        await first.stop()
        #expect(await traffic.time(from: .now, toWrite: false, failing: true) != nil)
        let second = try await PgBouncerServer.start(before: server)
        await relay.lead(to: second.port)
        Self.expectRecovery(await traffic.time(from: .now, toWrite: true), "a pooler's restart")
        await traffic.stop()
        await store.close()
        await second.stop()
        await relay.close()
    }

    // H083
    @Test func `a slow server is waited for, and one that is too slow is not`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        let store = try await Self.open(Self.configuration(server.uri(database: database, port: relay.port)))
        let traffic = PostgresTraffic(store, workers: 8, limit: Self.limit)
        #expect(await traffic.time(from: .now, toWrite: true) != nil)
        await relay.set(.delay(.milliseconds(200)))
        #expect(await traffic.time(from: .now, toWrite: true) != nil)
        await relay.set(.delay(.seconds(10)))
        #expect(await traffic.time(from: .now, toWrite: false, failing: true) != nil)
        await relay.set(.forward)
        await relay.cutAll()
        Self.expectRecovery(await traffic.time(from: .now, toWrite: true), "a slow server")
        await traffic.stop()
        await store.close()
        await relay.close()
    }

    @Test func `a writer that waits too long for a row's lock is refused in time, and no other call is`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let store = try await Self.open(Self.configuration(server.uri(database: database)))
        try await store.commit([.insert(Self.record)])
        let hog = try await PostgresServer.connect(PostgresServer.configuration(server.uri(database: database)))
        _ = try await hog.execute(Statements.begin, until: .after(.seconds(20)))
        _ = try await hog.execute(
            PostgresStatement("SELECT 1 FROM token_broker_records FOR UPDATE"), until: .after(.seconds(20)))
        let next = StoredRecord(id: Self.record.id, version: 2, sealed: [2])
        let start = MonotonicInstant.now
        let commit = Task { await Self.failure { try await store.commit([.replace(next, version: 1)]) } }
        let other = StoredRecord(id: RecordID(.login, TenantName("beta")!, key: "k"), version: 1, sealed: [1])
        try await store.commit([.insert(other)])
        #expect(try await store.read(Self.record.id) == Self.record)
        #expect(await commit.value == .unavailable)
        #expect(start.duration(to: .now) < Self.limit)
        _ = try await hog.execute(Statements.rollback, until: .after(.seconds(20)))
        // What was refused as `unavailable` may have been carried out, where the server came to the request to cancel it late.
        if try await store.read(Self.record.id) == Self.record { try await store.commit([.replace(next, version: 1)]) }
        #expect(try await store.read(Self.record.id) == next)
        await hog.close()
        await store.close()
    }

    // H084
    @Test func `connections that die without a word are replaced`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        let store = try await Self.open(Self.configuration(server.uri(database: database, port: relay.port)))
        let traffic = PostgresTraffic(store, limit: Self.limit)
        #expect(await traffic.time(from: .now, toWrite: true) != nil)
        await relay.freezeAll()
        // The running calls end by their deadlines, and no later call gets a dead connection.
        let time = await traffic.time(from: .now, toWrite: true)
        print("recovery after connections died silently, their deadline of 3 s included: \(time ?? .zero)")
        #expect(time ?? Self.limit < Self.limit)
        await traffic.stop()
        await store.close()
        await relay.close()
    }

    @Test func `a connection that died while it lay idle costs a moment, and not a call`() async throws {
        let server = try await PostgresServer.shared.value
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        let pool = PostgresPool(
            try Self.configuration(server.uri(database: "postgres", port: relay.port)), on: PostgresServer.loop,
            resolver: PostgresServer.resolver, trustedIdleness: .zero)
        let session = PostgresStatement("SELECT pg_backend_pid()")
        let before = try await pool.execute(session, until: .after(.seconds(20))).first?.integer(0)
        #expect(try await pool.execute(session, until: .after(.seconds(20))).first?.integer(0) == before)
        await relay.freezeAll()
        let start = MonotonicInstant.now
        let after = try await pool.execute(session, until: .after(.seconds(20))).first?.integer(0)
        #expect(after != before)
        #expect(start.duration(to: .now) < .seconds(5))
        await pool.close()
        await relay.close()
    }
}
