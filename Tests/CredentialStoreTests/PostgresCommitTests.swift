import BrokerTesting
import OAuth
import Postgres
import Reactor
import Testing

@testable import CredentialStore

@Suite struct `PostgreSQL commit` {
    private static let alpha = TenantName("alpha")!
    private static let tenant = StoredRecord(id: RecordID(.tenant, alpha), version: 1, sealed: [0])

    private static func record(_ key: String, version: Int64 = 1, due: Timestamp? = nil) -> StoredRecord {
        StoredRecord(
            id: RecordID(.credentials, alpha, key: key), version: version, sealed: Array("\(key) \(version)".utf8),
            due: due)
    }

    private static func entry(_ key: String) -> StoredLogEntry {
        StoredLogEntry(
            tenant: alpha, key: key, version: 1, time: Timestamp(seconds: 1), sealed: Array("sealed \(key)".utf8))
    }

    private static func entries(_ count: Int) -> [RecordChange] {
        (0..<count).map { .append(entry("\($0)")) }
    }

    private static func keys(_ store: PostgresRecordStore) async throws -> [String] {
        try await store.entries(after: 0, tenant: nil, limit: 1000).map(\.entry.key)
    }

    /// A commit on the records `a`, `b` (with a due mark), `l` (with a lease) and that of the tenant, all of version 1;
    /// and the number of round trips that it takes.
    struct Shape: Sendable, CustomTestStringConvertible {
        let testDescription: String
        let changes: [RecordChange]
        let roundTrips: Int
        /// Another commit, after which this commit is a conflict.
        let conflicting: [RecordChange]
    }

    static let shapes: [Shape] = {
        var shapes: [Shape] = []
        let requirement = RecordChange.require(tenant.id)
        let replacement = RecordChange.replace(record("a", version: 2), version: 1)
        let stale = RecordChange.replace(record("a", version: 4), version: 3)
        let absent = RecordChange.require(RecordID(.tenant, TenantName("beta")!))
        let singles: [(String, RecordChange, conflicting: RecordChange)] = [
            ("an insertion", .insert(record("c")), .insert(record("a"))), ("a replacement", replacement, stale),
            ("a removal", .remove(record("a").id, version: 1), .remove(record("a").id, version: 2)),
            ("a settlement", .settleDue(record("b").id, version: 1), .settleDue(record("a").id, version: 1)),
            (
                "a move of a due mark",
                .settleDue(record("b").id, version: 1, due: Timestamp(seconds: 1), next: Timestamp(seconds: 2)),
                .settleDue(record("b").id, version: 1, due: Timestamp(seconds: 2), next: Timestamp(seconds: 3))
            ),
            (
                "a claim", .claim(record("a").id, version: 1, holder: "x", replacing: nil, for: .seconds(60)),
                .claim(record("a").id, version: 1, holder: "x", replacing: "y", for: .seconds(60))
            ),
            (
                "a release", .release(record("l").id, version: 1, holder: "h", isSettled: true),
                .release(record("l").id, version: 1, holder: "x", isSettled: true)
            ),
            (
                "an unsettled release", .release(record("l").id, version: 1, holder: "h", isSettled: false),
                .release(record("a").id, version: 1, holder: "h", isSettled: false)
            ),
            (
                "a fenced replacement", .replace(record("l", version: 2), version: 1, lease: .fenced(for: "h")),
                .replace(record("l", version: 2), version: 1, lease: .fenced(for: "x"))
            ),
            (
                "a replacement that leaves the lease", .replace(record("l", version: 2), version: 1, lease: .kept),
                .replace(record("l", version: 3), version: 2, lease: .kept)
            ),
        ]
        for (name, change, conflicting) in singles {
            for (suffix, rest) in [
                ("", []), (" with an entry", entries(1)), (" with four entries", entries(4)),
                (" under a tenant", [requirement]), (" under a tenant with two entries", [requirement] + entries(2)),
            ] {
                shapes.append(
                    Shape(
                        testDescription: name + suffix, changes: [change] + rest, roundTrips: 1,
                        conflicting: [conflicting] + rest))
            }
            shapes.append(
                Shape(
                    testDescription: name + " under a tenant that is absent", changes: [change], roundTrips: 1,
                    conflicting: [change, absent] + entries(1)))
            shapes.append(
                Shape(
                    testDescription: name + " with five entries", changes: [change] + entries(5), roundTrips: 2,
                    conflicting: [conflicting] + entries(5)))
        }
        shapes.append(
            Shape(testDescription: "a requirement", changes: [requirement], roundTrips: 1, conflicting: [absent]))
        shapes.append(
            Shape(
                testDescription: "two records", changes: [replacement, .insert(record("c"))] + entries(2),
                roundTrips: 2, conflicting: [replacement, .insert(record("b"))] + entries(2)))
        shapes.append(
            Shape(
                testDescription: "a replacement that requires another record",
                changes: [replacement, .require(record("b").id)], roundTrips: 2,
                conflicting: [replacement, .require(record("c").id)]))
        return shapes
    }()

