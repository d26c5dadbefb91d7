import BrokerTesting
import Cryptography
import FoundationEssentials
import OAuth
import Testing

@testable import CredentialStore

/// Records, commits and helpers for suites that test the file store under faults.
protocol FileStoreFixture {}

extension FileStoreFixture {
    static var alpha: TenantName { TenantName("alpha")! }
    static var beta: TenantName { TenantName("beta")! }

    static func record(
        _ kind: RecordKind, _ tenant: TenantName, _ key: String, version: Int64 = 1, sealed: [UInt8] = [1],
        lookup: UInt8? = nil, expires: Timestamp? = nil, due: Timestamp? = nil
    ) -> StoredRecord {
        StoredRecord(
            id: RecordID(kind, tenant, key: key), version: version, sealed: sealed,
            lookup: lookup.map { SHA256.digest([$0]) }, expires: expires, due: due)
    }

    static func entry(_ key: String, _ tenant: TenantName = alpha, count: Int = 3) -> RecordChange {
        .append(
            StoredLogEntry(
                tenant: tenant, key: key, version: 1, time: Timestamp(seconds: 1),
                sealed: [UInt8](repeating: 5, count: count)))
    }

    static var before: [StoredRecord] {
        [
            record(.tenant, alpha, ""), record(.credentials, alpha, "a"), record(.credentials, alpha, "b"),
            record(.apiKey, alpha, "key", lookup: 1), record(.login, alpha, "login", lookup: 2, expires: .latest),
            record(.credentials, beta, "a"), record(.credentials, beta, "due", due: Timestamp(seconds: 1)),
        ]
    }

    /// The commits of `open`.
    static var beginning: [[RecordChange]] {
        [
            before.map { .insert($0) } + [.audit(.sample("old-1", 1))], [entry("first"), entry("second", beta)],
            [entry("third")],
        ]
    }

    /// A new store with the records and entries of `beginning`.
    func open(_ directory: StoreFixtureDirectory, _ disk: StandInDisk) async throws -> FileRecordStore {
        let store = try await FileRecordStore(directory: directory.path, fault: disk.fault)
        for changes in Self.beginning { try await store.commit(changes) }
        return store
    }

    /// Whether the commit reported success.
    func succeeds(_ store: FileRecordStore, _ changes: [RecordChange]) async throws -> Bool {
        do throws(StoreError) {
            try await store.commit(changes)
            return true
        } catch {
            #expect(error == .unavailable)
            return false
        }
    }

    /// The contents of the store after another start.
    func reopened(_ directory: StoreFixtureDirectory) async throws -> StoreContents {
        let store = try await FileRecordStore(directory: directory.path)
        let contents = try await StoreContents(of: store)
        #expect(try FileManager.default.contentsOfDirectory(atPath: directory.path + "/new") == [])
        await store.close()
        return contents
    }
}
