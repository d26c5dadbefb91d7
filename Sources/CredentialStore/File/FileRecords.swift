import Glibc
import OAuth
import Reactor

/// The records in a directory, which a crash never leaves half written.
///
/// - `plain` and `indexed` contain the records, one file each; see `RecordPath`.
/// - `log` contains the log of events; see `FileLog`.
/// - `audit` contains the audit log; see `FileAudit`.
/// - `catalog` lists the records, so that a missing one is noticed; see `Catalog`.
/// - `commits` is the write-ahead log; see `CommitLog`. A commit takes place when it is in that file.
/// - `new` contains drafts of files, which do not count. The drafts of a dead process are removed at the next start.
/// - `reserve` keeps disk space for commits that must succeed on a full disk; see `RoomReserve`.
/// - `master.keys` and `admin.key` are secrets; see `StoreSecret`.
/// - `address` says where the broker listens that uses the store, while it does; no part of the store.
/// - `format` exists in every complete store; the process that uses the store holds a lock on `lock`.
///
/// The changes of a commit are made at once, and become durable with those of other commits at the next checkpoint:
/// before `commits` starts again, before a segment of the log is removed, and when the store is closed. When a store
/// was not closed, opening it makes all changes in `commits` again, in their order, before anything is read.
///
/// Not Sendable: belongs to one `FileRecordStore` and its thread. Calls block.
final class FileRecords {
    let files: StoreFiles
    let writer: FileWriter
    let log: FileLog
    let audit: FileAudit
    let commits: CommitLog
    let catalog: Catalog
    let reserve: RoomReserve
    let report: (FileStoreError) -> Void
    private let lock: OwnedDescriptor
    var index = RecordIndex()
    /// Sorted lists for `list`, because a directory has no order.
    var listings = RecordListings()
    var leases = LeaseTimes()
    /// Whether the files may differ from the state in memory: at the start, and after a call failed without it being
    /// known what the call did.
    var mustRecover = true

    /// Opens the directory, creates the store when the directory is missing or empty, recovers, and reads every file.
    /// - Parameter report: called with each disk error that `commit` throws as a `StoreError`, and with each from which
    ///   it recovered.
    init(
        _ path: String, fault: FileFault?, report: @escaping (FileStoreError) -> Void
    ) throws(FileStoreError) {
        self.report = report
        do throws(SystemError) {
            files = StoreFiles(path: path, directory: try StoreDirectory(path, fault: fault))
        } catch {
            throw .system(path: path, error)
        }
        let directory = files.directory
        writer = FileWriter(directory)
        log = FileLog(files)
        audit = FileAudit(files)
        commits = CommitLog(files)
        catalog = Catalog(files)
        reserve = RoomReserve(directory)
        let (access, names): (StoreDirectory.Access, [String])
        do throws(SystemError) {
            (access, names) = (try directory.access(), try directory.names(in: "."))
        } catch {
            throw .system(path: path, error)
        }
        guard access.belongsToThisUser else { throw .foreignOwner(directory: path) }
        guard !access.isShared else { throw .exposed(directory: path) }
        guard names.contains(StoreFormat.name) || StoreFormat.ownNames.isSuperset(of: names) else {
            throw .notAStore(directory: path)
        }
        do throws(SystemError) {
            lock = try directory.lock(StoreFormat.lockName)
        } catch {
            if error.number == EWOULDBLOCK { throw .alreadyOpen(directory: path) }
            throw .system(path: path, error)
        }
        try start()
    }

    deinit {
        // A child process that is being started has copies of all descriptors for a moment. They would keep the lock
        // after this process has closed its own.
        _ = flock(lock.rawValue, LOCK_UN)
    }

    /// Makes everything durable, so that the next start has nothing to recover. No other call may follow.
    func close() throws(FileStoreError) {
        try recoverIfNeeded()
        try files.onDisk { () throws(SystemError) in try checkpoint() }
    }

    // MARK: Records

    func read(_ id: RecordID) throws(FileStoreError) -> StoredRecord? {
        try recoverIfNeeded()
        return try load(id)
    }

    func find(_ kind: RecordKind, lookup: [UInt8]) throws(FileStoreError) -> StoredRecord? {
        try recoverIfNeeded()
        guard let id = index.holders[LookupKey(kind: kind, digest: lookup)] else { return nil }
        return try load(id)
    }

    func versions(of ids: [RecordID]) throws(FileStoreError) -> [Int64?] {
        try recoverIfNeeded()
        return try ids.map { id throws(FileStoreError) in
            if let entry = index.entries[id] { return entry.version }
            return try load(id)?.version
        }
    }

