internal import Glibc
internal import OAuth
internal import Reactor

/// The records in a directory, and how they come to be there without ever being half there.
///
/// - `plain` and `indexed` hold the records, one file each; see `RecordPath`.
/// - `log` holds the log; see `FileLog`.
/// - `new` holds files in the making. They do not count yet; what a dead process left there is removed.
/// - `commit` exists while a commit of several steps is being carried out. It appears whole, by a rename, which is the
///   moment at which the commit takes place. Whoever finds it finishes its steps before anything is read.
/// - `master.keys` and `admin.key` are no records; see `StoreSecret`.
/// - `format` stands in every complete store; `lock` is held by the process that uses it.
///
/// A file's content is synchronized before it gets its name, and the directory after. `commit` is removed durably
/// before the next commit begins, for its steps must not be repeated after that.
///
/// Not Sendable: belongs to one `FileRecordStore` and its thread. Calls block.
final class FileRecords {
    private static let formatName = "format"
    private static let formatPrefix = "token-broker records "
    private static let formatNumber = 1
    private static let lockName = "lock"
    private static let commitName = "commit"
    private static let newName = "new"
    private static let ownNames: Set<String> =
        Set(
            [lockName, newName, FileLog.directoryName, "lost+found"] + RecordPath.Tree.allCases.map(\.rawValue)
                + StoreSecret.allCases.map(\.rawValue))

    private let path: String
    private let directory: StoreDirectory
    private let lock: OwnedDescriptor
    private let report: (FileStoreError) -> Void
    private let log: FileLog
    private var index = RecordIndex()
    private var leases = LeaseTimes()
    /// The directories of tenants that are known to exist durably.
    private var knownDirectories: Set<String> = []
    private var lastNewNumber: UInt64 = 0
    /// Whether the files may differ from what this object knows of them: at the start, and after a call failed at a
    /// point where nobody can say what it did.
    private var mustRecover = true