    /// A commit that cannot be in conflict.
    static let unconditional = [
        Shape(testDescription: "one entry", changes: entries(1), roundTrips: 1, conflicting: []),
        Shape(testDescription: "twenty entries", changes: entries(20), roundTrips: 1, conflicting: []),
        Shape(
            testDescription: "a tenant's removal", changes: [.removeAll(alpha)] + entries(2), roundTrips: 1,
            conflicting: []),
    ]

    @Test(arguments: shapes + unconditional, [false, true])
    func `takes as few round trips as it can, and a conflict changes nothing and is no error`(
        shape: Shape, usesPooler: Bool
    ) async throws {
        let server = try await PostgresServer.shared.value
        let relay = try PostgresRelay(to: server.port, on: PostgresServer.loop)
        await relay.start()
        let database = try await server.makeDatabase()
        var configuration = try PostgresServer.configuration(server.uri(database: database, port: relay.port))
        configuration.maximumConnections = 1
        configuration.usesPooler = usesPooler
        let store = try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver)
        let start = [Self.tenant, Self.record("a"), Self.record("b", due: Timestamp(seconds: 1)), Self.record("l")]
        for record in start { try await store.commit([.insert(record)]) }
        try await store.commit([
            .claim(Self.record("l").id, version: 1, holder: "h", replacing: nil, for: .seconds(60))
        ])
        let errors = try server.errorCount(database: database)
        if !shape.conflicting.isEmpty {
            #expect(await #expect(throws: StoreError.self) { try await store.commit(shape.conflicting) } == .conflict)
            #expect(try await Set(store.everything().map(\.id)) == Set(start.map(\.id)))
            #expect(try await store.read(Self.record("a").id) == Self.record("a"))
            #expect(try await Self.keys(store) == [])
        }
        let before = await relay.roundTrips
        try await store.commit(shape.changes)
        #expect(await relay.roundTrips == before + shape.roundTrips)
        #expect(try server.errorCount(database: database) == errors)
        let expected = shape.changes.compactMap { change in
            if case .append(let entry) = change { return entry.key }
            return nil
        }
        #expect(try await Self.keys(store) == expected)
        await store.close()
        await relay.close()
    }

    @Test func `many who replace the same record under a tenant do so one after the other`() async throws {
        let server = try await PostgresServer.shared.value
        var configuration = try PostgresServer.configuration(await server.connectionToNewSchema())
        configuration.maximumConnections = 8
        let store = try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver)
        try await store.commit([.insert(Self.tenant), .insert(Self.record("a"))])
        let done = try await withThrowingTaskGroup(of: Int.self) { group in
            for worker in 0..<8 {
                group.addTask {
                    var done = 0
                    for round in 0..<25 {
                        guard let found = try await store.read(Self.record("a").id) else { continue }
                        let next = Self.record("a", version: found.version + 1)
                        do {
                            try await store.commit([
                                .require(Self.tenant.id), .replace(next, version: found.version),
                                .append(Self.entry("\(worker) \(round)")),
                            ])
                            done += 1
                        } catch StoreError.conflict {
                            continue
                        }
                    }
                    return done
                }
            }
            return try await group.reduce(0, +)
        }
        #expect(done > 0)
        #expect(try await store.read(Self.record("a").id)?.version == Int64(done) + 1)
        #expect(try await Self.keys(store).count == done)
        await store.close()
    }

    @Test func `what is written under a tenant that is being removed goes with it or is a conflict`() async throws {
        let server = try await PostgresServer.shared.value
        var configuration = try PostgresServer.configuration(await server.connectionToNewSchema())
        configuration.maximumConnections = 6
        let store = try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver)
        for round in 0..<20 {
            try await store.commit([.insert(Self.tenant)])
            await withTaskGroup(of: Void.self) { group in
                for worker in 0..<5 {
                    group.addTask {
                        do {
                            try await store.commit([
                                .require(Self.tenant.id), .insert(Self.record("\(round)-\(worker)")),
                                .append(Self.entry("e")),
                            ])
                        } catch {
                            #expect(error as? StoreError == .conflict)
                        }
                    }
                }
                group.addTask {
                    await #expect(throws: Never.self) { try await store.commit([.removeAll(Self.alpha)]) }
                }
            }
            #expect(try await store.everything() == [])
            #expect(try await Self.keys(store) == [])
        }
        await store.close()
    }
}
