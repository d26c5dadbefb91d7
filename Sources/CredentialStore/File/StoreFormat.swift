internal import Reactor

/// The names in a store's directory, and the file that says which format the others have.
enum StoreFormat {
    static let name = "format"
    static let lockName = "lock"
    static let newName = "new"
    static let ownNames: Set<String> =
        Set(
            [lockName, newName, Catalog.name, CommitLog.name, FileLog.directoryName, "lost+found"]
                + RecordPath.Tree.allCases.map(\.rawValue) + StoreSecret.allCases.map(\.rawValue))

    /// 2 had no catalog, and a state of the log only where something had been trimmed.
    static let number = 3
    static let convertible = 2
    private static let prefix = "token-broker records "

    static var content: [UInt8] { Array((prefix + String(number) + "\n").utf8) }

    /// The format of a store that this build can use.
    static func read(_ directory: StoreDirectory, _ path: String) throws(FileStoreError) -> Int {
        let bytes: [UInt8]?
        do throws(SystemError) {
            bytes = try directory.read(name, limit: 100)
        } catch {
            if error.isOfTheFile { throw .damaged(path, name, .otherFile) }
            throw .system(path: path, error)
        }
        guard let bytes else { throw .damaged(path, name, .missing) }
        guard let number = parse(bytes) else {
            throw .damaged(path, name, bytes.isEmpty ? .empty : .otherFile)
        }
        if number > Self.number { throw .newerFormat(directory: path) }
        if number < convertible { throw .olderFormat(directory: path) }
        return number
    }

    static func parse(_ bytes: [UInt8]) -> Int? {
        // 64 octets at most are compared by their characters.
        guard let text = String(validating: bytes.prefix(64), as: UTF8.self), text.hasPrefix(prefix), text.last == "\n",
            let number = Int(text.dropFirst(prefix.count).dropLast()), number > 0
        else { return nil }
        return number
    }
}