    /// Opens the directory, makes it where it is missing, and finishes what a process that died has left.
    /// - Parameter report: told of each error of the disk that `commit` throws as a `StoreError`.
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
            try checkFormat()
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
        do throws(FileStoreError) {
            let source = try writeNew(state.encode())
            try onDisk { () throws(SystemError) in
                try perform([.place(from: source, to: FileLog.statePath)])
                try log.didWrite(state)
            }
        } catch {
            // Where the state stands, nobody can say.
            mustRecover = true
            throw error
        }
        return removed
    }

    func removeExpired(before now: Timestamp, limit: Int) throws(FileStoreError) -> Int {
        try recoverIfNeeded()
        let expired = index.expired(before: now, limit: limit)
        // Each removal stands for itself: one that is lost in a crash is made again.
        var directories: Set<String> = []
        for id in expired {
            let path = RecordPath(.indexed, id)
            try onDisk { () throws(SystemError) in _ = try directory.remove(path.text) }
            index.remove(id)
            leases.note(id, nil)
            directories.insert(path.directory)
        }
        try onDisk { () throws(SystemError) in
            for name in directories.sorted() { try directory.synchronize(name) }
        }
        return expired.count
    }

    /// The text of a secret's file, without the newline at its end; nil where there is none.
    func secret(_ secret: StoreSecret) throws(FileStoreError) -> String? {
        let name = secret.rawValue
        guard let bytes = try onDisk({ () throws(SystemError) in try directory.read(name, limit: 65_536) }) else {
            return nil
        }
        guard let text = String(validating: bytes, as: UTF8.self) else { throw damage(name) }
        return String(text.prefix { !$0.isNewline })
    }

    /// Writes a secret's file where there is none: whole and durable, or not at all.
    func keep(_ secret: StoreSecret, _ text: String) throws(FileStoreError) {
        let path = try writeNew(Array((text + "\n").utf8))
        try onDisk { () throws(SystemError) in
            try directory.rename(path, to: secret.rawValue)
            try directory.synchronize(".")
        }
    }

    /// Writes a file and removes it.
    func check() throws(FileStoreError) {
        try recoverIfNeeded()
        try checkFormat()
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
    private func write(_ plan: CommitPlan) throws(FileStoreError) {
        let addition = try log.addition(of: plan.entries)
        let state = log.state(cutting: plan.clearedTenants)
        var steps: [FileChange]
        do throws(FileStoreError) {
            steps = try prepare(plan.outcomes)
            if state != log.state {
                steps.append(.place(from: try writeNew(state.encode()), to: FileLog.statePath))
            }
            if let addition { steps.append(addition.step) }
            if steps.count > 1 { steps.append(try writeCommit(steps)) }
        } catch {
            // Nothing has happened yet.
            discardNew()
            throw error
        }
        if let addition, steps.count == 1 { log.willWrite(addition) }
        do throws(SystemError) {
            try carryOut(steps)
            if let addition { log.didWrite(addition) }
            if state != log.state { try log.didWrite(state) }
        } catch {
            // Whether the commit took place shows on the disk, or will when the disk answers again. Until then nothing
            // is read: it might be half of it.
            mustRecover = true
            try recover()
            guard try areInPlace(plan.outcomes), log.state == state, log.bounds.last >= addition?.last ?? 0 else {
                throw .system(path: path, error)
            }
            for (id, record) in plan.outcomes { leases.note(id, record) }
            return
        }
        for id in plan.outcomes.keys { index.remove(id) }
        for case let record? in plan.outcomes.values where RecordPath(for: record).tree == .indexed {
            let isFree = index.insert(record)
            precondition(isFree, "a commit was planned with a look-up digest that is taken")
        }
        for (id, record) in plan.outcomes { leases.note(id, record) }
    }

    /// Writes all of the records that needs space, and gives the steps that remain.
    private func prepare(_ outcomes: [RecordID: StoredRecord?]) throws(FileStoreError) -> [FileChange] {
        var steps: [FileChange] = []
        for (id, outcome) in outcomes.sorted(by: { $0.key < $1.key }) {
            let current = try location(of: id)
            var target: RecordPath?
            if let record = outcome {
                let place = RecordPath(for: record)
                try makeDirectory(place)
                let bytes = RecordFile.encode(record)
                guard bytes.count <= RecordFile.countLimit else {
                    throw .system(path: path, SystemError("write", number: EFBIG))
                }
                steps.append(.place(from: try writeNew(bytes), to: place.text))
                target = place
            }
            if let current, current != target { steps.append(.remove(current.text)) }
        }
        return steps
    }

    /// Writes down the steps, and gives the one by which they come into force.
    private func writeCommit(_ steps: [FileChange]) throws(FileStoreError) -> FileChange {
        try onDisk { () throws(SystemError) in try directory.synchronize(Self.newName) }
        return .place(from: try writeNew(CommitFile.encode(steps)), to: Self.commitName)
    }

    /// One step needs no more: it is done or it is not. Of several, the last puts `commit` in its place.
    private func carryOut(_ steps: [FileChange]) throws(SystemError) {
        switch steps.count {
        case 0: return
        case 1: try perform(steps)
        default:
            try perform([steps[steps.count - 1]])
            try perform(steps.dropLast())
            try directory.remove(Self.commitName)
            try directory.synchronize(".")
        }
    }

    private func perform(_ steps: some Collection<FileChange>) throws(SystemError) {
        var directories: Set<String> = []
        for step in steps {
            switch step {
            case .place(let source, let target):
                try directory.rename(source, to: target)
                directories.insert(Self.parent(of: target))
            case .remove(let path):
                try directory.remove(path)
                directories.insert(Self.parent(of: path))
            case .append(let path, let offset, let bytes):
                try directory.append(path, at: offset, bytes)
                // Otherwise the file has its name already.
                if offset == 0 { directories.insert(Self.parent(of: path)) }
            }
        }
        for name in directories.sorted() { try directory.synchronize(name) }
    }

    private func areInPlace(_ outcomes: [RecordID: StoredRecord?]) throws(FileStoreError) -> Bool {
        for (id, outcome) in outcomes {
            var expected = outcome
            // How long a lease lasts stands in no file.
            if let outcome { expected = leases.timed(outcome) }
            if try load(id) != expected { return false }
        }
        return true
    }

    private func makeDirectory(_ place: RecordPath) throws(FileStoreError) {
        if knownDirectories.contains(place.directory) { return }
        try onDisk { () throws(SystemError) in
            var parent = "."
            for name in [
                place.tree.rawValue, "\(place.tree.rawValue)/\(place.id.kind.rawValue)", place.directory,
            ] {
                try directory.makeDirectory(name)
                try directory.synchronize(parent)
                parent = name
            }
        }
        knownDirectories.insert(place.directory)
    }

    private func writeNew(_ bytes: [UInt8]) throws(FileStoreError) -> String {
        let path = newPath()
        try onDisk { () throws(SystemError) in try directory.write(path, bytes) }
        return path
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
            switch error {
            case .damaged: throw damage(place.text)
            case .newerFormat: throw .newerFormat(directory: path)
            }
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
            let text = Self.formatPrefix + String(Self.formatNumber) + "\n"
            let path = newPath()
            try directory.write(path, Array(text.utf8))
            try directory.rename(path, to: Self.formatName)
            try directory.synchronize(".")
        }
    }

    private func checkFormat() throws(FileStoreError) {
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
    }

    private func recoverIfNeeded() throws(FileStoreError) {
        if mustRecover { try recover() }
    }

    /// Finishes the commit that was under way, if one was, clears away what does not count, and reads anew what is kept
    /// in memory.
    private func recover() throws(FileStoreError) {
        try finishCommit()
        try onDisk { () throws(SystemError) in try removeNew() }
        try log.recover()
        index = RecordIndex()
        knownDirectories = []
        for tree in RecordPath.Tree.allCases {
            for kind in RecordKind.allCases {
                for tenant in try tenants(tree, kind) {
                    // What another process did last it may not have made durable, but from now on it is relied on.
                    let name = RecordPath.directory(tree, kind, tenant)
                    try onDisk { () throws(SystemError) in try directory.synchronize(name) }
                    knownDirectories.insert(name)
                    if tree == .indexed { try readIndex(kind, tenant) }
                }
                try onDisk { () throws(SystemError) in
                    let name = "\(tree.rawValue)/\(kind.rawValue)"
                    if try directory.exists(name) { try directory.synchronize(name) }
                }
            }
            try onDisk { () throws(SystemError) in try directory.synchronize(tree.rawValue) }
        }
        try onDisk { () throws(SystemError) in try directory.synchronize(".") }
        mustRecover = false
    }

    private func finishCommit() throws(FileStoreError) {
        guard
            let bytes = try onDisk({ () throws(SystemError) in
                try directory.read(Self.commitName, limit: Int(Int32.max))
            })
        else { return }
        let steps: [FileChange]
        do throws(FramedFile.Failure) {
            steps = try CommitFile.decode(bytes)
        } catch {
            switch error {
            case .damaged: throw damage(Self.commitName)
            case .newerFormat: throw .newerFormat(directory: path)
            }
        }
        var missing: [FileChange] = []
        for step in steps {
            if case .place(let source, let target) = step {
                let isWaiting = try onDisk { () throws(SystemError) in try directory.exists(source) }
                if !isWaiting {
                    guard try onDisk({ () throws(SystemError) in try directory.exists(target) }) else {
                        throw damage(target)
                    }
                    continue
                }
            }
            missing.append(step)
        }
        try onDisk { () throws(SystemError) in
            // Not durable yet, perhaps, where the process died right after the rename.
            try directory.synchronize(".")
            try perform(missing)
        }
        // A step that was done already may still want its directory synchronized.
        try onDisk { () throws(SystemError) in
            for name in Set(steps.map(Self.directory)).sorted() { try directory.synchronize(name) }
            try directory.remove(Self.commitName)
            try directory.synchronize(".")
        }
    }

    private static func directory(of step: FileChange) -> String {
        switch step {
        case .place(_, let target): parent(of: target)
        case .remove(let path), .append(let path, _, _): parent(of: path)
        }
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
