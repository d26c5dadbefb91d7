package import CredentialStore
import OAuth
import Testing

/// What every record store promises, as checks that each of them runs:
///
/// ```swift
/// @Test(arguments: StoreConformance.checks + StoreConformance.durableChecks)
/// func `keeps the contract`(check: StoreConformance) async throws {
///     let directory = StoreFixtureDirectory()
///     try await check.run { try await FileRecordStore(directory: directory.path) }
/// }
/// ```
package struct StoreConformance: Sendable, CustomTestStringConvertible {
    /// Opens the storage of one test: empty at the first call, as it was left at those that follow. Calls overlap in
    /// `sharedChecks` only.
    package typealias Opener = @Sendable () async throws -> any RecordStore

    package let testDescription: String
    private let body: @Sendable (Opener) async throws -> Void

    package func run(_ open: Opener) async throws {
        try await body(open)
    }

    /// For every store.
    package static let checks =
        roundTrips + changes + commits + repeats + queries + dueMarks + leases + log + logShares + reseals + audit
        + races

    /// A check on one open store, which is closed afterwards.
    init(_ name: String, _ body: @escaping @Sendable (any RecordStore) async throws -> Void) {
        testDescription = name
        self.body = { open in
            let store = try await open()
            do {
                try await body(store)
            } catch {
                await store.close()
                throw error
            }
            await store.close()
        }
    }

    /// A check that opens the storage itself, and closes what it opens.
    init(opening name: String, _ body: @escaping @Sendable (Opener) async throws -> Void) {
        testDescription = name
        self.body = body
    }
}

/// Records and names that the checks use.
enum StoreSample {
    static let alpha = TenantName("alpha")!
    static let beta = TenantName("beta")!

    static func digest(_ seed: UInt8) -> [UInt8] { [UInt8](repeating: seed, count: 32) }

    static func record(
        _ kind: RecordKind = .credentials, _ tenant: TenantName = alpha, _ key: String = "k", version: Int64 = 1,
        sealed: [UInt8] = [1, 2, 3], lookup: [UInt8]? = nil, expires: Timestamp? = nil,
        due: Timestamp? = nil
    ) -> StoredRecord {
        StoredRecord(
            id: RecordID(kind, tenant, key: key), version: version, sealed: sealed, lookup: lookup, expires: expires,
            due: due)
    }

    /// - Parameter name: the key, and what tells the sealed octets from those of others.
    static func entry(
        _ name: String, _ tenant: TenantName = alpha, version: Int64 = 1, time: Timestamp = Timestamp(seconds: 1)
    ) -> StoredLogEntry {
        StoredLogEntry(tenant: tenant, key: name, version: version, time: time, sealed: Array("sealed \(name)".utf8))
    }
}

extension RecordStore {
    /// Everything in the store (10,000 records of a kind at most), in the order of the records' identities.
    package func everything() async throws -> [StoredRecord] {
        var all: [StoredRecord] = []
        for kind in RecordKind.allCases {
            all += try await list(kind, tenant: nil, after: nil, limit: 10_000)
        }
        return all.sorted { $0.id < $1.id }
    }

    /// The keys of all entries of the log (100,000 at most), in its order.
    func logKeys(after sequence: Int64 = 0, tenant: TenantName? = nil) async throws -> [String] {
        try await entries(after: sequence, tenant: tenant, limit: 100_000).map(\.entry.key)
    }

    /// The same, each key of a marker with an asterisk.
    func logMarks(after sequence: Int64 = 0, tenant: TenantName? = nil) async throws -> [String] {
        try await entries(after: sequence, tenant: tenant, limit: 100_000).map { placed in
            placed.entry.key + (placed.entry.isMarker ? "*" : "")
        }
    }

    /// Whether the commit was refused as a conflict; fails for any other error.
    func conflicts(_ changes: [RecordChange]) async throws -> Bool {
        do {
            try await commit(changes)
            return false
        } catch {
            if error == .conflict { return true }
            throw error
        }
    }
}
