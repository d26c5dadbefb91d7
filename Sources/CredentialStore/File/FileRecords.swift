internal import Glibc
internal import OAuth
internal import Reactor

/// The records in a directory, and how they come to be there without ever being half there.
///
/// - `plain` and `indexed` hold the records, one file each; see `RecordPath`.
/// - `log` holds the log; see `FileLog`.
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
    private static let formatName = "format"
    private static let formatPrefix = "token-broker records "
    /// In the first, the files of each commit were synchronized by themselves, and `commit` held the steps of one.
    private static let formatNumber = 2
    private static let lockName = "lock"
    private static let formerCommitName = "commit"
    private static let newName = "new"
    private static let ownNames: Set<String> =
        Set(
            [lockName, newName, CommitLog.name, FileLog.directoryName, "lost+found"]
                + RecordPath.Tree.allCases.map(\.rawValue) + StoreSecret.allCases.map(\.rawValue))

    private let path: String
    private let directory: StoreDirectory
    private let lock: OwnedDescriptor
    private let report: (FileStoreError) -> Void
    private let log: FileLog
    private let commits: CommitLog
    private var index = RecordIndex()
    private var leases = LeaseTimes()
    /// The directories that are known to exist, those of tenants and those above them.
    private var knownDirectories: Set<String> = []
    /// What was written to that only the steps in `commits` make durable so far.
    private var unsynchronizedFiles: Set<String> = []
    private var unsynchronizedDirectories: Set<String> = []
    private var lastNewNumber: UInt64 = 0
    /// Whether the files may differ from what this object knows of them: at the start, and after a call failed at a
    /// point where nobody can say what it did.
    private var mustRecover = true

    /// Opens the directory, makes it where it is missing, and finishes what a process that died has left.
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
        let (access, names): (StoreDirectory.Access, [String])
        do throws(SystemError) {
            (access, names) = (try directory.access(), try directory.names(in: "."))
        } catch {
            throw .system(path: path, error)
        }
        guard access.belongsToThisUser else { throw .foreignOwner(directory: path) }
        guard !access.isShared else { throw .exposed(directory: path) }
        guard names.contains(Self.formatName) || Self.ownNames.isSuperset(of: names) else {
            throw .notAStore(directory: path)
        }
        do throws(SystemError) {
            lock = try directory.lock(Self.lockName)
        } catch {
            if error.number == EWOULDBLOCK { throw .alreadyOpen(directory: path) }
            throw .system(path: path, error)
        }
        if try onDisk({ () throws(SystemError) in try directory.exists(Self.formatName) }) {
            if try format() < Self.formatNumber {
                try convert()
            } else {
                // The process that put it there may have died before this: without the format's file, or with that of the
                // first, a loss of power would take all commits with it.
                try onDisk { () throws(SystemError) in try directory.synchronize(".") }
            }
        } else {
            try create()
        }
        try recover()
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
        var ids = index.entries.keys.filter { $0.kind == kind && (tenant == nil || tenant == $0.tenant) }
        let listed = if let tenant { [tenant] } else { try tenants(.plain, kind) }
        for tenant in listed { ids += try identities(.plain, kind, tenant) }
        var records: [StoredRecord] = []
        for id in ids.filter({ id in after.map { $0 < id } ?? true }).sorted().prefix(limit) {
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
        var lapsed: [(end: MonotonicInstant, lease: LapsedLease)] = []
        for (id, holder) in index.leaseHolders where id.kind == kind && leases.remaining(id) <= .zero {
            guard let version = index.entries[id]?.version else { continue }
            lapsed.append((leases.end(id), LapsedLease(id: id, version: version, holder: holder)))
        }
        return lapsed.sorted { ($0.end, $0.lease.id) < ($1.end, $1.lease.id) }.prefix(limit).map(\.lease)
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
            expired.map { Step(recorded: .remove(RecordPath(.indexed, $0).text)) }
        }
        for id in expired {
            index.remove(id)
            leases.note(id, nil)
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
        guard let text = String(validating: bytes, as: UTF8.self) else { throw damage(name) }
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
        _ = try format()
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
        try carryOut { () throws(FileStoreError) in
            var steps = try prepare(plan.outcomes)
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
        for (id, record) in plan.outcomes { leases.note(id, record) }
    }

    /// Writes all of the records that needs space, and gives the steps that remain.
    private func prepare(_ outcomes: [RecordID: StoredRecord?]) throws(FileStoreError) -> [Step] {
        var steps: [Step] = []
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
        }
        return steps
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
            try recover()
        }
    }

    private func make(_ change: FileChange) throws(SystemError) {
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
            try directory.remove(path)
            unsynchronizedFiles.remove(path)
            unsynchronizedDirectories.insert(Self.parent(of: path))
        case .append(let path, let offset, let bytes):
            try directory.append(path, at: offset, bytes)
            // Otherwise the file has its name already.
            noteWriting(to: path, isNamed: offset == 0)
        }
    }

    private func noteWriting(to path: String, isNamed: Bool) {
        unsynchronizedFiles.insert(path)
        if isNamed { unsynchronizedDirectories.insert(Self.parent(of: path)) }
    }

    /// Makes what stands in `commits` durable at its place, and has the file begin again.
    private func settle() throws(FileStoreError) {
        try onDisk { () throws(SystemError) in try settleOnDisk() }
    }

    private func settleOnDisk() throws(SystemError) {
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

    private func synchronizeWritten() throws(SystemError) {
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

    private func makeDirectory(_ path: String) throws(SystemError) {
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

    private func newPath() -> String {
        lastNewNumber += 1
        return "\(Self.newName)/\(lastNewNumber)"
    }

    private static func parent(of path: String) -> String {
        guard let slash = path.lastIndex(of: "/") else { return "." }
        return String(path[..<slash])
    }
}

// MARK: - Reading

extension FileRecords: CommitBasis {
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
            throw .damaged("\(path): the file of \(id.text) has vanished")
        }
        return record
    }

    private func load(_ place: RecordPath) throws(FileStoreError) -> StoredRecord? {
        let bytes: [UInt8]?
        do throws(SystemError) {
            bytes = try directory.read(place.text, limit: RecordFile.countLimit)
        } catch {
            if error.number == EFBIG || error.number == ELOOP || error.number == EISDIR { throw damage(place.text) }
            throw .system(path: path, error)
        }
        guard let bytes else { return nil }
        do throws(FramedFile.Failure) {
            let record = try RecordFile.decode(bytes, id: place.id)
            guard RecordPath(for: record) == place else { throw .damaged }
            return leases.timed(record)
        } catch {
            throw failure(error, place.text)
        }
    }

    private func tenants(_ tree: RecordPath.Tree, _ kind: RecordKind) throws(FileStoreError) -> [TenantName] {
        let parent = "\(tree.rawValue)/\(kind.rawValue)"
        var tenants: [TenantName] = []
        for name in try onDisk({ () throws(SystemError) in try directory.names(in: parent) }) {
            guard let tenant = RecordPath.tenant(named: name) else { throw damage("\(parent)/\(name)") }
            tenants.append(tenant)
        }
        return tenants
    }

    private func identities(
        _ tree: RecordPath.Tree, _ kind: RecordKind, _ tenant: TenantName
    ) throws(FileStoreError) -> [RecordID] {
        let parent = RecordPath.directory(tree, kind, tenant)
        var identities: [RecordID] = []
        for name in try onDisk({ () throws(SystemError) in try directory.names(in: parent) }) {
            guard let key = RecordPath.key(named: name) else { throw damage("\(parent)/\(name)") }
            identities.append(RecordID(kind, tenant, key: key))
        }
        return identities
    }
}

