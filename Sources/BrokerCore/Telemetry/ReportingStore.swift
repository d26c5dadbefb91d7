internal import CredentialStore
internal import OAuth

/// Wraps a store, and reports to `StoreReports` whether each call was answered.
struct ReportingStore: RecordStore {
    let inner: any RecordStore
    let reports: StoreReports

    private func reporting<Answer>(
        _ access: StoreReports.Access, _ call: () async throws(StoreError) -> Answer
    ) async throws(StoreError) -> Answer {
        do throws(StoreError) {
            let answer = try await call()
            reports.answered(access)
            return answer
        } catch {
            if error != .unavailable {
                reports.answered(access)
            } else if !Task.isCancelled {
                reports.failed(access)
            }
            throw error
        }
    }

    var revalidateAfter: Duration? { inner.revalidateAfter }

    func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? {
        try await reporting(.read) { () async throws(StoreError) in try await inner.read(id) }
    }

    func read(_ id: RecordID, with others: [RecordID]) async throws(StoreError) -> (
        record: StoredRecord, versions: [Int64?]
    )? {
        try await reporting(.read) { () async throws(StoreError) in try await inner.read(id, with: others) }
    }

    func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord? {
        try await reporting(.read) { () async throws(StoreError) in try await inner.find(kind, lookup: lookup) }
    }

    func versions(of ids: [RecordID]) async throws(StoreError) -> [Int64?] {
        try await reporting(.read) { () async throws(StoreError) in try await inner.versions(of: ids) }
    }

    func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int
    ) async throws(StoreError) -> [StoredRecord] {
        try await reporting(.read) { () async throws(StoreError) in
            try await inner.list(kind, tenant: tenant, after: after, limit: limit)
        }
    }

    func commit(_ changes: [RecordChange]) async throws(StoreError) {
        try await reporting(.write) { () async throws(StoreError) in try await inner.commit(changes) }
    }

    func reseal(_ changes: [Reseal]) async throws(StoreError) -> Int {
        try await reporting(.write) { () async throws(StoreError) in try await inner.reseal(changes) }
    }

    func lapsed(_ kind: RecordKind, limit: Int) async throws(StoreError) -> [LapsedLease] {
        try await reporting(.read) { () async throws(StoreError) in try await inner.lapsed(kind, limit: limit) }
    }

    func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        try await reporting(.write) { () async throws(StoreError) in
            try await inner.removeExpired(before: now, limit: limit)
        }
    }

    func due(_ kind: RecordKind, before now: Timestamp, limit: Int) async throws(StoreError) -> [StoredRecord] {
        try await reporting(.read) { () async throws(StoreError) in
            try await inner.due(kind, before: now, limit: limit)
        }
    }

    func nextDue(_ kind: RecordKind) async throws(StoreError) -> Timestamp? {
        try await reporting(.read) { () async throws(StoreError) in try await inner.nextDue(kind) }
    }

    func countDue(
        _ kind: RecordKind, tenant: TenantName, after now: Timestamp, limit: Int
    ) async throws(StoreError) -> Int {
        try await reporting(.read) { () async throws(StoreError) in
            try await inner.countDue(kind, tenant: tenant, after: now, limit: limit)
        }
    }

    func entries(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) async throws(StoreError) -> [PlacedLogEntry] {
        try await reporting(.read) { () async throws(StoreError) in
            try await inner.entries(after: sequence, tenant: tenant, limit: limit)
        }
    }

    func contains(_ entry: StoredLogEntry) async throws(StoreError) -> Bool {
        try await reporting(.read) { () async throws(StoreError) in try await inner.contains(entry) }
    }

    func logBounds() async throws(StoreError) -> LogBounds {
        try await reporting(.read) { () async throws(StoreError) in try await inner.logBounds() }
    }

    func trimLog(before time: Timestamp, keeping count: Int, limit: Int) async throws(StoreError) -> Int {
        try await reporting(.write) { () async throws(StoreError) in
            try await inner.trimLog(before: time, keeping: count, limit: limit)
        }
    }

    func auditChains(
        _ order: AuditOrder, since: Timestamp?, after place: AuditPlace?, limit: Int
    ) async throws(StoreError) -> AuditPage {
        try await reporting(.read) { () async throws(StoreError) in
            try await inner.auditChains(order, since: since, after: place, limit: limit)
        }
    }

    func auditBlocks(of chain: String, after first: Int64, limit: Int) async throws(StoreError) -> [AuditBlock] {
        try await reporting(.read) { () async throws(StoreError) in
            try await inner.auditBlocks(of: chain, after: first, limit: limit)
        }
    }

    func removeAuditChain(_ chain: String) async throws(StoreError) {
        try await reporting(.write) { () async throws(StoreError) in try await inner.removeAuditChain(chain) }
    }

    func watch(_ notify: @escaping @Sendable (StoreNotification) -> Void) { inner.watch(notify) }

    func clock() async throws(StoreError) -> Timestamp? {
        try await reporting(.read) { () async throws(StoreError) in try await inner.clock() }
    }

    func resumeLog() async throws(StoreError) {
        try await reporting(.read) { () async throws(StoreError) in try await inner.resumeLog() }
    }

    func lineage() async throws(StoreError) -> StoreLineage? {
        try await reporting(.read) { () async throws(StoreError) in try await inner.lineage() }
    }

    func check() async throws(StoreError) {
        try await reporting(.write) { () async throws(StoreError) in try await inner.check() }
    }

    func close() async { await inner.close() }
}
