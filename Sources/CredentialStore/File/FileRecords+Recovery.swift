import Glibc
import OAuth
import Reactor

extension FileRecords {
    /// Creates the store where there is none, recovers, and checks every file. To be called once, before all other
    /// calls.
    func start() throws(FileStoreError) {
        if try !files.exists(StoreFormat.name) { try create() }
        let isCatalogued = try StoreFormat.read(files) == StoreFormat.number
        // The process that wrote the format's file may have died before this call. If a power failure then removed the
        // file, or brought back that of an earlier format, all commits would be lost.
        try files.onDisk { () throws(SystemError) in try files.directory.synchronize(".") }
        let known = try recover(isCatalogued: isCatalogued)
        try log.verify()
        let found = try verify(against: known)
        if !isCatalogued { try convert(found) }
        // On a full disk the store still opens, and commits try again.
        try? reserve.fill()
    }

    func recoverIfNeeded() throws(FileStoreError) {
        if mustRecover {
            listings.forget()
            _ = try recover(isCatalogued: true)
        }
    }

    // MARK: Creating and converting

    private static let directories =
        RecordPath.Tree.allCases.map(\.rawValue) + [StoreFormat.draftsName, FileLog.directoryName]

    private func create() throws(FileStoreError) {
        for name in RecordPath.Tree.allCases.map(\.rawValue) + [FileLog.directoryName] {
            // A process that died while it created the store may have written the log's state.
            if try files.names(in: name).contains(where: { "\(name)/\($0)" != FileLog.statePath }) {
                throw files.damage(StoreFormat.name, .missing)
            }
        }
        try files.onDisk { () throws(SystemError) in
            for name in Self.directories { try files.directory.makeDirectory(name) }
            try writer.removeDrafts()
            try commits.create()
            try files.directory.synchronize(".")
            try writer.replace(FileLog.statePath, with: LogState().encode())
            try writer.replace(Catalog.name, with: Catalog.encode(Catalog.Content()))
            try writer.replace(StoreFormat.name, with: StoreFormat.content)
        }
    }

    /// Converts a store of format 2, which has no catalog, and a state of the log only after a trimming.
    /// - Parameter found: the records of the store.
    private func convert(_ found: Set<RecordID>) throws(FileStoreError) {
        try files.onDisk { () throws(SystemError) in
            if try !files.directory.exists(FileLog.statePath) {
                try writer.replace(FileLog.statePath, with: LogState().encode())
            }
        }
        try replaceCatalog(Catalog.Content(records: found, segment: log.lastSegment))
        // From here on the store has the current format.
        try files.onDisk { () throws(SystemError) in
            try writer.replace(StoreFormat.name, with: StoreFormat.content)
        }
    }

    // MARK: The catalog

    /// Writes a new catalog from the records that exist.
    func renewCatalog() throws(FileStoreError) {
        // The write-ahead log contains additions to the old file.
        try files.onDisk { () throws(SystemError) in try checkpoint() }
        var records = Set(index.entries.keys)
        for kind in RecordKind.allCases {
            for tenant in try tenants(of: kind, in: .plain) {
                records.formUnion(try identities(of: kind, tenant: tenant, in: .plain))
            }
        }
        try replaceCatalog(Catalog.Content(records: records, segment: log.lastSegment))
    }

    private func replaceCatalog(_ content: Catalog.Content) throws(FileStoreError) {
        let bytes = Catalog.encode(content)
        do throws(SystemError) {
            guard bytes.count <= Catalog.countLimit else { throw SystemError("write", number: EFBIG) }
            try writer.replace(Catalog.name, with: bytes)
            catalog.didReplace(bytes)
        } catch {
            // The new file may be in place although the call failed.
            mustRecover = true
            throw .system(path: files.path, error)
        }
    }

    // MARK: Recovering