// MARK: - Starting

extension FileRecords {
    private func create() throws(FileStoreError) {
        for name in RecordPath.Tree.allCases.map(\.rawValue) + [FileLog.directoryName]
        where try !onDisk({ () throws(SystemError) in try directory.names(in: name) }).isEmpty {
            throw .damaged("\(path) has records, but its file '\(Self.formatName)' is missing")
        }
        try onDisk { () throws(SystemError) in
            for tree in RecordPath.Tree.allCases { try directory.makeDirectory(tree.rawValue) }
            try directory.makeDirectory(Self.newName)
            try removeNew()
            try begin()
        }
    }

    /// Makes a store of this format of one of the first, which is changed in nothing but that its last process may have
    /// left a commit to be finished, and what it did last not durable.
    private func convert() throws(FileStoreError) {
        let steps = try formerCommit()
        try onDisk { () throws(SystemError) in
            for step in steps { try make(step) }
            try removeNew()
            try directory.makeDirectory(FileLog.directoryName)
            unsynchronizedDirectories.insert(FileLog.directoryName)
        }
        try log.cutTail()
        for tree in RecordPath.Tree.allCases {
            for kind in RecordKind.allCases {
                for tenant in try tenants(tree, kind) {
                    unsynchronizedDirectories.insert(RecordPath.directory(tree, kind, tenant))
                    unsynchronizedDirectories.insert("\(tree.rawValue)/\(kind.rawValue)")
                }
            }
            unsynchronizedDirectories.insert(tree.rawValue)
        }
        try onDisk { () throws(SystemError) in
            try synchronizeWritten()
            try directory.remove(Self.formerCommitName)
            try begin()
        }
    }

