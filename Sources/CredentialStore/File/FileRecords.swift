internal import Glibc
internal import OAuth
internal import Reactor

/// The records in a directory, and how they come to be there without ever being half there.
///
/// - `plain` and `indexed` hold the records, one file each; see `RecordPath`.
/// - `log` holds the log; see `FileLog`.
/// - `catalog` says which records there are, so that one that is missing is noticed; see `Catalog`.
/// - `commits` holds what has been written lately, all of it; see `CommitLog`. A commit takes place when it stands there.
/// - `new` holds files in the making. They do not count yet; what a dead process left there is removed.
/// - `master.keys` and `admin.key` are no records; see `StoreSecret`.
/// - `format` stands in every complete store; `lock` is held by the process that uses it.
///
/// The steps of a commit are made at once and become durable later, together with those of others: before `commits`
/// begins again, before a segment of the log goes, and when the store is closed. Whoever opens a store that was not closed
/// makes them again, all of them in their order, before anything is read.
///
/// Not Sendable: belongs to one `FileRecordStore` and its thread. Calls block.
final class FileRecords {
    let path: String
    let directory: StoreDirectory
    private let lock: OwnedDescriptor
    private let report: (FileStoreError) -> Void
    let log: FileLog
    let commits: CommitLog
    let catalog: Catalog
    var index = RecordIndex()
    /// A directory has no order in which a list could go on.
    var listings = RecordListings()
    private var leases = LeaseTimes()
    /// The directories that are known to exist, those of tenants and those above them.
    var knownDirectories: Set<String> = []
    /// What was written to that only the steps in `commits` make durable so far.
    var unsynchronizedFiles: Set<String> = []
    var unsynchronizedDirectories: Set<String> = []
    private var lastNewNumber: UInt64 = 0
    /// Whether the files may differ from what this object knows of them: at the start, and after a call failed at a
    /// point where nobody can say what it did.
    var mustRecover = true

    /// Opens the directory, makes it where it is missing, finishes what a process that died has left, and reads every file.
    /// - Parameter report: told of each error of the disk that `commit` throws as a `StoreError`, and of those that it could
    ///   make good.
    init(
        _ path: String, fault: FileFault?, report: @escaping (FileStoreError) -> Void
    ) throws(FileStoreError) {
        self.path = path
        self.report = report
        do throws(SystemError) {
            directory = try StoreDirectory(path, fault: fault)
        } catch {
            throw .system(path: path, error)
        }
        log = FileLog(directory, path: path)
        commits = CommitLog(directory)
        catalog = Catalog(directory)
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
        // A child process that is being started has a copy of every descriptor for a moment, which would keep the lock
        // past the close of ours.
        _ = flock(lock.rawValue, LOCK_UN)
    }

    /// Makes everything durable, so that the next start finds nothing to do again. To be called last.
    func close() throws(FileStoreError) {
        try recoverIfNeeded()
        try settle()
    }

