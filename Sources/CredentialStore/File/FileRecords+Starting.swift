internal import Glibc
internal import OAuth
internal import Reactor

extension FileRecords {
    /// To be called once, before anything else.
    func start() throws(FileStoreError) {
        if try !onDisk({ () throws(SystemError) in try directory.exists(StoreFormat.name) }) {
            try create()
        }
        let isCatalogued = try StoreFormat.read(directory, path) == StoreFormat.number
        // The process that put the format's file there may have died before this: without the file, or with that of an
        // earlier format, a loss of power would take all commits with it.
        try onDisk { () throws(SystemError) in try directory.synchronize(".") }
        let known = try recover(isCatalogued: isCatalogued)
        try log.verify()
        let found = try verify(known)
        if !isCatalogued { try convert(found) }
    }

    func recoverIfNeeded() throws(FileStoreError) {
        if mustRecover {
            listings.forget()
            _ = try recover(isCatalogued: true)
        }
    }

    private func create() throws(FileStoreError) {
        for name in RecordPath.Tree.allCases.map(\.rawValue) + [FileLog.directoryName] {
            let names = try onDisk { () throws(SystemError) in try directory.names(in: name) }
            // A process that died in here may have left the log's state.
            if names.contains(where: { "\(name)/\($0)" != FileLog.statePath }) {
                throw damage(StoreFormat.name, .missing)
            }
        }
        try onDisk { () throws(SystemError) in
            for name in RecordPath.Tree.allCases.map(\.rawValue) + [StoreFormat.newName, FileLog.directoryName] {
                try directory.makeDirectory(name)
            }
            try removeNew()
            try commits.create()
            try directory.synchronize(".")
            try place(LogState().encode(), at: FileLog.statePath)
            try place(Catalog.encode(Catalog.Content()), at: Catalog.name)
            try place(StoreFormat.content, at: StoreFormat.name)
        }
    }

    /// Makes a store of this format of one of the format before, which had no catalog, and a state of the log only where
    /// something had been trimmed.
    private func convert(_ found: Set<RecordID>) throws(FileStoreError) {
        try onDisk { () throws(SystemError) in
            if try !directory.exists(FileLog.statePath) { try place(LogState().encode(), at: FileLog.statePath) }
        }
        try placeCatalog(Catalog.Content(records: found, segment: log.lastSegment))
        // With it the store is one of this format.
        try onDisk { () throws(SystemError) in try place(StoreFormat.content, at: StoreFormat.name) }
    }

    /// Makes the catalog anew, of the records that there are.
    func renewCatalog() throws(FileStoreError) {
        // What stands in `commits` adds to the file that goes.
        try settle()
        var records = Set(index.entries.keys)
        for kind in RecordKind.allCases {
            for tenant in try tenants(.plain, kind) { records.formUnion(try identities(.plain, kind, tenant)) }
        }
        try placeCatalog(Catalog.Content(records: records, segment: log.lastSegment))
    }

    private func placeCatalog(_ content: Catalog.Content) throws(FileStoreError) {
        let bytes = Catalog.encode(content)
        do throws(SystemError) {
            guard bytes.count <= Catalog.countLimit else { throw SystemError("write", number: EFBIG) }
            try place(bytes, at: Catalog.name)
            catalog.didReplace(bytes)
        } catch {
            // It may be the new file that stands there.
            mustRecover = true
            throw .system(path: path, error)
        }
    }

    /// Puts a file at its place, whole and durable, or not at all.
    func place(_ bytes: [UInt8], at name: String) throws(SystemError) {
        let path = newPath()
        try directory.write(path, bytes)
        try directory.rename(path, to: name)
        try directory.synchronize(Self.parent(of: name))
    }

    /// Makes again what `commits` holds, clears away what does not count, and reads anew what is kept in memory.
    /// - Returns: what the store has by its catalog; nil where it has none yet.
    private func recover(isCatalogued: Bool) throws(FileStoreError) -> Catalog.Content? {
        unsynchronizedFiles = []
        unsynchronizedDirectories = []
        knownDirectories = []
        let commits = try readCommits()
        try onDisk { () throws(SystemError) in
            // A copy may have left out a directory in which nothing was.
            if try !directory.exists(StoreFormat.newName) { try directory.makeDirectory(StoreFormat.newName) }
            try removeNew()
        }
        for change in commits.joined() { try makeAgain(change) }
        try settle()
        let known = isCatalogued ? try readCatalog() : nil
        try log.recover(endingWith: known?.segment)
        index = RecordIndex()
        for kind in RecordKind.allCases {
            for tenant in try tenants(.indexed, kind) { try readIndex(kind, tenant) }
        }
        mustRecover = false
        return known
    }

    private func makeAgain(_ change: FileChange) throws(FileStoreError) {
        do throws(SystemError) {
            try make(change)
        } catch {
            // What the file had before was durable when the commit was written down.
            if case .append(let file, _, _) = change, error.number == ESPIPE || error.number == ENOENT {
                throw damage(file, error.number == ENOENT ? .missing : .truncated)
            }
            throw .system(path: path, error)
        }
    }

    private func readCommits() throws(FileStoreError) -> [[FileChange]] {
        do throws(CommitLog.ReadingFailure) {
            guard let read = try commits.read() else { throw .flaw(.missing) }
            return read
        } catch {
            switch error {
            case .system(let error): throw .system(path: path, error)
            case .flaw(let flaw): throw damage(CommitLog.name, flaw)
            }
        }
    }

    private func readCatalog() throws(FileStoreError) -> Catalog.Content {
        do throws(Catalog.ReadingFailure) {
            return try catalog.read()
        } catch {
            switch error {
            case .system(let error): throw .system(path: path, error)
            case .flaw(let flaw): throw damage(Catalog.name, flaw)
            }
        }
    }

    func removeNew() throws(SystemError) {
        for name in try directory.names(in: StoreFormat.newName) {
            try directory.remove("\(StoreFormat.newName)/\(name)")
        }
    }

    private func readIndex(_ kind: RecordKind, _ tenant: TenantName) throws(FileStoreError) {
        for id in try identities(.indexed, kind, tenant) {
            let place = RecordPath(.indexed, id)
            guard let record = try load(place) else { throw damage(place.text, .missing) }
            guard index.insert(record) else { throw damage(place.text, .duplicate) }
        }
    }

    /// Reads every record that `recover` has not read, and compares what there is with the catalog.
    /// - Parameter known: nil where there is no catalog.
    /// - Returns: the records that there are.
    private func verify(_ known: Catalog.Content?) throws(FileStoreError) -> Set<RecordID> {
        var missing = known?.records ?? []
        var found: Set<RecordID> = []
        func note(_ place: RecordPath) throws(FileStoreError) {
            if known == nil {
                found.insert(place.id)
            } else if missing.remove(place.id) == nil {
                throw damage(place.text, .uncatalogued)
            }
        }
        for id in index.entries.keys { try note(RecordPath(.indexed, id)) }
        for kind in RecordKind.allCases {
            for tenant in try tenants(.plain, kind) {
                for id in try identities(.plain, kind, tenant) {
                    let place = RecordPath(.plain, id)
                    guard try load(place) != nil else { throw damage(place.text, .missing) }
                    if index.entries[id] != nil { throw damage(place.text, .duplicate) }
                    try note(place)
                }
            }
        }
        if let id = missing.min() { throw .missing(path, id) }
        return found
    }
}
