import BrokerTesting
import OAuth

@testable import CredentialStore

/// Everything that can be read from a store.
struct StoreContents: Equatable, CustomStringConvertible {
    var records: [StoredRecord]
    var log: [PlacedLogEntry]
    var bounds: LogBounds
    var due: [StoredRecord]
    var audit: [AuditBlock]

    init(of store: some RecordStore) async throws {
        records = try await store.everything()
        log = try await store.entries(after: 0, tenant: nil, limit: 1000)
        bounds = try await store.logBounds()
        due = try await store.due(.credentials, before: .latest, limit: 1000)
        audit = []
        for chain in try await store.allAuditChains() {
            audit += try await store.auditBlocks(of: chain.end.chain, after: 0, limit: 1000)
        }
    }

    var description: String {
        "\(records.map(\.id.text)), \(log.map(\.entry.key)), \(bounds), \(audit.map(\.end.sequence))"
    }
}