    // MARK: What a store does

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
        let page = try listings.page(kind, tenant, after: after, limit: limit) { () throws(FileStoreError) in
            var ids = index.entries.keys.filter { $0.kind == kind && (tenant == nil || tenant == $0.tenant) }
            let listed = if let tenant { [tenant] } else { try tenants(.plain, kind) }
            for tenant in listed { ids += try identities(.plain, kind, tenant) }
            return ids
        }
        var records: [StoredRecord] = []
        for id in page {
            if let record = try load(id) { records.append(record) }
        }
        return records
    }

    func commit(_ changes: [RecordChange]) throws(StoreError) {
        try asStore { () throws(FileStoreError) in try recoverIfNeeded() }
        let plan = try CommitPlan(changes, on: self)
        try asStore { () throws(FileStoreError) in try write(plan) }
    }

    func due(_ kind: RecordKind, before now: Timestamp, limit: Int) throws(FileStoreError) -> [StoredRecord] {
        try recoverIfNeeded()
        var records: [StoredRecord] = []
        for id in index.due(kind, before: now, limit: limit) {
            if let record = try load(id) { records.append(record) }
        }
        return records
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

    func entries(after sequence: Int64, tenant: TenantName?, limit: Int) throws(FileStoreError) -> [PlacedLogEntry] {
        try recoverIfNeeded()
        return try log.entries(after: sequence, tenant: tenant, limit: limit)
    }

    func logBounds() throws(FileStoreError) -> LogBounds {
        try recoverIfNeeded()
        return log.bounds
    }

    func trimLog(before time: Timestamp, keeping count: Int, limit: Int) throws(FileStoreError) -> Int {
        try recoverIfNeeded()
        let (removed, state) = try log.trimming(before: time, keeping: count, limit: limit)
        if state == log.state { return 0 }
        try carryOut { () throws(FileStoreError) in
            [try step(to: FileLog.statePath, state.encode())]
        } finishing: { () throws(SystemError) in
            try leaveLog(to: state)
        }
        return removed
    }

    func removeExpired(before now: Timestamp, limit: Int) throws(FileStoreError) -> Int {
        try recoverIfNeeded()
        let expired = index.expired(before: now, limit: limit)
        try carryOut { () throws(FileStoreError) in
            let steps = expired.map { Step(recorded: .remove(RecordPath(.indexed, $0).text)) }
            return try steps + catalogSteps(removing: expired)
        }
        for id in expired {
            index.remove(id)
            leases.note(id, nil)
            listings.note(id, exists: false)
        }
        return expired.count
    }

    /// The text of a secret's file, without the newline at its end; nil where there is none.
    func secret(_ secret: StoreSecret) throws(FileStoreError) -> String? {
        let name = secret.rawValue
        if let access = try access(secret), access.belongsToAnother || access.isWritableByOthers {
            throw .exposedSecret(path: "\(path)/\(name)")
        }
        guard let bytes = try onDisk({ () throws(SystemError) in try directory.read(name, limit: 65_536) }) else {
            return nil
        }
        guard let text = String(validating: bytes, as: UTF8.self) else { throw damage(name, .noSecret) }
        return String(text.prefix { !$0.isNewline })
    }

    /// What other users may do with a secret's file; nil where there is none.
    func access(_ secret: StoreSecret) throws(FileStoreError) -> FileAccess? {
        try onDisk { () throws(SystemError) in try directory.access(secret.rawValue) }
    }

    /// Writes a secret's file where there is none: whole and durable, or not at all.
    func keep(_ secret: StoreSecret, _ text: String) throws(FileStoreError) {
        try onDisk { () throws(SystemError) in try place(Array((text + "\n").utf8), at: secret.rawValue) }
    }

    /// Writes a file and removes it.
    func check() throws(FileStoreError) {
        try recoverIfNeeded()
        _ = try StoreFormat.read(directory, path)
        let path = newPath()
        do throws(FileStoreError) {
            try onDisk { () throws(SystemError) in
                try directory.write(path, [0])
                try directory.remove(path)
            }
        } catch {
            discardNew()
            throw error
        }
    }
}

// MARK: - Writing

extension FileRecords {
    /// What is written down about a step, and how it is made: a record's file is finished, under another name, before
    /// anything happens, for that is what a full disk refuses most.
    private struct Step {
        let recorded: FileChange
        let made: FileChange

        init(recorded: FileChange, made: FileChange? = nil) {
            self.recorded = recorded
            self.made = made ?? recorded
        }
    }

    private func write(_ plan: CommitPlan) throws(FileStoreError) {
        let addition = try log.addition(of: plan.entries)
        let state = log.state(cutting: plan.clearedTenants)
        if catalog.isLong { try renewCatalog() }
        try carryOut { () throws(FileStoreError) in
            let segment = addition.flatMap { $0.offset == 0 ? $0.first : nil }
            var steps = try prepare(plan.outcomes, beginning: segment)
            if state != log.state { steps.append(try step(to: FileLog.statePath, state.encode())) }
            if let addition { steps.append(try step(for: addition)) }
            return steps
        } finishing: { () throws(SystemError) in
            if let addition { log.didWrite(addition) }
            if state != log.state { try leaveLog(to: state) }
        }
        for id in plan.outcomes.keys { index.remove(id) }
        for case let record? in plan.outcomes.values where RecordPath(for: record).tree == .indexed {
            let isFree = index.insert(record)
            precondition(isFree, "a commit was planned with a look-up digest that is taken")
        }
        for (id, record) in plan.outcomes {
            leases.note(id, record, recovery: plan.recoveries[id])
            listings.note(id, exists: record != nil)
        }
    }

    /// Writes all of the records that needs space, and gives the steps that remain.
    /// - Parameter segment: the first sequence of the segment of the log that begins with the commit.
    private func prepare(
        _ outcomes: [RecordID: StoredRecord?], beginning segment: Int64?
    ) throws(FileStoreError) -> [Step] {
        var steps: [Step] = []
        var added: [RecordID] = []
        var removed: [RecordID] = []
        for (id, outcome) in outcomes.sorted(by: { $0.key < $1.key }) {
            let current = try location(of: id)
            var target: RecordPath?
            if let record = outcome {
                let place = RecordPath(for: record)
                try onDisk { () throws(SystemError) in try makeDirectory(place.directory) }
                let bytes = RecordFile.encode(record)
                guard bytes.count <= RecordFile.countLimit else {
                    throw .system(path: path, SystemError("write", number: EFBIG))
                }
                steps.append(try step(to: place.text, bytes))
                target = place
            }
            if let current, current != target { steps.append(Step(recorded: .remove(current.text))) }
            if current == nil, target != nil { added.append(id) }
            if current != nil, target == nil { removed.append(id) }
        }
        return try steps + catalogSteps(adding: added, removing: removed, segment: segment)
    }