    /// With the format's file the store is complete.
    private func begin() throws(SystemError) {
        try directory.makeDirectory(FileLog.directoryName)
        try commits.create()
        try directory.synchronize(".")
        try place(Array((Self.formatPrefix + String(Self.formatNumber) + "\n").utf8), at: Self.formatName)
    }

    /// Puts a file in the store's directory, whole and durable, or not at all.
    private func place(_ bytes: [UInt8], at name: String) throws(SystemError) {
        let path = newPath()
        try directory.write(path, bytes)
        try directory.rename(path, to: name)
        try directory.synchronize(".")
    }

    private func format() throws(FileStoreError) -> Int {
        let bytes: [UInt8]?
        do throws(SystemError) {
            bytes = try directory.read(Self.formatName, limit: 100)
        } catch {
            if error.number == EFBIG { throw damage(Self.formatName) }
            throw .system(path: path, error)
        }
        guard let bytes, let text = String(validating: bytes, as: UTF8.self), text.hasPrefix(Self.formatPrefix),
            text.last == "\n", let number = Int(text.dropFirst(Self.formatPrefix.count).dropLast()), number > 0
        else { throw damage(Self.formatName) }
        if number > Self.formatNumber { throw .newerFormat(directory: path) }
        return number
    }

    private func recoverIfNeeded() throws(FileStoreError) {
        if mustRecover { try recover() }
    }

    /// Makes again what `commits` holds, clears away what does not count, and reads anew what is kept in memory.
    private func recover() throws(FileStoreError) {
        unsynchronizedFiles = []
        unsynchronizedDirectories = []
        knownDirectories = []
        let commits = try readCommits()
        try onDisk { () throws(SystemError) in try removeNew() }
        for change in commits.joined() { try makeAgain(change) }
        try settle()
        try log.recover()
        index = RecordIndex()
        for kind in RecordKind.allCases {
            for tenant in try tenants(.indexed, kind) { try readIndex(kind, tenant) }
        }
        mustRecover = false
    }

    private func makeAgain(_ change: FileChange) throws(FileStoreError) {
        do throws(SystemError) {
            try make(change)
        } catch {
            // What the log had before was durable when the commit was written down.
            if case .append(let segment, _, _) = change, error.number == ESPIPE { throw damage(segment) }
            throw .system(path: path, error)
        }
    }

    private func readCommits() throws(FileStoreError) -> [[FileChange]] {
        do throws(CommitLog.ReadingFailure) {
            guard let read = try commits.read() else { throw .frame(.damaged) }
            return read
        } catch {
            switch error {
            case .system(let error): throw .system(path: path, error)
            case .frame(let failure): throw self.failure(failure, CommitLog.name)
            }
        }
    }

    /// What is left to be done of a commit that a process of the first format was making.
    private func formerCommit() throws(FileStoreError) -> [FileChange] {
        guard
            let bytes = try onDisk({ () throws(SystemError) in
                try directory.read(Self.formerCommitName, limit: Int(Int32.max))
            })
        else { return [] }
        let steps: [FileChange]
        do throws(FramedFile.Failure) {
            steps = try CommitFile.decode(bytes)
        } catch {
            throw failure(error, Self.formerCommitName)
        }
        var missing: [FileChange] = []
        for step in steps {
            if case .place(let source, let target) = step,
                try !onDisk({ () throws(SystemError) in try directory.exists(source) })
            {
                guard try onDisk({ () throws(SystemError) in try directory.exists(target) }) else {
                    throw damage(target)
                }
                noteWriting(to: target, isNamed: true)
            } else {
                missing.append(step)
            }
        }
        return missing
    }

    private func removeNew() throws(SystemError) {
        for name in try directory.names(in: Self.newName) { try directory.remove("\(Self.newName)/\(name)") }
    }

    private func readIndex(_ kind: RecordKind, _ tenant: TenantName) throws(FileStoreError) {
        for id in try identities(.indexed, kind, tenant) {
            let place = RecordPath(.indexed, id)
            guard let record = try load(place), index.insert(record) else { throw damage(place.text) }
        }
    }
}

// MARK: - Errors

extension FileRecords {
    private func damage(_ name: String) -> FileStoreError { .damaged("\(path)/\(name) is damaged") }

    private func failure(_ failure: FramedFile.Failure, _ name: String) -> FileStoreError {
        switch failure {
        case .damaged: damage(name)
        case .newerFormat: .newerFormat(directory: path)
        }
    }

    private func onDisk<R>(_ body: () throws(SystemError) -> R) throws(FileStoreError) -> R {
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
