import BrokerTesting
import OAuth
import Postgres
import Reactor
import Synchronization
import Testing

@testable import CredentialStore

@Suite struct `Notices of commits` {
    private static let alpha = TenantName("alpha")!
    private static let id = RecordID(.credentials, alpha, key: "a.~:@-_Z")

    private static let accented = RecordID(.credentials, alpha, key: "\u{301}e\r")

    private static func record(_ version: Int64 = 1, _ id: RecordID = id) -> StoredRecord {
        StoredRecord(id: id, version: version, sealed: [1], lookup: [2], due: Timestamp(seconds: 1))
    }

    static let told: [([RecordChange], [StoreChange])] = [
        ([.insert(record())], [.written(id, version: 1)]),
        ([.replace(record(.max), version: 1, lease: .fenced(for: "h"))], [.written(id, version: .max)]),
        ([.release(id, version: -1, holder: "h", isSettled: false)], [.written(id, version: -1)]),
        ([.remove(id, version: 7)], [.removed(id)]),
        // Combines with the space or newline before it, which breaks a parser of characters.
        ([.remove(accented, version: 7), .remove(accented, version: 7)], [.removed(accented), .removed(accented)]),
        ([.removeAll(alpha)], [.tenantRemoved(alpha)]),
        ([.insert(record(1, RecordID(.tenant, alpha)))], [.written(RecordID(.tenant, alpha), version: 1)]),
        (
            [.remove(RecordID(.keyCheck, .broker, key: "k1"), version: 1)],
            [.removed(RecordID(.keyCheck, .broker, key: "k1"))]
        ),
        (
            [.require(RecordID(.tenant, alpha)), .remove(id, version: 1), .append(entry), .append(entry)],
            [.removed(id), .logGrown(alpha)]
        ),
    ]

    private static let entry = StoredLogEntry(
        tenant: alpha, key: "k", version: 1, time: Timestamp(seconds: 1), sealed: [3])

    @Test(arguments: told)
    func `say what has changed`(changes: [RecordChange], news: [StoreChange]) throws {
        let text = try #require(CommitNotice.text(changes))
        #expect(CommitNotice.notification(in: text) == .changed(news))
    }

    @Test func `are not made for leases that are taken and due marks that move`() {
        let claim = RecordChange.claim(Self.id, version: 1, holder: "h", replacing: nil, for: .seconds(1))
        #expect(CommitNotice.text([claim]) == nil)
        #expect(CommitNotice.text([.settleDue(Self.id, version: 1), .require(Self.id)]) == nil)
        #expect(CommitNotice.text([claim, .append(Self.entry)]) == "l alpha")
    }

    @Test func `are as long as NOTIFY takes, and beyond that say that anything may have changed`() throws {
        var changes: [RecordChange] = []
        var last = ""
        while let text = CommitNotice.text(changes) ?? Optional(""), text != "*" {
            #expect(text.utf8.count <= 7900)
            last = text
            changes.append(.remove(RecordID(.device, Self.alpha, key: "\(changes.count)"), version: 1))
        }
        #expect(last.utf8.count > 7880)
        #expect(CommitNotice.notification(in: last) != .unknown)
        #expect(CommitNotice.notification(in: "*") == .unknown)
    }

    @Test(arguments: [
        "", "\n", "x alpha", "w 1 credentials alpha", "w one credentials alpha k", "w 1 other alpha k",
        "w 1 credentials ALPHA k", "w 1 credentials alpha k k", "r credentials alpha", "l", "l ALPHA", "t alpha beta",
        "l alpha\n", "l alpha\nx", "w  1 credentials alpha k",
    ])
    func `that another build made may mean anything`(text: String) {
        #expect(CommitNotice.notification(in: text) == .unknown)
    }
}

@Suite struct `PostgreSQL feed` {
    private static let alpha = TenantName("alpha")!
    private static let id = RecordID(.credentials, alpha, key: "k")
    private static let record = StoredRecord(id: id, version: 1, sealed: [1], due: Timestamp(seconds: 1))
    private static let entry = StoredLogEntry(
        tenant: alpha, key: "k", version: 1, time: Timestamp(seconds: 1), sealed: [3])

