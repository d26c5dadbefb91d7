import BrokerTesting
import OAuth
import Postgres
import Reactor
import Testing

@testable import CredentialStore

/// Leases in a rolling update: a build that does not know `lease_state` writes only `lease_holder` and `lease_expires`.
/// The other columns keep the values that a replica of this build wrote for the lease before.
@Suite struct `A lease of an older build` {
    private static let record = StoredRecord(
        id: RecordID(.credentials, TenantName("alpha")!, key: "k"), version: 1, sealed: [1])
    private static let clock = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

    /// The statements of such a build, with the record's current version.
    private struct OlderBuild {
        let pool: PostgresPool

        private func run(_ assignments: String, where condition: String) async throws -> Bool {
            let result = try await pool.execute(
                PostgresStatement(
                    trusted: """
                        UPDATE token_broker_records SET \(assignments)
                        WHERE kind = 'credentials' AND tenant = 'alpha' AND key = 'k' AND version = 1
                            AND (\(condition)) RETURNING 1
                        """), until: .after(.seconds(60)))
            return result.first != nil
        }

        func claim(over holder: String) async throws -> Bool {
            try await run(
                "lease_holder = 'older', lease_expires = \(clock) + 60000",
                where: "lease_holder = '\(holder)' AND (lease_expires IS NULL OR lease_expires <= \(clock))")
        }

        func giveUp() async throws -> Bool {
            try await run("lease_expires = NULL", where: "lease_holder = 'older'")
        }

        func release() async throws -> Bool {
            try await run("lease_holder = NULL, lease_expires = NULL", where: "lease_holder = 'older'")
        }

        /// The state that a kill leaves.
        func die() async throws -> Bool {
            try await run("lease_expires = \(clock) - 1", where: "lease_holder = 'older'")
        }

        /// Moves the first use under the lease back by an hour.
        func age() async throws -> Bool {
            try await run("lease_first_use = lease_first_use - 3600000", where: "lease_first_use IS NOT NULL")
        }
    }

    /// How a holder of this build ended its lease, and the resulting columns.
    private static let endings = [
        LeaseRelease(.unknown(recovery: .zero)), LeaseRelease(.unknown(recovery: nil)), LeaseRelease(.open),
        LeaseRelease(.settled, failure: LeaseFailure(code: "network_error", remaining: .seconds(30))),
        LeaseRelease(
            .unknown(recovery: nil), failure: LeaseFailure(code: "network_error", remaining: .seconds(30))),
    ]

    private static func claim(_ holder: String, over replaced: String?) -> RecordChange {
        .claim(
            record.id, version: 1,
            LeaseClaim(holder: holder, replacing: replaced, for: .seconds(60), marksUse: true))
    }

    /// A record whose lease an older build has taken over from this one.
    private static func run(
        _ ending: LeaseRelease, _ body: (PostgresRecordStore, OlderBuild) async throws -> Void
    ) async throws {
        let configuration = try PostgresServer.configuration(
            try await PostgresServer.shared.value.connectionToNewSchema())
        let store = try await PostgresRecordStore.open(
            configuration, on: PostgresServer.loop, resolver: PostgresServer.resolver)
        let older = OlderBuild(pool: PostgresServer.pool(configuration))
        try await store.commit([.insert(record)])
        try await store.commit([
            .claim(
                record.id, version: 1,
                LeaseClaim(holder: "newer", for: .seconds(60), marksUse: true, isOpen: true))
        ])
        #expect(try await older.age())
        try await store.commit([.release(record.id, version: 1, holder: "newer", ending)])
        #expect(try await older.claim(over: "newer"))
        try await body(store, older)
        await older.pool.close()
        await store.close()
    }

    private static func lease(_ store: PostgresRecordStore) async throws -> Lease? {
        try await store.read(record.id)?.lease
    }

    /// The lease has a holder and an expiry, and no other members.
    private static func expectPlain(_ lease: Lease?, wasGivenUp: Bool = false) {
        #expect(lease?.holder == "older")
        #expect(lease?.wasGivenUp == wasGivenUp)
        #expect(lease?.sinceFirstUse == nil)
        #expect(lease?.isOpen == false && lease?.isSettled == false)
        #expect(lease?.failure == nil)
    }

    // H089
    @Test(arguments: endings)
    func `stands, whatever the row says of the lease before`(ending: LeaseRelease) async throws {
        try await Self.run(ending) { store, _ in
            let lease = try await Self.lease(store)
            Self.expectPlain(lease)
            #expect(lease?.hasRunOut == false)
            await #expect(throws: StoreError.conflict) { try await store.commit([Self.claim("next", over: "older")]) }
            var other = Self.record
            other.version = 2
            await #expect(throws: StoreError.conflict) {
                try await store.commit([.replace(other, version: 1, lease: .fenced(for: "next"))])
            }
            Self.expectPlain(try await Self.lease(store))
        }
    }

    @Test(arguments: endings, [true, false])
    func `is taken over once it is given up or has run out, with a first use of its own`(
        ending: LeaseRelease, isGivenUp: Bool
    ) async throws {
        try await Self.run(ending) { store, older in
            #expect(isGivenUp ? try await older.giveUp() : try await older.die())
            let lease = try await Self.lease(store)
            Self.expectPlain(lease, wasGivenUp: isGivenUp)
            #expect(lease?.hasRunOut == true)
            try await store.commit([Self.claim("next", over: "older")])
            let next = try await Self.lease(store)
            #expect(next?.holder == "next" && next?.hasRunOut == false)
            // The older build may have used the content before, which is not known.
            #expect(try #require(next?.sinceFirstUse) < .seconds(60))
            #expect(next?.isOpen == false && next?.isSettled == false && next?.failure == nil)
        }
    }

    @Test(arguments: endings)
    func `that is settled leaves nothing of the lease before it`(ending: LeaseRelease) async throws {
        try await Self.run(ending) { store, older in
            #expect(try await older.release())
            #expect(try await Self.lease(store) == nil)
            try await store.commit([Self.claim("next", over: nil)])
            let next = try await Self.lease(store)
            #expect(next?.holder == "next" && next?.hasRunOut == false)
            #expect(try #require(next?.sinceFirstUse) < .seconds(60))
            #expect(next?.isOpen == false && next?.isSettled == false && next?.failure == nil)
        }
    }
}
