package import OAuth
internal import Synchronization

/// Records that last as long as the process: for tests and development.
///
/// Its calls never wait, so they throw conflicts only.
package final class MemoryRecordStore: RecordStore {
    private let contents = Mutex(Contents())

    package init() {}

    package var revalidateAfter: Duration? { nil }

    package func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
        contents.withLock { $0.records[id] }
    }

    package func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord? {
        contents.withLock { contents in
            contents.holders[LookupKey(kind: kind, digest: lookup)].flatMap { contents.records[$0] }
        }
    }

    package func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int
    ) async throws(StoreError) -> [StoredRecord] {
        let records = contents.withLock { $0.records }
        let listed = records.values.filter { record in
            record.id.kind == kind && (tenant.map { $0 == record.id.tenant } ?? true)
                && (after.map { $0 < record.id } ?? true)
        }
        return Array(listed.sorted { $0.id < $1.id }.prefix(limit))
    }

    package func commit(_ changes: [RecordChange]) async throws(StoreError) {
        try contents.withLock { contents throws(StoreError) in
            contents.apply(try CommitPlan(changes, on: contents).outcomes)
        }
    }

    package func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        contents.withLock { contents in
            let expired = contents.records.values.filter { record in record.expires.map { $0 < now } ?? false }
            for record in expired.prefix(limit) { contents.remove(record.id) }
            return min(expired.count, limit)
        }
    }

    package func check() async throws(StoreError) {}

    package func close() async {}

    private struct Contents: CommitBasis {
        private(set) var records: [RecordID: StoredRecord] = [:]
        private(set) var holders: [LookupKey: RecordID] = [:]

        func head(_ id: RecordID) throws(StoreError) -> RecordHead? {
            records[id].map { RecordHead(version: $0.version, lookup: $0.lookup) }
        }

        func holder(of lookup: LookupKey) -> RecordID? { holders[lookup] }

        func members(of tenant: TenantName) throws(StoreError) -> [RecordID: [UInt8]?] {
            records.filter { $0.key.tenant == tenant }.mapValues(\.lookup)
        }

        mutating func apply(_ outcomes: [RecordID: StoredRecord?]) {
            // Removals first: a digest may pass from one record to another.
            for id in outcomes.keys { remove(id) }
            for case (let id, let record?) in outcomes {
                records[id] = record
                if let lookup = record.lookup { holders[LookupKey(kind: id.kind, digest: lookup)] = id }
            }
        }

        mutating func remove(_ id: RecordID) {
            guard let lookup = records.removeValue(forKey: id)?.lookup else { return }
            holders[LookupKey(kind: id.kind, digest: lookup)] = nil
        }
    }
}