    private static func open(
        _ configuration: PostgresConfiguration, _ listening: PostgresRecordStore.Listening = .automatic,
        report: @escaping @Sendable (PostgresError) -> Void = { _ in }
    ) async throws -> PostgresRecordStore {
        var heartbeat = PostgresListener.Settings()
        heartbeat.interval = .milliseconds(100)
        return try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver, listening: listening,
            heartbeat: heartbeat, report: report)
    }

    /// The reports of the store, with only the first `alive`.
    private static func watch(_ store: PostgresRecordStore) -> AsyncStream<StoreNotification> {
        let stream = AsyncStream.makeStream(of: StoreNotification.self)
        let hasLived = Mutex(false)
        store.watch { event in
            let isNew =
                event != .alive
                || hasLived.withLock { hasLived in
                    defer { hasLived = true }
                    return !hasLived
                }
            if isNew { stream.continuation.yield(event) }
        }
        return stream.stream
    }

    /// The reports of the store without `alive`.
    private static func watchChanges(_ store: PostgresRecordStore) -> AsyncStream<StoreNotification> {
        let stream = AsyncStream.makeStream(of: StoreNotification.self)
        store.watch { if $0 != .alive { stream.continuation.yield($0) } }
        return stream.stream
    }

    private static let steps: [(changes: [RecordChange], news: StoreNotification?)] = [
        ([.insert(record)], .changed([.written(id, version: 1)])),
        ([.claim(id, version: 1, holder: "h", replacing: nil, for: .seconds(60))], nil),
        ([.release(id, version: 1, holder: "h", isSettled: true)], .changed([.written(id, version: 1)])),
        ([.settleDue(id, version: 1), .append(entry)], .changed([.logGrown(alpha)])),
        (
            [.replace(StoredRecord(id: id, version: 2, sealed: [2]), version: 1), .append(entry)],
            .changed([.written(id, version: 2), .logGrown(alpha)])
        ),
        ([.append(entry), .append(entry)], .changed([.logGrown(alpha)])),
        (
            [
                .insert(StoredRecord(id: RecordID(.tenant, alpha), version: 1, sealed: [1])),
                .insert(StoredRecord(id: RecordID(.login, alpha, key: "l"), version: 3, sealed: [1])),
            ],
            .changed([
                .written(RecordID(.tenant, alpha), version: 1), .written(RecordID(.login, alpha, key: "l"), version: 3),
            ])
        ),
        ([.remove(id, version: 2)], .changed([.removed(id)])),
        ([.removeAll(alpha)], .changed([.tenantRemoved(alpha)])),
        (
            (0..<400).map {
                .insert(StoredRecord(id: RecordID(.device, alpha, key: "device-\($0)"), version: 1, sealed: [1]))
            }, .unknown
        ),
    ]

    @Test func `tells a replica of every commit of the others and of its own, and of no conflict`() async throws {
        let server = try await PostgresServer.shared.value
        let configuration = try PostgresServer.configuration(server.uri(database: try await server.makeDatabase()))
        let (one, other) = (try await Self.open(configuration), try await Self.open(configuration))
        let kept = StoredRecord(id: RecordID(.login, TenantName("beta")!, key: "kept"), version: 5, sealed: [1])
        try await one.commit([.insert(kept)])
        var news = Self.watchChanges(one).makeAsyncIterator()
        #expect(await news.next() == .following)
        for (index, step) in Self.steps.enumerated() {
            try await (index.isMultiple(of: 3) ? one : other).commit(step.changes)
            for conflict in [
                RecordChange.remove(kept.id, version: 99),
                .insert(StoredRecord(id: kept.id, version: 6, sealed: [1])),
                .replace(StoredRecord(id: kept.id, version: 100, sealed: [1]), version: 99),
                .claim(kept.id, version: 5, holder: "h", replacing: "nobody", for: .seconds(1)),
            ] {
                await #expect(throws: StoreError.conflict) { try await other.commit([conflict, .append(Self.entry)]) }
                await #expect(throws: StoreError.conflict) { try await other.commit([conflict]) }
            }
            if let expected = step.news { #expect(await news.next() == expected) }
        }
        _ = try await other.removeExpired(before: .latest, limit: 10)
        _ = try await other.trimLog(before: .latest, keeping: 0, limit: 10)
        try await other.commit([.append(Self.entry)])
        #expect(await news.next() == .changed([.logGrown(Self.alpha)]))
        await one.close()
        await other.close()
    }

    // H087
    @Test func `tells that it lives, that it was lost and that it follows again`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        let direct = try PostgresServer.configuration(server.uri(database: database, port: relay.port))
        let reported = Mutex(0)
        let store = try await Self.open(
            try PostgresServer.configuration(server.uri(database: database)), .through(direct),
            report: { _ in reported.withLock { $0 += 1 } })
        var news = Self.watch(store).makeAsyncIterator()
        #expect(await news.next() == .following)
        #expect(await news.next() == .alive)
        await relay.cutAll()
        #expect(await news.next() == .lost)
        #expect(reported.withLock { $0 } == 1)
        #expect(await news.next() == .following)
        try await store.commit([.append(Self.entry)])
        #expect(await news.next() == .changed([.logGrown(Self.alpha)]))
        await store.close()
        await relay.close()
    }

    @Test func `tells of a commit whose answer was lost that anything may have changed`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        var relayed = try PostgresServer.configuration(server.uri(database: database, port: relay.port))
        relayed.usesPooler = true
        let writer = try await Self.open(relayed)
        let reader = try await Self.open(PostgresServer.configuration(server.uri(database: database)))
        var news = Self.watchChanges(reader).makeAsyncIterator()
        #expect(await news.next() == .following)
        // The notice may have been sent or not.
        await relay.set(.cutAnswer(to: "INSERT INTO token_broker_records"))
        try await writer.commit([.insert(Self.record)])
        #expect(await news.next() == .changed([.written(Self.id, version: 1)]))
        #expect(await news.next() == .unknown)
        await relay.set(.cutBefore("DELETE FROM token_broker_records"))
        await #expect(throws: StoreError.unavailable) { try await writer.commit([.remove(Self.id, version: 1)]) }
        #expect(await news.next() == .unknown)
        await writer.close()
        await reader.close()
        await relay.close()
    }

    @Test func `what is told comes after the commit, so that it can be read`() async throws {
        let server = try await PostgresServer.shared.value
        let configuration = try PostgresServer.configuration(server.uri(database: try await server.makeDatabase()))
        let (reader, writer) = (try await Self.open(configuration), try await Self.open(configuration))
        var news = Self.watchChanges(reader).makeAsyncIterator()
        #expect(await news.next() == .following)
        try await writer.commit([.insert(Self.record)])
        #expect(await news.next() == .changed([.written(Self.id, version: 1)]))
        for version in Int64(2)...100 {
            let next = StoredRecord(id: Self.id, version: version, sealed: [1])
            async let commit: Void = writer.commit([.replace(next, version: version - 1), .append(Self.entry)])
            #expect(await news.next() == .changed([.written(Self.id, version: version), .logGrown(Self.alpha)]))
            #expect(try await reader.read(Self.id)?.version == version)
            try await commit
        }
        await reader.close()
        await writer.close()
    }

    @Test func `is silent where it is switched off, and then others are not told`() async throws {
        let server = try await PostgresServer.shared.value
        let configuration = try PostgresServer.configuration(server.uri(database: try await server.makeDatabase()))
        let listening = try await Self.open(configuration)
        let silent = try await Self.open(configuration, .off)
        var news = Self.watchChanges(listening).makeAsyncIterator()
        #expect(await news.next() == .following)
        let told = Mutex<[StoreNotification]>([])
        silent.watch { event in told.withLock { $0.append(event) } }
        try await silent.commit([.insert(Self.record), .append(Self.entry)])
        try await silent.commit([.removeAll(Self.alpha)])
        try await silent.commit([.append(Self.entry), .append(Self.entry)])
        try await listening.commit([.insert(Self.record)])
        #expect(await news.next() == .changed([.written(Self.id, version: 1)]))
        await silent.close()
        await listening.close()
        #expect(told.withLock { $0 } == [])
    }

    @Test func `is not watched where the store was closed before`() async throws {
        let server = try await PostgresServer.shared.value
        let configuration = try PostgresServer.configuration(server.uri(database: try await server.makeDatabase()))
        let store = try await Self.open(configuration)
        await store.close()
        store.watch { _ in Issue.record("told") }
        let other = try await Self.open(configuration)
        store.watch { _ in Issue.record("told") }
        try await other.commit([.insert(Self.record)])
        await other.close()
    }
}

