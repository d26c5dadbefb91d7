package import CredentialStore
package import OAuth

/// A store that stands before another one: it passes every call on that `admit` lets through, and a test's store says
/// only what it does differently.
package protocol ForwardingStore: RecordStore {
    var inner: any RecordStore { get }

    /// Called before each call that the store does not define itself, `close` excepted.
    func admit() throws(StoreError)
}

extension ForwardingStore {
    package func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
        try admit()
        return try await inner.read(id)
    }

    /// One call, as the store counts and disturbs it: that for the record.
    package func read(_ id: RecordID, with others: [RecordID]) async throws(StoreError) -> (
        record: StoredRecord, versions: [Int64?]
    )? {
        guard let record = try await read(id) else { return nil }
        return (record, try await inner.versions(of: others))
    }

    package func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord? {
        try admit()
        return try await inner.find(kind, lookup: lookup)
    }

    package func versions(of ids: [RecordID]) async throws(StoreError) -> [Int64?] {
        try admit()
        return try await inner.versions(of: ids)
    }

    package func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int
    ) async throws(StoreError) -> [StoredRecord] {
        try admit()
        return try await inner.list(kind, tenant: tenant, after: after, limit: limit)
    }

    package func commit(_ changes: [RecordChange]) async throws(StoreError) {
        try admit()
        try await inner.commit(changes)
    }

    package func reseal(_ changes: [Reseal]) async throws(StoreError) -> Int {
        try admit()
        return try await inner.reseal(changes)
    }

    package func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        try admit()
        return try await inner.removeExpired(before: now, limit: limit)
    }

    package func due(_ kind: RecordKind, before now: Timestamp, limit: Int) async throws(StoreError) -> [StoredRecord] {
        try admit()
        return try await inner.due(kind, before: now, limit: limit)
    }

    package func nextDue(_ kind: RecordKind) async throws(StoreError) -> Timestamp? {
        try admit()
        return try await inner.nextDue(kind)
    }

    package func countDue(
        _ kind: RecordKind, tenant: TenantName, after now: Timestamp, limit: Int
    ) async throws(StoreError) -> Int {
        try admit()
        return try await inner.countDue(kind, tenant: tenant, after: now, limit: limit)
    }

    package func lapsed(_ kind: RecordKind, limit: Int) async throws(StoreError) -> [LapsedLease] {
        try admit()
        return try await inner.lapsed(kind, limit: limit)
    }

    package func watch(_ notify: @escaping @Sendable (StoreNotification) -> Void) { inner.watch(notify) }

    package func entries(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) async throws(StoreError) -> [PlacedLogEntry] {
        try admit()
        return try await inner.entries(after: sequence, tenant: tenant, limit: limit)
    }

    package func contains(_ entry: StoredLogEntry) async throws(StoreError) -> Bool {
        try admit()
        return try await inner.contains(entry)
    }

    package func logBounds() async throws(StoreError) -> LogBounds {
        try admit()
        return try await inner.logBounds()
    }

    package func trimLog(before time: Timestamp, keeping count: Int, limit: Int) async throws(StoreError) -> Int {
        try admit()
        return try await inner.trimLog(before: time, keeping: count, limit: limit)
    }

    package func auditChains(
        _ order: AuditOrder, since: Timestamp?, after place: AuditPlace?, limit: Int
    ) async throws(StoreError) -> AuditPage {
        try admit()
        return try await inner.auditChains(order, since: since, after: place, limit: limit)
    }

    package func auditBlocks(
        of chain: String, after first: Int64, limit: Int
    ) async throws(StoreError) -> [AuditBlock] {
        try admit()
        return try await inner.auditBlocks(of: chain, after: first, limit: limit)
    }

    package func removeAuditChain(_ chain: String) async throws(StoreError) {
        try admit()
        try await inner.removeAuditChain(chain)
    }

    package func resumeLog() async throws(StoreError) {
        try admit()
        try await inner.resumeLog()
    }

    package func lineage() async throws(StoreError) -> StoreLineage? {
        try admit()
        return try await inner.lineage()
    }

    package func clock() async throws(StoreError) -> Timestamp? {
        try admit()
        return try await inner.clock()
    }

    package func check() async throws(StoreError) {
        try admit()
        try await inner.check()
    }

    package func close() async { await inner.close() }
}