    func list(
        _ kind: RecordKind, tenant: TenantName?, after: RecordID?, limit: Int
    ) throws(FileStoreError) -> [StoredRecord] {
        try recoverIfNeeded()
        let page = try listings.page(kind, tenant: tenant, after: after, limit: limit) { () throws(FileStoreError) in
            var ids = index.entries.keys.filter { $0.kind == kind && (tenant == nil || tenant == $0.tenant) }
            let listed = if let tenant { [tenant] } else { try tenants(of: kind, in: .plain) }
            for tenant in listed { ids += try identities(of: kind, tenant: tenant, in: .plain) }
            return ids
        }
        return try load(page)
    }

    func commit(_ changes: [RecordChange]) throws(StoreError) {
        try asStore { () throws(FileStoreError) in try recoverIfNeeded() }
        let plan = try CommitPlan(changes, on: self)
        try asStore { () throws(FileStoreError) in try write(plan) }
    }

    func reseal(_ changes: [Reseal]) throws(StoreError) -> Int {
        try asStore { () throws(FileStoreError) in try recoverIfNeeded() }
        let plan = try CommitPlan(resealing: changes, on: self)
        return try asStore { () throws(FileStoreError) in
            try write(plan)
            return plan.outcomes.count + (try resealLog(changes))
        }
    }

    func due(_ kind: RecordKind, before now: Timestamp, limit: Int) throws(FileStoreError) -> [StoredRecord] {
        try recoverIfNeeded()
        return try load(index.due(kind, before: now, limit: limit))
    }

    func nextDue(_ kind: RecordKind) throws(FileStoreError) -> Timestamp? {
        try recoverIfNeeded()
        return index.nextDue(kind)
    }

    func countDue(
        _ kind: RecordKind, tenant: TenantName, after now: Timestamp, limit: Int
    ) throws(FileStoreError) -> Int {
        try recoverIfNeeded()
        return min(limit, index.countDue(kind, tenant: tenant, after: now))
    }

    func lapsed(_ kind: RecordKind, limit: Int) throws(FileStoreError) -> [LapsedLease] {
        try recoverIfNeeded()
        var lapsed: [(lapse: MonotonicInstant, lease: LapsedLease)] = []
        for (id, lease) in index.leases where id.kind == kind {
            guard let lapse = leases.lapse(id, wasGivenUp: lease.wasGivenUp), let version = index.entries[id]?.version
            else { continue }
            lapsed.append((lapse, LapsedLease(id: id, version: version, holder: lease.holder)))
        }
        return lapsed.sorted { ($0.lapse, $0.lease.id) < ($1.lapse, $1.lease.id) }.prefix(limit).map(\.lease)
    }

    // MARK: The log

    func entries(after sequence: Int64, tenant: TenantName?, limit: Int) throws(FileStoreError) -> [PlacedLogEntry] {
        try recoverIfNeeded()
        return try log.entries(after: sequence, tenant: tenant, limit: limit)
    }

    func contains(_ entry: StoredLogEntry) throws(FileStoreError) -> Bool {
        try recoverIfNeeded()
        return try log.contains(entry)
    }

    func logBounds() throws(FileStoreError) -> LogBounds {
        try recoverIfNeeded()
        return log.bounds
    }

    // MARK: The audit log

    func auditChains(
        _ order: AuditOrder, since: Timestamp?, after place: AuditPlace?, limit: Int
    ) throws(FileStoreError) -> AuditPage {
        try recoverIfNeeded()
        return try audit.chains(order, since: since, after: place, limit: limit)
    }

    func auditBlocks(of chain: String) throws(FileStoreError) -> [AuditBlock] {
        try recoverIfNeeded()
        return try audit.blocks(of: chain)
    }

    // MARK: Secrets

    /// The text of a secret's file, without the newline at its end; nil when there is none.
    func secret(_ secret: StoreSecret) throws(FileStoreError) -> String? {
        let name = secret.rawValue
        if let access = try access(secret), access.belongsToAnother || access.isWritableByOthers {
            throw .exposedSecret(path: "\(files.path)/\(name)")
        }
        let read = try files.onDisk { () throws(SystemError) in try files.directory.read(name, limit: 65_536) }
        guard let bytes = read else { return nil }
        guard let text = String(validating: bytes, as: UTF8.self) else { throw files.damage(name, .noSecret) }
        return String(text.prefix { !$0.isNewline })
    }