    private func catalogSteps(
        adding added: [RecordID] = [], removing removed: [RecordID] = [], segment: Int64? = nil
    ) throws(FileStoreError) -> [Step] {
        let change = try onDisk { () throws(SystemError) in
            try catalog.addition(adding: added, removing: removed, segment: segment)
        }
        return change.map { [Step(recorded: $0)] } ?? []
    }

    private func step(to target: String, _ bytes: [UInt8]) throws(FileStoreError) -> Step {
        let source = newPath()
        try onDisk { () throws(SystemError) in try directory.writeForNow(source, bytes) }
        return Step(recorded: .write(to: target, bytes), made: .place(from: source, to: target))
    }

    private func step(for addition: FileLog.Addition) throws(FileStoreError) -> Step {
        if addition.offset > 0 {
            try onDisk { () throws(SystemError) in try log.reserve(addition, in: addition.path) }
            return Step(recorded: addition.step)
        }
        let source = newPath()
        try onDisk { () throws(SystemError) in
            try log.reserve(addition, in: source)
            try directory.append(source, at: 0, addition.bytes)
        }
        return Step(recorded: addition.step, made: .place(from: source, to: addition.path))
    }

    /// Writes the steps down, which is the moment at which a commit takes place.
    /// - Throws: when it does not.
    private func decide(_ steps: [Step]) throws(FileStoreError) {
        do throws(SystemError) {
            let changes = steps.map(\.recorded)
            var frame = try commits.frame(of: changes)
            if !commits.hasRoom(for: frame.count) {
                try settleOnDisk()
                frame = try commits.frame(of: changes)
            }
            try commits.write(frame)
        } catch {
            throw .system(path: path, error)
        }
    }

    /// Has a commit take place, and makes its steps. Where the disk refuses one, all is made again that `commits` holds;
    /// when that does not succeed either, nothing is read until it has: it might be half of a commit.
    /// - Parameter finish: called when the steps have been made.
    private func carryOut(
        _ prepare: () throws(FileStoreError) -> [Step], finishing finish: () throws(SystemError) -> Void = {}
    ) throws(FileStoreError) {
        let steps: [Step]
        do throws(FileStoreError) {
            steps = try prepare()
            if steps.isEmpty { return }
            try decide(steps)
        } catch {
            // Nothing has happened.
            discardNew()
            throw error
        }
        do throws(SystemError) {
            for step in steps { try make(step.made) }
            try finish()
        } catch {
            report(.system(path: path, error))
            mustRecover = true
            try recoverIfNeeded()
        }
    }

    func make(_ change: FileChange) throws(SystemError) {
        switch change {
        case .place(let source, let target):
            try directory.rename(source, to: target)
            noteWriting(to: target, isNamed: true)
        case .write(let target, let bytes):
            // Made again while nothing is read, and with a full disk: over what stands there.
            try makeDirectory(Self.parent(of: target))
            try directory.append(target, at: 0, bytes)
            noteWriting(to: target, isNamed: true)
        case .remove(let path):
            let parent = Self.parent(of: path)
            var mayComeBack = try directory.remove(path)
            unsynchronizedFiles.remove(path)
            // Where it was not there, another process may have removed it, and not durably. Where the directory is missing
            // as well, nothing can come back; what else was in it is found to be missing later.
            if !mayComeBack { mayComeBack = try directory.exists(parent) }
            if mayComeBack { unsynchronizedDirectories.insert(parent) }
        case .append(let path, let offset, let bytes):
            try directory.append(path, at: offset, bytes)
            if path == Catalog.name { catalog.didWrite(change) }
            // Otherwise the file has its name already.
            noteWriting(to: path, isNamed: offset == 0)
        }
    }

    func noteWriting(to path: String, isNamed: Bool) {
        unsynchronizedFiles.insert(path)
        if isNamed { unsynchronizedDirectories.insert(Self.parent(of: path)) }
    }

    /// Makes what stands in `commits` durable at its place, and has the file begin again.
    func settle() throws(FileStoreError) {
        try onDisk { () throws(SystemError) in try settleOnDisk() }
    }

    func settleOnDisk() throws(SystemError) {
        if unsynchronizedFiles.isEmpty, unsynchronizedDirectories.isEmpty { return }
        do throws(SystemError) {
            try synchronizeWritten()
            try commits.begin()
        } catch {
            // What could not be synchronized once is not believed to be there, even if it can be the next time: all of it
            // is written again. (What was removed cannot be removed again; a file system on which that fails ends.)
            mustRecover = true
            throw error
        }
    }

