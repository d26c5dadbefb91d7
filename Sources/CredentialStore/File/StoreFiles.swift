import Reactor

/// The directory of a store, with errors that name the store and the file.
///
/// Not Sendable: belongs to one store and its thread. Calls block.
struct StoreFiles {
    /// The path of the directory, for messages.
    let path: String
    let directory: StoreDirectory

    /// The content of a file from `offset` on; nil when the file does not exist.
    func read(_ name: String, from offset: Int = 0, limit: Int) throws(FileStoreError) -> [UInt8]? {
        try onFile(name) { () throws(SystemError) in try directory.read(name, from: offset, limit: limit) }
    }

    /// The names in a directory, in no order; none when the directory does not exist.
    func names(in parent: String) throws(FileStoreError) -> [String] {
        try onDisk { () throws(SystemError) in try directory.names(in: parent) }
    }

    func exists(_ name: String) throws(FileStoreError) -> Bool {
        try onDisk { () throws(SystemError) in try directory.exists(name) }
    }

    /// Runs calls on the file system.
    func onDisk<R>(_ body: () throws(SystemError) -> R) throws(FileStoreError) -> R {
        do throws(SystemError) {
            return try body()
        } catch {
            throw .system(path: path, error)
        }
    }

    /// Runs calls on one file. An error that the file causes, and not the disk, is damage of the file.
    func onFile<R>(_ name: String, _ body: () throws(SystemError) -> R) throws(FileStoreError) -> R {
        do throws(SystemError) {
            return try body()
        } catch {
            throw error.isOfTheFile ? damage(name, .otherFile) : .system(path: path, error)
        }
    }

    /// - Parameter name: relative to the directory.
    func damage(_ name: String, _ flaw: FileFlaw) -> FileStoreError {
        if flaw == .newerFormat { return .newerFormat(directory: path) }
        let record = RecordPath(parsing: name).map { " (\($0.id.text))" } ?? ""
        return .damaged("\(path)/\(name) is damaged: \(flaw.text)\(record)")
    }

    /// A record is missing that may have been in either tree.
    func missing(_ id: RecordID) -> FileStoreError {
        .damaged("\(path)/\(RecordPath.eitherTree(id)) is damaged: \(FileFlaw.missing.text) (\(id.text))")
    }
}
