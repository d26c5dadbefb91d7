import CredentialStore
import OAuth

/// The disk that a replica's journal is on: it outlives the process, takes a while, and can be full.
///
/// Unchecked: everything of a world runs on one thread.
final class JournalDisk: RecordStore, @unchecked Sendable {
    private let world: World
    private let process: SimulatedProcess
    private let records: MemoryRecordStore
    private let isFull: () -> Bool

    init(_ world: World, _ process: SimulatedProcess, _ records: MemoryRecordStore, isFull: @escaping () -> Bool) {
        self.world = world
        self.process = process
        self.records = records
        self.isFull = isFull
    }

    var revalidateAfter: Duration? { nil }

    func commit(_ changes: [RecordChange]) async throws(StoreError) {
        // The process can die before and after.
        await spin()
        if isFull() { throw .unavailable }
        try await records.commit(changes)
        await spin()
    }

    private func spin() async {
        let world = world
        await unsafe withUnsafeContinuation { (continuation: UnsafeContinuation<Void, Never>) in
            world.executor.after(world.faults.chance.span(.microseconds(50), .milliseconds(5)), process) {
                unsafe continuation.resume()
            }
        }
    }

    func read(_ id: RecordID) async throws(StoreError) -> StoredRecord? { try await records.read(id) }

    func find(_ kind: RecordKind, lookup: [UInt8]) async throws(StoreError) -> StoredRecord? {
        try await records.find(kind, lookup: lookup)
    }

    func versions(of ids: [RecordID]) async throws(StoreError) -> [Int64?] { try await records.versions(of: ids) }

    func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int
    ) async throws(StoreError) -> [StoredRecord] {
        try await records.list(kind, tenant: tenant, after: after, limit: limit)
    }

    func lapsed(_ kind: RecordKind, limit: Int) async throws(StoreError) -> [LapsedLease] {
        try await records.lapsed(kind, limit: limit)
    }

    func removeExpired(before now: Timestamp, limit: Int) async throws(StoreError) -> Int {
        try await records.removeExpired(before: now, limit: limit)
    }

    func due(_ kind: RecordKind, before now: Timestamp, limit: Int) async throws(StoreError) -> [StoredRecord] {
        try await records.due(kind, before: now, limit: limit)
    }

    func nextDue(_ kind: RecordKind) async throws(StoreError) -> Timestamp? { try await records.nextDue(kind) }

    func countDue(
        _ kind: RecordKind, tenant: TenantName, after now: Timestamp, limit: Int
    ) async throws(StoreError) -> Int {
        try await records.countDue(kind, tenant: tenant, after: now, limit: limit)
    }

    func entries(after sequence: Int64, tenant: TenantName?, limit: Int) async throws(StoreError) -> [PlacedLogEntry] {
        try await records.entries(after: sequence, tenant: tenant, limit: limit)
    }

    func contains(_ entry: StoredLogEntry) async throws(StoreError) -> Bool { try await records.contains(entry) }

    func logBounds() async throws(StoreError) -> LogBounds { try await records.logBounds() }

    func reseal(_ changes: [Reseal]) async throws(StoreError) -> Int { try await records.reseal(changes) }

    func trimLog(before time: Timestamp, keeping count: Int, limit: Int) async throws(StoreError) -> Int {
        try await records.trimLog(before: time, keeping: count, limit: limit)
    }

    func auditChains(
        _ order: AuditOrder, since: Timestamp?, after place: AuditPlace?, limit: Int
    ) async throws(StoreError) -> AuditPage {
        try await records.auditChains(order, since: since, after: place, limit: limit)
    }

    func auditBlocks(of chain: String, after first: Int64, limit: Int) async throws(StoreError) -> [AuditBlock] {
        try await records.auditBlocks(of: chain, after: first, limit: limit)
    }

    func removeAuditChain(_ chain: String) async throws(StoreError) { try await records.removeAuditChain(chain) }

    func watch(_ notify: @escaping @Sendable (StoreNotification) -> Void) {}

    func clock() async throws(StoreError) -> Timestamp? { nil }

    func check() async throws(StoreError) {}

    func close() async {}
}