@Suite struct `PostgreSQL behind PgBouncer` {
    private static let alpha = TenantName("alpha")!
    private static let record = StoredRecord(
        id: RecordID(.credentials, alpha, key: "k"), version: 1, sealed: [1])

    private static let pooler = Task {
        try await PgBouncerServer.start(before: PostgresServer.shared.value)
    }

    private static func open(
        _ configuration: PostgresConfiguration, _ listening: PostgresRecordStore.Listening = .automatic
    ) async throws -> PostgresRecordStore {
        try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver, listening: listening)
    }

    @Test(arguments: StoreConformance.checks + StoreConformance.durableChecks + StoreConformance.sharedChecks)
    func `keeps the contract`(check: StoreConformance) async throws {
        let database = try await PostgresServer.shared.value.makeDatabase()
        let configuration = try await Self.pooler.value.configuration(database: database)
        try await check.run { try await Self.open(configuration) }
    }

    @Test(arguments: StoreConformance.checks)
    func `keeps the contract without LISTEN and NOTIFY`(check: StoreConformance) async throws {
        let connection = try await PostgresServer.shared.value.connectionToNewSchema()
        try await check.run { try await Self.open(PostgresServer.configuration(connection), .off) }
    }

    @Test func `keeps the contract of a pooler that was not declared as far as that goes`() async throws {
        let database = try await PostgresServer.shared.value.makeDatabase()
        let pooler = try await Self.pooler.value
        let owner = try await Self.open(pooler.configuration(database: database))
        await owner.close()
        var configuration = try await PostgresServer.configuration(
            Self.pooler.value.uri(database: database))
        configuration.maximumConnections = 4
        // PgBouncer refuses session settings, so a configuration that does not declare it fails at once.
        let undeclared = configuration
        await #expect(throws: StoreError.unavailable) { _ = try await Self.open(undeclared) }
    }

    @Test func `commits are heard on a direct connection`() async throws {
        let server = try await PostgresServer.shared.value
        let database = try await server.makeDatabase()
        let pooled = try await Self.pooler.value.configuration(database: database)
        let direct = try PostgresServer.configuration(server.uri(database: database))
        let listening = try await Self.open(pooled, .through(direct))
        let polling = try await Self.open(pooled)
        let stream = AsyncStream.makeStream(of: StoreNotification.self)
        listening.watch { stream.continuation.yield($0) }
        polling.watch { _ in Issue.record("a store without a direct connection was told something") }
        var news = stream.stream.makeAsyncIterator()
        #expect(await news.next() == .following)
        try await polling.commit([.insert(Self.record)])
        var event = await news.next()
        while event == .alive { event = await news.next() }
        #expect(event == .changed([.written(Self.record.id, version: 1)]))
        await polling.close()
        await listening.close()
    }

    @Test func `a pooler that is taken for a direct connection is never followed`() async throws {
        let database = try await PostgresServer.shared.value.makeDatabase()
        let pooled = try await Self.pooler.value.configuration(database: database)
        var heartbeat = PostgresListener.Settings()
        heartbeat.limit = .milliseconds(500)
        let store = try await PostgresRecordStore.open(
            pooled, on: PostgresServer.loop, resolver: PostgresServer.resolver, listening: .through(pooled),
            heartbeat: heartbeat)
        let stream = AsyncStream.makeStream(of: StoreNotification.self)
        store.watch { stream.continuation.yield($0) }
        var news = stream.stream.makeAsyncIterator()
        #expect(await news.next() == .lost)
        await store.close()
    }
}
