package import OAuth
internal import Reactor

/// Records in files below one directory, for a single process that keeps them on its own disk.
///
/// The directory is this process's alone: another one that opens it is refused. A commit is durable, and whole, when
/// its call returns, and whole or absent after a crash at any moment. All file work is done on one thread of the store's
/// own, one call after the other.
///
/// `.unavailable` stands for a disk that is full or failing: the store goes on as soon as it works again. A file that
/// is not what was written is `.damaged`, with its path in the text.
package actor FileRecordStore: RecordStore {
    private let thread: BlockingThread
    /// Nil before the directory is open, and after it is closed.
    private var files: FileRecords?
    private let report: @Sendable (FileStoreError) -> Void

    nonisolated package var unownedExecutor: UnownedSerialExecutor { unsafe thread.asUnownedSerialExecutor() }

    /// Opens the directory, which is made for this user alone where it is missing; its parent must exist.
    /// - Parameter report: told of each error before it becomes a `StoreError`, which cannot say as much. Called on the
    ///   store's thread; must not block.
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

    nonisolated package func watch(_ hear: @escaping @Sendable (StoreNews) -> Void) {}

    package func entries(
        after sequence: Int64, tenant: TenantName?, limit: Int
    ) throws(StoreError) -> [PlacedLogEntry] {
        try attempt { files throws(FileStoreError) in
            try files.entries(after: sequence, tenant: tenant, limit: limit)
        }
    }

    package func logBounds() throws(StoreError) -> LogBounds {
        try attempt { files throws(FileStoreError) in try files.logBounds() }
    }

    package func trimLog(before time: Timestamp, keeping count: Int, limit: Int) throws(StoreError) -> Int {
        try attempt { files throws(FileStoreError) in
            try files.trimLog(before: time, keeping: count, limit: limit)
        }
    }

    nonisolated package func clock() async throws(StoreError) -> Timestamp? { nil }

    package func check() throws(StoreError) {
        try attempt { files throws(FileStoreError) in try files.check() }
    }

    /// The text of a secret that stands beside the records; nil where there is none.
    /// - Throws: `.exposedSecret` where others than this user could have written it.
    package func secret(_ secret: StoreSecret) throws(FileStoreError) -> String? {
        guard let files else { return nil }
        return try files.secret(secret)
    }

    /// Whether there is a file of that secret which other users can read.
    package func isReadableByOthers(_ secret: StoreSecret) throws(FileStoreError) -> Bool {
        try files?.access(secret)?.isReadableByOthers ?? false
    }

    /// Keeps a secret that this store has made for itself. Call only where `secret` has told that there is none.
    package func keep(_ secret: StoreSecret, _ text: String) throws(FileStoreError) {
        try files?.keep(secret, text)
    }

    /// The thread stays for as long as the store: an actor whose executor has ended never answers, and who comes late is
    /// to be told `.unavailable`.
    package func close() {
        do throws(FileStoreError) {
            try files?.close()
        } catch {
            // Nothing is lost: the next start does what is left to do.
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