    /// The access that other users have to a secret's file; nil when there is none.
    func access(_ secret: StoreSecret) throws(FileStoreError) -> FileAccess? {
        try files.onDisk { () throws(SystemError) in try files.directory.access(secret.rawValue) }
    }

    /// Writes the file of a secret that has none, whole and durably, or not at all.
    func keep(_ secret: StoreSecret, _ text: String) throws(FileStoreError) {
        try files.onDisk { () throws(SystemError) in
            try writer.replace(secret.rawValue, with: Array((text + "\n").utf8))
        }
    }

    /// Checks that files can be written, by writing one and removing it, and that the reserve is whole.
    func check() throws(FileStoreError) {
        try recoverIfNeeded()
        _ = try StoreFormat.read(files)
        try files.onDisk { () throws(SystemError) in try reserve.fill() }
        let draft = writer.newDraft()
        do throws(FileStoreError) {
            try files.onDisk { () throws(SystemError) in
                try files.directory.write(draft, [0])
                try files.directory.remove(draft)
            }
        } catch {
            discardDrafts()
            throw error
        }
    }

    func asStore<R>(_ body: () throws(FileStoreError) -> R) throws(StoreError) -> R {
        do throws(FileStoreError) {
            return try body()
        } catch {
            report(error)
            throw error.storeError
        }
    }
}

// MARK: - Reading files

extension FileRecords: CommitBasis {
    var time: Timestamp? { nil }

    func head(_ id: RecordID) throws(StoreError) -> RecordHead? {
        if let entry = index.entries[id] { return RecordHead(version: entry.version, lookup: entry.lookup) }
        return try asStore { () throws(FileStoreError) in try load(id) }
            .map { RecordHead(version: $0.version, lookup: $0.lookup) }
    }

    func record(_ id: RecordID) throws(StoreError) -> StoredRecord? {
        try asStore { () throws(FileStoreError) in try load(id) }
    }

    func holder(of lookup: LookupKey) -> RecordID? { index.holders[lookup] }

    func members(of tenant: TenantName) throws(StoreError) -> [RecordID: [UInt8]?] {
        var members: [RecordID: [UInt8]?] = [:]
        for (id, entry) in index.entries where id.tenant == tenant { members.updateValue(entry.lookup, forKey: id) }
        for kind in RecordKind.allCases {
            let plain = try asStore { () throws(FileStoreError) in
                try identities(of: kind, tenant: tenant, in: .plain)
            }
            for id in plain { members.updateValue(nil, forKey: id) }
        }
        return members
    }

    private func load(_ ids: [RecordID]) throws(FileStoreError) -> [StoredRecord] {
        var records: [StoredRecord] = []
        for id in ids {
            if let record = try load(id) { records.append(record) }
        }
        return records
    }

    func load(_ id: RecordID) throws(FileStoreError) -> StoredRecord? {
        let isIndexed = index.entries[id] != nil
        let record = try load(RecordPath(isIndexed ? .indexed : .plain, id))
        if isIndexed && record == nil { throw files.damage(RecordPath(.indexed, id).text, .missing) }
        return record
    }

    func load(_ place: RecordPath) throws(FileStoreError) -> StoredRecord? {
        guard let bytes = try files.read(place.text, limit: RecordFile.countLimit) else { return nil }
        let record: StoredRecord
        do throws(FramedFile.Failure) {
            record = try RecordFile.decode(bytes, id: place.id)
        } catch {
            throw files.damage(place.text, RecordFile.flaw(error, of: bytes))
        }
        guard RecordPath(for: record) == place else { throw files.damage(place.text, .otherFile) }
        return leases.timed(record)
    }

    /// The tenants that have a directory for records of the kind.
    func tenants(of kind: RecordKind, in tree: RecordPath.Tree) throws(FileStoreError) -> [TenantName] {
        let parent = "\(tree.rawValue)/\(kind.rawValue)"
        return try files.names(in: parent).map { name throws(FileStoreError) in
            guard let tenant = TenantName(stored: name) else { throw files.damage("\(parent)/\(name)", .unknownName) }
            return tenant
        }
    }

    func identities(
        of kind: RecordKind, tenant: TenantName, in tree: RecordPath.Tree
    ) throws(FileStoreError) -> [RecordID] {
        let parent = RecordPath.directory(tree, kind: kind, tenant: tenant)
        return try files.names(in: parent).map { name throws(FileStoreError) in
            guard let key = RecordPath.key(named: name) else { throw files.damage("\(parent)/\(name)", .unknownName) }
            return RecordID(kind, tenant, key: key)
        }
    }
}
