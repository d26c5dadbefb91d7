import Glibc
import Reactor

/// Changes the files of a store, and tracks which changes are not durable yet.
///
/// Not Sendable: belongs to one `FileRecords` and its thread. Calls block.
final class FileWriter {
    private let directory: StoreDirectory
    /// The directories that are known to exist: those of tenants and those above them.
    private var knownDirectories: Set<String> = []
    /// The files and directories that were changed since the last `synchronize`.
    private var unsynchronizedFiles: Set<String> = []
    private var unsynchronizedDirectories: Set<String> = []
    private var lastDraftNumber: UInt64 = 0

    init(_ directory: StoreDirectory) {
        self.directory = directory
    }

    /// Whether every change is durable.
    var isSynchronized: Bool { unsynchronizedFiles.isEmpty && unsynchronizedDirectories.isEmpty }

    /// Forgets what was tracked, before a recovery makes all changes of the write-ahead log again.
    func reset() {
        unsynchronizedFiles = []
        unsynchronizedDirectories = []
        knownDirectories = []
    }

    /// Makes a change, which `synchronize` makes durable.
    func make(_ change: FileChange) throws(SystemError) {
        switch change {
        case .write(let target, let bytes):
            // Overwrites the file in place. That happens in a recovery only, before records are read, and also works on
            // a full disk.
            try makeDirectory(Self.parent(of: target))
            try directory.append(bytes, to: target, at: 0)
            noteWriting(to: target, changesDirectory: true)
        case .remove(let path):
            let parent = Self.parent(of: path)
            var mayComeBack = try directory.remove(path)
            unsynchronizedFiles.remove(path)
            // A missing file may have been removed by another process, and not durably. When its directory is missing
            // as well, the file cannot come back; other files of that directory are found to be missing later.
            if !mayComeBack { mayComeBack = try directory.exists(parent) }
            if mayComeBack { unsynchronizedDirectories.insert(parent) }
        case .append(let path, let offset, let bytes):
            if offset == 0 { try makeDirectory(Self.parent(of: path)) }
            try directory.append(bytes, to: path, at: offset)
            noteWriting(to: path, changesDirectory: offset == 0)
        }
    }

    /// Renames a finished draft to its final name; `synchronize` makes that durable.
    func place(_ draft: String, at target: String) throws(SystemError) {
        try directory.rename(draft, to: target)
        noteWriting(to: target, changesDirectory: true)
    }

    private func noteWriting(to path: String, changesDirectory: Bool) {
        unsynchronizedFiles.insert(path)
        if changesDirectory { unsynchronizedDirectories.insert(Self.parent(of: path)) }
    }

    /// Makes a directory and those above it, where they do not exist.
    func makeDirectory(_ path: String) throws(SystemError) {
        if path == "." || knownDirectories.contains(path) { return }
        let parent = Self.parent(of: path)
        try makeDirectory(parent)
        try directory.makeDirectory(path)
        unsynchronizedDirectories.insert(parent)
        knownDirectories.insert(path)
    }

    /// Makes every change durable.
    func synchronize() throws(SystemError) {
        for path in unsynchronizedFiles.sorted() { try directory.synchronizeFile(path) }
        for path in unsynchronizedDirectories.sorted() { try directory.synchronize(path) }
        unsynchronizedFiles = []
        unsynchronizedDirectories = []
    }

    // MARK: Drafts

    /// A path for a new file that does not count until it is renamed.
    func newDraft() -> String {
        lastDraftNumber += 1
        return "\(StoreFormat.draftsName)/\(lastDraftNumber)"
    }

    func removeDrafts() throws(SystemError) {
        for name in try directory.names(in: StoreFormat.draftsName) {
            try directory.remove("\(StoreFormat.draftsName)/\(name)")
        }
    }

    /// Writes a whole file durably, or not at all.
    func replace(_ name: String, with bytes: [UInt8]) throws(SystemError) {
        let draft = newDraft()
        try directory.write(draft, bytes)
        try directory.rename(draft, to: name)
        try directory.synchronize(Self.parent(of: name))
    }

    private static func parent(of path: String) -> String {
        guard let slash = path.lastIndex(of: "/") else { return "." }
        return String(path[..<slash])
    }
}