    func synchronizeWritten() throws(SystemError) {
        for path in unsynchronizedFiles.sorted() { try directory.synchronizeFile(path) }
        for path in unsynchronizedDirectories.sorted() { try directory.synchronize(path) }
        unsynchronizedFiles = []
        unsynchronizedDirectories = []
    }

    /// Segments of the log may go when nothing in `commits` writes to them any more.
    private func leaveLog(to state: LogState) throws(SystemError) {
        if log.losesSegments(with: state) { try settleOnDisk() }
        try log.didWrite(state)
    }

    func makeDirectory(_ path: String) throws(SystemError) {
        if path == "." || knownDirectories.contains(path) { return }
        let parent = Self.parent(of: path)
        try makeDirectory(parent)
        try directory.makeDirectory(path)
        unsynchronizedDirectories.insert(parent)
        knownDirectories.insert(path)
    }

    private func discardNew() {
        do throws(SystemError) {
            try removeNew()
        } catch {
            // Then the next call does it, before anything else.
            mustRecover = true
        }
    }

    func newPath() -> String {
        lastNewNumber += 1
        return "\(StoreFormat.newName)/\(lastNewNumber)"
    }

    static func parent(of path: String) -> String {
        guard let slash = path.lastIndex(of: "/") else { return "." }
        return String(path[..<slash])
    }
}

// MARK: - Reading

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
            for id in try asStore({ () throws(FileStoreError) in try identities(.plain, kind, tenant) }) {
                members.updateValue(nil, forKey: id)
            }
        }
        return members
    }

    private func location(of id: RecordID) throws(FileStoreError) -> RecordPath? {
        if index.entries[id] != nil { return RecordPath(.indexed, id) }
        let place = RecordPath(.plain, id)
        return try onDisk { () throws(SystemError) in try directory.exists(place.text) } ? place : nil
    }

    private func load(_ id: RecordID) throws(FileStoreError) -> StoredRecord? {
        let isIndexed = index.entries[id] != nil
        let record = try load(RecordPath(isIndexed ? .indexed : .plain, id))
        if isIndexed && record == nil {
            throw damage(RecordPath(.indexed, id).text, .missing)
        }
        return record
    }

    func load(_ place: RecordPath) throws(FileStoreError) -> StoredRecord? {
        let bytes: [UInt8]?
        do throws(SystemError) {
            bytes = try directory.read(place.text, limit: RecordFile.countLimit)
        } catch {
            if error.isOfTheFile { throw damage(place.text, .otherFile) }
            throw .system(path: path, error)
        }
        guard let bytes else { return nil }
        let record: StoredRecord
        do throws(FramedFile.Failure) {
            record = try RecordFile.decode(bytes, id: place.id)
        } catch {
            throw damage(place.text, RecordFile.flaw(error, of: bytes))
        }
        guard RecordPath(for: record) == place else { throw damage(place.text, .otherFile) }
        return leases.timed(record)
    }

    func tenants(_ tree: RecordPath.Tree, _ kind: RecordKind) throws(FileStoreError) -> [TenantName] {
        let parent = "\(tree.rawValue)/\(kind.rawValue)"
        var tenants: [TenantName] = []
        for name in try onDisk({ () throws(SystemError) in try directory.names(in: parent) }) {
            guard let tenant = RecordPath.tenant(named: name) else { throw damage("\(parent)/\(name)", .unknownName) }
            tenants.append(tenant)
        }
        return tenants
    }

    func identities(
        _ tree: RecordPath.Tree, _ kind: RecordKind, _ tenant: TenantName
    ) throws(FileStoreError) -> [RecordID] {
        let parent = RecordPath.directory(tree, kind, tenant)
        var identities: [RecordID] = []
        for name in try onDisk({ () throws(SystemError) in try directory.names(in: parent) }) {
            guard let key = RecordPath.key(named: name) else { throw damage("\(parent)/\(name)", .unknownName) }
            identities.append(RecordID(kind, tenant, key: key))
        }
        return identities
    }
}

// MARK: - Errors

extension FileRecords {
    func damage(_ name: String, _ flaw: FileFlaw) -> FileStoreError { .damaged(path, name, flaw) }

    func onDisk<R>(_ body: () throws(SystemError) -> R) throws(FileStoreError) -> R {
        do throws(SystemError) {
            return try body()
        } catch {
            throw .system(path: path, error)
        }
    }

    private func asStore<R>(_ body: () throws(FileStoreError) -> R) throws(StoreError) -> R {
        do throws(FileStoreError) {
            return try body()
        } catch {
            report(error)
            throw error.storeError
        }
    }
}
