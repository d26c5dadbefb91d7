import BrokerTesting
import OAuth
import Postgres
import Reactor
import Synchronization
import Testing

@testable import CredentialStore

@Suite struct `PostgreSQL record store` {
    private static let tenant = TenantName("alpha")!
    private static let credentials = RecordID(.credentials, tenant, key: "k")

    private static func record(_ version: Int64 = 1, sealed: [UInt8] = [1]) -> StoredRecord {
        StoredRecord(id: credentials, version: version, sealed: sealed)
    }

    private static func open(
        _ database: String, port: UInt16? = nil, adjust: (inout PostgresConfiguration) -> Void = { _ in },
        report: @escaping @Sendable (PostgresError) -> Void = { _ in }
    ) async throws -> PostgresRecordStore {
        let uri = try await PostgresServer.shared.value.uri(database: database, port: port)
        return try await open(connection: uri, adjust: adjust, report: report)
    }

    private static func open(
        connection: String, adjust: (inout PostgresConfiguration) -> Void = { _ in },
        report: @escaping @Sendable (PostgresError) -> Void = { _ in }
    ) async throws -> PostgresRecordStore {
        var configuration = try PostgresServer.configuration(connection)
        adjust(&configuration)
        return try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver, report: report)
    }

    private static func failure(_ body: () async throws -> Void) async -> StoreError? {
        await #expect(throws: StoreError.self) { try await body() }
    }

    @Test(arguments: StoreConformance.checks + StoreConformance.durableChecks + StoreConformance.sharedChecks)
    func `keeps the contract`(check: StoreConformance) async throws {
        let connection = try await PostgresServer.shared.value.connectionToNewSchema()
        try await check.run { try await Self.open(connection: connection) }
    }

    @Test(arguments: StoreConformance.checks)
    func `keeps the contract behind a pooler`(check: StoreConformance) async throws {
        let connection = try await PostgresServer.shared.value.connectionToNewSchema()
        try await check.run { try await Self.open(connection: connection) { $0.usesPooler = true } }
    }

    @Test(arguments: StoreConformance.checks)
    func `keeps the contract whatever level the database's transactions have`(check: StoreConformance) async throws {
        let connection = try await PostgresServer.shared.value.connectionToNewSchema(
            settings: " -cdefault_transaction_isolation=serializable")
        try await check.run { try await Self.open(connection: connection) }
    }

    // MARK: Unknown outcomes

    /// A store whose answers the relay can drop. Statements are sent as text, so that the relay can recognize them.
    private static func withRelay(
        _ body: (PostgresRecordStore, PostgresRelay) async throws -> Void
    ) async throws {
        let server = try await PostgresServer.shared.value
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        let store = try await open(server.makeDatabase(), port: relay.port) { $0.usesPooler = true }
        try await body(store, relay)
        await store.close()
        await relay.close()
    }

    // H085
    @Test func `a commit whose answer was lost is found out to have taken place`() async throws {
        try await Self.withRelay { store, relay in
            for version in Int64(1)...30 {
                await relay.set(.cutAnswer(to: version == 1 ? "INSERT INTO" : "UPDATE token_broker_records"))
                let record = Self.record(version, sealed: [UInt8(version)])
                try await store.commit([version == 1 ? .insert(record) : .replace(record, version: version - 1)])
                #expect(try await store.read(Self.credentials) == record)
            }
            #expect(await relay.cuts == 30)
        }
    }

    // H085
    @Test func `a transaction whose answer was lost is found out to have taken place`() async throws {
        try await Self.withRelay { store, relay in
            let tenant = StoredRecord(id: RecordID(.tenant, Self.tenant), version: 1, sealed: [0])
            try await store.commit([.insert(tenant)])
            await relay.set(.cutAnswer(to: "INSERT INTO token_broker_records"))
            try await store.commit([.insert(Self.record()), .require(tenant.id)])
            #expect(await relay.cuts == 1)
            #expect(try await store.read(Self.credentials) == Self.record())
            let login = StoredRecord(id: RecordID(.login, Self.tenant, key: "l"), version: 1, sealed: [2])
            await relay.set(.cutAnswer(to: "COMMIT\0"))
            try await store.commit([.insert(login), .replace(Self.record(2), version: 1), .require(tenant.id)])
            #expect(await relay.cuts == 2)
            #expect(try await store.read(Self.credentials) == Self.record(2))
            #expect(try await store.read(login.id) == login)
        }
    }

    // H085
    @Test func `a commit that did not arrive is not taken for one that did`() async throws {
        try await Self.withRelay { store, relay in
            await relay.set(.cutBefore("INSERT INTO"))
            #expect(await Self.failure { try await store.commit([.insert(Self.record())]) } == .unavailable)
            #expect(try await store.read(Self.credentials) == nil)

            let login = StoredRecord(id: RecordID(.login, Self.tenant, key: "l"), version: 1, sealed: [2])
            await relay.set(.cutBefore("COMMIT\0"))
            #expect(
                await Self.failure { try await store.commit([.insert(Self.record()), .insert(login)]) } == .unavailable)
            #expect(try await store.read(Self.credentials) == nil)
            #expect(try await store.read(login.id) == nil)

            try await store.commit([.insert(Self.record())])
            await relay.set(.cutBefore("UPDATE token_broker_records"))
            #expect(
                await Self.failure { try await store.commit([.replace(Self.record(2), version: 1)]) } == .unavailable)
            await relay.set(.cutBefore("DELETE FROM"))
            #expect(
                await Self.failure { try await store.commit([.remove(Self.credentials, version: 1)]) } == .unavailable)
            #expect(await relay.cuts == 4)
            #expect(try await store.read(Self.credentials) == Self.record())
        }
    }

    @Test func `what another wrote meanwhile is a conflict even when the answer was lost`() async throws {
        try await Self.withRelay { store, relay in
            try await store.commit([.insert(Self.record(3, sealed: [9]))])
            for change in [RecordChange.insert(Self.record()), .replace(Self.record(3, sealed: [8]), version: 2)] {
                if case .insert = change {
                    await relay.set(.cutBefore("INSERT INTO"))
                } else {
                    await relay.set(.cutAnswer(to: "UPDATE token_broker_records"))
                }
                #expect(await Self.failure { try await store.commit([change]) } == .conflict)
            }
            #expect(await relay.cuts == 2)
            #expect(try await store.read(Self.credentials) == Self.record(3, sealed: [9]))
        }
    }

    @Test func `a removal whose answer was lost is not claimed`() async throws {
        try await Self.withRelay { store, relay in
            try await store.commit([.insert(Self.record())])
            await relay.set(.cutAnswer(to: "DELETE FROM"))
            #expect(
                await Self.failure { try await store.commit([.remove(Self.credentials, version: 1)]) } == .conflict)
            #expect(try await store.read(Self.credentials) == nil)
        }
    }

    @Test func `the removal of all that a tenant has is repeated`() async throws {
        try await Self.withRelay { store, relay in
            try await store.commit([.insert(Self.record())])
            await relay.set(.cutBefore("COMMIT\0"))
            try await store.commit([.removeAll(Self.tenant)])
            #expect(await relay.cuts == 1)
            #expect(try await store.read(Self.credentials) == nil)
        }
    }

    @Test func `a read whose connection is lost is repeated`() async throws {
        try await Self.withRelay { store, relay in
            try await store.commit([.insert(Self.record())])
            await relay.set(.cutAnswer(to: "SELECT tenant, key"))
            #expect(try await store.read(Self.credentials) == Self.record())
            #expect(await relay.cuts == 1)
        }
    }

    @Test func `a commit outlives the cancellation of its caller`() async throws {
        let store = try await Self.open(try await PostgresServer.shared.value.makeDatabase())
        let task = Task { try await store.commit([.insert(Self.record())]) }
        task.cancel()
        try await task.value
        #expect(try await store.read(Self.credentials) == Self.record())
        await store.close()
    }

    @Test func `an entry whose answer was lost is found out to be there, and is there once`() async throws {
        try await Self.withRelay { store, relay in
            await relay.set(.cutAnswer(to: "INSERT INTO token_broker_events"))
            try await store.commit([.append(Self.entry("alone"))])
            await relay.set(.cutAnswer(to: "INSERT INTO token_broker_events"))
            try await store.commit([.append(Self.entry("a")), .append(Self.entry("b"))])
            try await store.commit([.insert(Self.record())])
            await relay.set(.cutAnswer(to: "DELETE FROM token_broker_records"))
            try await store.commit([.remove(Self.credentials, version: 1), .append(Self.entry("removed"))])
            #expect(await relay.cuts == 3)
            #expect(try await Self.keys(store) == ["alone", "a", "b", "removed"])
        }
    }

    @Test func `an entry that did not arrive is not taken for one that did`() async throws {
        try await Self.withRelay { store, relay in
            let due = StoredRecord(id: Self.credentials, version: 1, sealed: [1], due: Timestamp(seconds: 1))
            try await store.commit([.insert(due)])
            await relay.set(.cutBefore("INSERT INTO token_broker_events"))
            #expect(await Self.failure { try await store.commit([.append(Self.entry("a"))]) } == .unavailable)
            let notice: [RecordChange] = [.settleDue(due.id, version: 1), .append(Self.entry("b"))]
            await relay.set(.cutBefore("UPDATE token_broker_records"))
            #expect(await Self.failure { try await store.commit(notice) } == .unavailable)
            #expect(try await store.read(due.id) == due)
            #expect(try await Self.keys(store) == [])
            await relay.set(.cutAnswer(to: "UPDATE token_broker_records"))
            try await store.commit(notice)
            #expect(await Self.failure { try await store.commit(notice) } == .conflict)
            #expect(await relay.cuts == 3)
            #expect(try await Self.keys(store) == ["b"])
        }
    }

    @Test func `a settlement whose answer was lost is not claimed`() async throws {
        try await Self.withRelay { store, relay in
            let due = StoredRecord(id: Self.credentials, version: 1, sealed: [1], due: Timestamp(seconds: 1))
            try await store.commit([.insert(due)])
            await relay.set(.cutAnswer(to: "UPDATE token_broker_records"))
            #expect(await Self.failure { try await store.commit([.settleDue(due.id, version: 1)]) } == .conflict)
            #expect(try await store.nextDue(.credentials) == nil)
        }
    }

    @Test func `a reading of the log whose connection is lost is repeated`() async throws {
        try await Self.withRelay { store, relay in
            for (index, statement) in ["SELECT last, trimmed, EXISTS", "WITH pending", "SELECT sequence, tenant"]
                .enumerated()
            {
                try await store.commit([.append(Self.entry("\(index)"))])
                await relay.set(.cutAnswer(to: statement))
                #expect(try await Self.keys(store) == (0...index).map { "\($0)" })
                #expect(await relay.cuts == index + 1)
            }
            await relay.set(.cutAnswer(to: "COMMIT\0"))
            #expect(try await store.trimLog(before: .latest, keeping: 9, limit: 9) == 0)
            #expect(try await store.logBounds() == LogBounds(trimmed: 3, last: 3))
        }
    }

    // MARK: Concurrency

    private static func entry(_ key: String, _ tenant: TenantName = tenant) -> StoredLogEntry {
        StoredLogEntry(
            tenant: tenant, key: key, version: 1, time: Timestamp(seconds: 1), sealed: Array("sealed \(key)".utf8))
    }

    /// The parameters of the statement for `entry`.
    private static func values(_ key: String) -> [PostgresValue] {
        [.text("alpha"), .text(key), .integer(1), .integer(1000), .bytes(Array("sealed \(key)".utf8))]
    }

    private static func keys(_ store: PostgresRecordStore, after sequence: Int64 = 0) async throws -> [String] {
        try await store.entries(after: sequence, tenant: nil, limit: 100_000).map(\.entry.key)
    }

    @Test func `an entry whose writer is slow to commit appears behind what was read, and none is missed`() async throws
    {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let stores = [try await Self.open(database), try await Self.open(database)]
        let connection = try await PostgresServer.connect(PostgresServer.configuration(server.uri(database: database)))
        func run(_ statement: PostgresStatement, _ parameters: [PostgresValue] = []) async throws {
            _ = try await connection.execute(statement, parameters, until: .after(.seconds(20)))
        }
        var read: [PlacedLogEntry] = []
        for round in 0..<5 {
            try await run(Statements.begin)
            try await run(Statements.append, Self.values("held-\(round)"))
            for index in 0..<4 { try await stores[index % 2].commit([.append(Self.entry("\(round)-\(index)"))]) }
            for store in stores {
                let page = try await store.entries(after: read.last?.sequence ?? 0, tenant: nil, limit: 100)
                #expect(page.map(\.entry.key) == (0..<4).map { "\(round)-\($0)" })
            }
            read += try await stores[0].entries(after: read.last?.sequence ?? 0, tenant: nil, limit: 100)
            try await run(Statements.append, Self.values("later-\(round)"))
            try await run(Statements.commit)
            let late = try await stores[1].entries(after: read.last?.sequence ?? 0, tenant: nil, limit: 100)
            #expect(late.map(\.entry.key) == ["held-\(round)", "later-\(round)"])
            read += late
        }
        for store in stores { #expect(try await store.entries(after: 0, tenant: nil, limit: 1000) == read) }
        await connection.close()
        for store in stores { await store.close() }
    }

    @Test func `writers do not wait for the replica that gives the sequences`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let store = try await Self.open(database)
        let connection = try await PostgresServer.connect(PostgresServer.configuration(server.uri(database: database)))
        _ = try await connection.execute(Statements.begin, until: .after(.seconds(20)))
        _ = try await connection.execute(Statements.lockLog, until: .after(.seconds(20)))
        try await store.commit([.insert(Self.record()), .append(Self.entry("a"))])
        let reading = Task { try await Self.keys(store) }
        try await Self.waitForLock(server, database)
        try await store.commit([.append(Self.entry("b"))])
        _ = try await connection.execute(Statements.commit, until: .after(.seconds(20)))
        #expect(try await reading.value == ["a", "b"])
        await connection.close()
        await store.close()
    }

    @Test func `more entries than are numbered at once are all read`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let store = try await Self.open(database)
        let connection = try await PostgresServer.connect(PostgresServer.configuration(server.uri(database: database)))
        _ = try await connection.execute(
            PostgresStatement(
                """
                INSERT INTO token_broker_events (tenant, key, version, time, sealed)
                SELECT 'alpha', n::text, 1, 0, '\\x01' FROM generate_series(1, 2500) AS n
                """), until: .after(.seconds(20)))
        #expect(try await store.logBounds() == LogBounds(trimmed: 0, last: 2500))
        #expect(try await Self.keys(store) == (1...2500).map { "\($0)" })
        await connection.close()
        await store.close()
    }

    @Test func `a log without readers is trimmed, but for what is not committed`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let store = try await Self.open(database)
        let connection = try await PostgresServer.connect(PostgresServer.configuration(server.uri(database: database)))
        _ = try await connection.execute(Statements.begin, until: .after(.seconds(20)))
        _ = try await connection.execute(Statements.append, Self.values("held"), until: .after(.seconds(20)))
        for key in ["a", "b"] { try await store.commit([.append(Self.entry(key))]) }
        #expect(try await store.trimLog(before: .latest, keeping: 0, limit: 9) == 2)
        #expect(try await store.logBounds() == LogBounds(trimmed: 2, last: 2))
        _ = try await connection.execute(Statements.commit, until: .after(.seconds(20)))
        #expect(try await Self.keys(store) == ["held"])
        await connection.close()
        await store.close()
    }

    @Test func `a tenant's removal waits for a commit that requires it, and takes what it wrote`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let store = try await Self.open(database)
        let tenant = StoredRecord(id: RecordID(.tenant, Self.tenant), version: 1, sealed: [0])
        try await store.commit([.insert(tenant)])

        let connection = try await PostgresServer.connect(PostgresServer.configuration(server.uri(database: database)))
        func run(_ statement: PostgresStatement, _ parameters: [PostgresValue] = []) async throws {
            _ = try await connection.execute(statement, parameters, until: .after(.seconds(20)))
        }
        try await run(Statements.begin)
        try await run(Statements.require, [.text("tenant"), .text("alpha"), .text("")])
        try await run(
            Statements.alone(Statements.insert),
            [
                .text("credentials"), .text("alpha"), .text("k"), .integer(1), .bytes([1]), .bytes(nil), .integer(nil),
                .integer(nil),
            ])
        try await run(Statements.append, Self.values("held"))
        let removal = Task { try await store.commit([.removeAll(Self.tenant)]) }
        try await Self.waitForLock(server, database)
        try await run(Statements.commit)
        try await removal.value
        #expect(try await store.read(tenant.id) == nil)
        #expect(try await store.read(Self.credentials) == nil)
        #expect(try await store.entries(after: 0, tenant: nil, limit: 9) == [])
        await connection.close()
        await store.close()
    }

    @Test func `commits that cross each other's records do not fail`() async throws {
        let store = try await Self.open(try await PostgresServer.shared.value.makeDatabase())
        let ids = (0..<6).map { RecordID(.credentials, Self.tenant, key: "\($0)") }
        try await store.commit(ids.map { .insert(StoredRecord(id: $0, version: 1, sealed: [1])) })
        let succeeded = try await withThrowingTaskGroup(of: Int.self) { group in
            for worker in 0..<4 {
                group.addTask {
                    var count = 0
                    for round in 0..<20 {
                        var changes: [RecordChange] = []
                        for id in (worker + round).isMultiple(of: 2) ? ids : ids.reversed() {
                            guard let found = try await store.read(id) else { continue }
                            let next = StoredRecord(id: id, version: found.version + 1, sealed: [UInt8(worker)])
                            changes.append(.replace(next, version: found.version))
                        }
                        do {
                            try await store.commit(changes)
                            count += 1
                        } catch StoreError.conflict {
                            continue
                        }
                    }
                    return count
                }
            }
            return try await group.reduce(0, +)
        }
        #expect(succeeded > 0)
        for id in ids { #expect(try await store.read(id)?.version == Int64(succeeded) + 1) }
        await store.close()
    }

    @Test func `a record that is being written is not expired, and no call waits`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let store = try await Self.open(database)
        for key in ["a", "b"] {
            try await store.commit([
                .insert(
                    StoredRecord(
                        id: RecordID(.login, Self.tenant, key: key), version: 1, sealed: [1],
                        expires: Timestamp(seconds: 1)))
            ])
        }
        let connection = try await PostgresServer.connect(PostgresServer.configuration(server.uri(database: database)))
        _ = try await connection.execute(Statements.begin, until: .after(.seconds(20)))
        _ = try await connection.execute(
            PostgresStatement("SELECT 1 FROM token_broker_records WHERE key = 'a' FOR UPDATE"),
            until: .after(.seconds(20)))
        #expect(try await store.removeExpired(before: Timestamp(seconds: 2), limit: 10) == 1)
        await connection.close()
        await store.close()
    }

    private static func waitForLock(_ server: PostgresServer, _ database: String) async throws {
        let connection = try await PostgresServer.connect(
            PostgresServer.configuration(server.uri(database: "postgres")))
        var isWaiting = false
        while !isWaiting {
            let result = try await connection.execute(
                PostgresStatement(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND wait_event_type = 'Lock'"),
                [.text(database)], until: .after(.seconds(20)))
            isWaiting = try result.first?.integer(0) ?? 0 > 0
        }
        await connection.close()
    }

    // MARK: Health

    @Test func `a server that takes no writes fails the check and refuses commits`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let store = try await Self.open(database)
        try await store.commit([.insert(Self.record())])
        await store.close()
        let readOnly = try await Self.open(
            connection: server.uri(
                database: database, parameters: "sslmode=disable&options=-cdefault_transaction_read_only%3Don"))
        #expect(await Self.failure { try await readOnly.check() } == .unavailable)
        #expect(
            await Self.failure { try await readOnly.commit([.replace(Self.record(2), version: 1)]) } == .unavailable)
        #expect(try await readOnly.read(Self.credentials) == Self.record())
        await readOnly.close()
    }

    // H100
    @Test func `without a server opening fails, and the operator learns why`() async throws {
        let reported = Mutex<[PostgresError]>([])
        let error = await Self.failure {
            _ = try await Self.open("absent", report: { error in reported.withLock { $0.append(error) } })
        }
        #expect(error == .unavailable)
        #expect(reported.withLock { $0 }.first?.sqlstate == "3D000")
    }

    // H083
    @Test func `a store whose table is gone is away until the table is back, and the operator learns why`() async throws
    {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let reported = Mutex<[PostgresError]>([])
        let store = try await Self.open(database, report: { error in reported.withLock { $0.append(error) } })
        try await store.commit([.insert(Self.record())])
        let connection = try await PostgresServer.connect(PostgresServer.configuration(server.uri(database: database)))
        _ = try await connection.execute(
            PostgresStatement("ALTER TABLE token_broker_records RENAME TO elsewhere"), until: .after(.seconds(20)))
        #expect(await Self.failure { _ = try await store.read(Self.credentials) } == .unavailable)
        #expect(await Self.failure { try await store.commit([.replace(Self.record(2), version: 1)]) } == .unavailable)
        let text = reported.withLock { $0.last.map { String(reflecting: $0) } } ?? ""
        #expect(text.contains("SQLSTATE 42P01") && text.contains("put it back"), "\(text)")
        _ = try await connection.execute(
            PostgresStatement("ALTER TABLE elsewhere RENAME TO token_broker_records"), until: .after(.seconds(20)))
        #expect(try await store.read(Self.credentials) == Self.record())
        try await store.commit([.replace(Self.record(2), version: 1)])
        await connection.close()
        await store.close()
    }

    @Test func `a silent server is reported within the limits, and used again when it answers`() async throws {
        let server = try await PostgresServer.shared.value
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        let store = try await Self.open(server.makeDatabase(), port: relay.port) { configuration in
            configuration.statementTimeout = .seconds(4)
            configuration.waitTimeout = .seconds(3)
            configuration.connectTimeout = .seconds(2)
        }
        await relay.set(.swallow)
        let start = MonotonicInstant.now
        let errors = await withTaskGroup(of: StoreError?.self) { group in
            for index in 0..<100 {
                group.addTask {
                    await Self.failure {
                        if index.isMultiple(of: 2) {
                            _ = try await store.read(Self.credentials)
                        } else {
                            try await store.commit([.insert(Self.record())])
                        }
                    }
                }
            }
            return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(errors.allSatisfy { $0 == .unavailable })
        #expect(start.duration(to: .now) < .seconds(16))
        await relay.set(.forward)
        await relay.cutAll()
        let deadline = MonotonicInstant.after(.seconds(20))
        var isBack = false
        while !isBack, MonotonicInstant.now < deadline { isBack = (try? await store.check()) != nil }
        #expect(isBack)
        await store.close()
        await relay.close()
    }
}
