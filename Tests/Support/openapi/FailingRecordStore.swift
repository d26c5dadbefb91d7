package import CredentialStore
package import OAuth
internal import Synchronization

/// A store in memory that fails when it is told to.
package final class FailingRecordStore: RecordStore {
    private let store = MemoryRecordStore()
    private let failure = Mutex<StoreError?>(nil)

    package init() {}

    /// From now on every call fails like this; nil lets them succeed again.
    package func fail(_ error: StoreError?) { failure.withLock { $0 = error } }

    package var revalidateAfter: Duration? { nil }

    package func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
        try failIfTold()
        return try await store.read(id)
    }

    package func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord? {
        try failIfTold()
        return try await store.find(kind, lookup: lookup)
    }

    package func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int
    ) async throws(StoreError) -> [StoredRecord] {
        try failIfTold()
        return try await store.list(kind, tenant: tenant, after: after, limit: limit)
    }

    package func commit(_ changes: [RecordChange]) async throws(StoreError) {
        try failIfTold()
        try await store.commit(changes)
    }

    package func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        try failIfTold()
        return try await store.removeExpired(before: now, limit: limit)
    }

    package func check() async throws(StoreError) {
        try failIfTold()
        try await store.check()
    }

    package func close() async { await store.close() }

    private func failIfTold() throws(StoreError) {
        if let error = failure.withLock({ $0 }) { throw error }
    }
}