    /// Makes the changes in the write-ahead log again, removes drafts, and reads the state that is kept in memory.
    /// - Returns: the content of the catalog; nil when the store has none yet.
    private func recover(isCatalogued: Bool) throws(FileStoreError) -> Catalog.Content? {
        writer.reset()
        audit.forget()
        let logged = try commits.read()
        try files.onDisk { () throws(SystemError) in
            // A copy of the store may lack an empty directory.
            if try !files.directory.exists(StoreFormat.draftsName) {
                try files.directory.makeDirectory(StoreFormat.draftsName)
            }
            try writer.removeDrafts()
        }
        var damaged: [(path: String, flaw: FileFlaw)] = []
        for change in logged.joined() { try makeAgain(change, noting: &damaged) }
        // A chain that a later change removed needs no blocks.
        for (path, flaw) in damaged where try files.exists(path) { report(files.damage(path, flaw)) }
        try files.onDisk { () throws(SystemError) in try checkpoint() }
        let known = isCatalogued ? try catalog.read() : nil
        try log.recover(endingWith: known?.segment)
        index = RecordIndex()
        for kind in RecordKind.allCases {
            for tenant in try tenants(of: kind, in: .indexed) { try readIndex(of: kind, tenant: tenant) }
        }
        mustRecover = false
        return known
    }

    /// - Parameter damaged: gets the paths of damaged chains of the audit log. They do not keep the store from being opened: the
    ///   records are whole, and no process continues the chain of another one.
    private func makeAgain(_ change: FileChange, noting damaged: inout [(path: String, flaw: FileFlaw)])
        throws(FileStoreError)
    {
        do throws(SystemError) {
            try make(change)
        } catch {
            if case .append(let path, let offset, _) = change, AuditFrame.isChain(at: path) {
                if error.isOfTheFile {
                    damaged.append((path, .unreadable(error)))
                    return
                }
                if error.number == ESPIPE || error.number == ENOENT {
                    damaged.append((path, error.number == ENOENT ? .missing : .truncated))
                    // What is known of the chain stays at its place, behind a gap that shows.
                    return try files.onFile(path) { () throws(SystemError) in
                        try writer.makeDirectory(AuditFrame.directoryName)
                        try files.directory.extend(path, to: offset)
                        try make(change)
                    }
                }
            }
            // The octets before an appended part were durable when the commit was logged, so a shorter file is damage.
            if case .append(let file, _, _) = change, error.number == ESPIPE || error.number == ENOENT {
                throw files.damage(file, error.number == ENOENT ? .missing : .truncated)
            }
            throw .system(path: files.path, error)
        }
    }

    private func readIndex(of kind: RecordKind, tenant: TenantName) throws(FileStoreError) {
        for id in try identities(of: kind, tenant: tenant, in: .indexed) {
            let place = RecordPath(.indexed, id)
            guard let record = try load(place) else { throw files.damage(place.text, .missing) }
            guard index.insert(record) else { throw files.damage(place.text, .duplicate) }
        }
    }

    // MARK: Verifying

    /// Reads the records that `recover` has not read, and compares the records with the catalog.
    /// - Parameter known: the content of the catalog; nil when there is none.
    /// - Returns: the records that exist, when there is no catalog.
    private func verify(against known: Catalog.Content?) throws(FileStoreError) -> Set<RecordID> {
        var missing = known?.records ?? []
        var found: Set<RecordID> = []
        func note(_ place: RecordPath) throws(FileStoreError) {
            if known == nil {
                found.insert(place.id)
            } else if missing.remove(place.id) == nil {
                throw files.damage(place.text, .uncatalogued)
            }
        }
        for id in index.entries.keys { try note(RecordPath(.indexed, id)) }
        for kind in RecordKind.allCases {
            for tenant in try tenants(of: kind, in: .plain) {
                for id in try identities(of: kind, tenant: tenant, in: .plain) {
                    let place = RecordPath(.plain, id)
                    guard try load(place) != nil else { throw files.damage(place.text, .missing) }
                    if index.entries[id] != nil { throw files.damage(place.text, .duplicate) }
                    try note(place)
                }
            }
        }
        if let id = missing.min() { throw files.missing(id) }
        return found
    }
}
