package import OAuth
import Reactor

/// Records in files below one directory, for a single process with a disk of its own.
///
/// Only one process at a time can open the directory. A commit is complete and durable when its call returns, and
/// complete or absent after a crash at any moment. A thread of the store does all work on files, one call after the
/// other.
///
/// `.unavailable` means that the disk is full or failing; the store works again as soon as the disk does. A file whose
/// content is not what was written is `.damaged`, with its path in the text.
package actor FileRecordStore: RecordStore {
    private let thread: BlockingThread
    /// Nil before the directory is opened and after it is closed.
    private var files: FileRecords?
    private let report: @Sendable (FileStoreError) -> Void

    nonisolated package var unownedExecutor: UnownedSerialExecutor { unsafe thread.asUnownedSerialExecutor() }

    /// Opens the directory. A missing one is created, with access for this user only; its parent must exist.
    /// - Parameter report: called with each error before it becomes a `StoreError`, which says less. Called on the
    ///   store's thread. Must not block.
    package init(
        directory: String, report: @escaping @Sendable (FileStoreError) -> Void = { _ in }
    ) async throws(FileStoreError) {
        try await self.init(directory: directory, fault: nil, report: report)
    }

    init(
        directory: String, fault: FileFault?, report: @escaping @Sendable (FileStoreError) -> Void = { _ in }
    ) async throws(FileStoreError) {
        self.report = report
        do throws(SystemError) {
            thread = try BlockingThread(name: "file store")
        } catch {
            throw .system(path: directory, error)
        }
        try open(directory, fault)
    }

    deinit { thread.shutDown() }

    private func open(_ directory: String, _ fault: FileFault?) throws(FileStoreError) {
        files = try FileRecords(directory, fault: fault, report: report)
    }

    nonisolated package var revalidateAfter: Duration? { nil }

    package func read(_ id: RecordID) throws(StoreError) -> StoredRecord? {
        try attempt { files throws(FileStoreError) in try files.read(id) }
    }

    package func read(_ id: RecordID, with others: [RecordID]) throws(StoreError) -> (
        record: StoredRecord, versions: [Int64?]
    )? {
        guard let record = try read(id) else { return nil }
        return (record, try versions(of: others))
    }

    package func find(_ kind: RecordKind, lookup: [UInt8]) throws(StoreError) -> StoredRecord? {
        try attempt { files throws(FileStoreError) in try files.find(kind, lookup: lookup) }
    }

    package func versions(of ids: [RecordID]) throws(StoreError) -> [Int64?] {
        try attempt { files throws(FileStoreError) in try files.versions(of: ids) }
    }

    package func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int
    ) throws(StoreError) -> [StoredRecord] {
        try attempt { files throws(FileStoreError) in
            try files.list(kind, tenant: tenant, after: after, limit: limit)
        }
    }

    package func commit(_ changes: [RecordChange]) throws(StoreError) {
        guard let files else { throw .unavailable }
        try files.commit(changes)
    }

    package func reseal(_ changes: [Reseal]) throws(StoreError) -> Int {
        guard let files else { throw .unavailable }
        return try files.reseal(changes)
    }

    package func removeExpired(before now: Timestamp, limit: Int) throws(StoreError) -> Int {
        try attempt { files throws(FileStoreError) in try files.removeExpired(before: now, limit: limit) }
    }

    package func due(_ kind: RecordKind, before now: Timestamp, limit: Int) throws(StoreError) -> [StoredRecord] {
        try attempt { files throws(FileStoreError) in try files.due(kind, before: now, limit: limit) }
    }

    package func nextDue(_ kind: RecordKind) throws(StoreError) -> Timestamp? {
        try attempt { files throws(FileStoreError) in try files.nextDue(kind) }
    }

    package func countDue(
        _ kind: RecordKind, tenant: TenantName, after now: Timestamp, limit: Int
    ) throws(StoreError) -> Int {
        try attempt { files throws(FileStoreError) in
            try files.countDue(kind, tenant: tenant, after: now, limit: limit)
        }
    }

    package func lapsed(_ kind: RecordKind, limit: Int) throws(StoreError) -> [LapsedLease] {
        try attempt { files throws(FileStoreError) in try files.lapsed(kind, limit: limit) }
    }

    nonisolated package func watch(_ notify: @escaping @Sendable (StoreNotification) -> Void) {}

    package func entries(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) throws(StoreError) -> [PlacedLogEntry] {
        try attempt { files throws(FileStoreError) in
            try files.entries(after: sequence, tenant: tenant, limit: limit)
        }
    }

    package func contains(_ entry: StoredLogEntry) throws(StoreError) -> Bool {
        try attempt { files throws(FileStoreError) in try files.contains(entry) }
    }

    package func logBounds() throws(StoreError) -> LogBounds {
        try attempt { files throws(FileStoreError) in try files.logBounds() }
    }

    package func trimLog(before time: Timestamp, keeping count: Int, limit: Int) throws(StoreError) -> Int {
        try attempt { files throws(FileStoreError) in
            try files.trimLog(before: time, keeping: count, limit: limit)
        }
    }

    package func auditChains(
        _ order: AuditOrder, since: Timestamp?, after place: AuditPlace?, limit: Int
    ) throws(StoreError) -> AuditPage {
        try attempt { files throws(FileStoreError) in
            try files.auditChains(order, since: since, after: place, limit: limit)
        }
    }

    package func auditBlocks(of chain: String, after first: Int64, limit: Int) throws(StoreError) -> [AuditBlock] {
        let blocks = try attempt { files throws(FileStoreError) in try files.auditBlocks(of: chain) }
        return Array(blocks.lazy.filter { $0.first > first }.prefix(limit))
    }

    package func removeAuditChain(_ chain: String) throws(StoreError) {
        try attempt { files throws(FileStoreError) in try files.removeAuditChain(chain) }
    }

    nonisolated package func clock() async throws(StoreError) -> Timestamp? { nil }

    package func check() throws(StoreError) {
        try attempt { files throws(FileStoreError) in try files.check() }
    }

    /// The text of a secret beside the records; nil when there is none.
    /// - Throws: `.exposedSecret` when another user could have written it.
    package func secret(_ secret: StoreSecret) throws(FileStoreError) -> String? {
        guard let files else { return nil }
        return try files.secret(secret)
    }

    /// Whether the secret has a file that other users can read.
    package func isReadableByOthers(_ secret: StoreSecret) throws(FileStoreError) -> Bool {
        try files?.access(secret)?.isReadableByOthers ?? false
    }

    /// Stores a secret that was generated for this store. To be called only when `secret` has returned nil.
    package func keep(_ secret: StoreSecret, _ text: String) throws(FileStoreError) {
        try files?.keep(secret, text)
    }

    /// Closes the directory. Later calls throw `.unavailable`. The thread runs as long as the store exists, because an
    /// actor whose executor has ended would never answer such calls.
    package func close() {
        do throws(FileStoreError) {
            try files?.close()
        } catch {
            // No commit is lost: the next start recovers.
            report(error)
        }
        files = nil
    }

    private func attempt<R>(_ body: (FileRecords) throws(FileStoreError) -> R) throws(StoreError) -> R {
        guard let files else { throw .unavailable }
        do throws(FileStoreError) {
            return try body(files)
        } catch {
            report(error)
            throw error.storeError
        }
    }
}
