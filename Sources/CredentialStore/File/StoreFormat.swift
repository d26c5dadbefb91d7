/// The names in a store's directory, and the file with the number of the store's format.
enum StoreFormat {
    static let name = "format"
    static let lockName = "lock"
    static let draftsName = "new"
    static let ownNames: Set<String> =
        Set(
            [
                lockName, draftsName, RoomReserve.name, Catalog.name, CommitLog.name, FileLog.directoryName,
                AuditFrame.directoryName,
                "lost+found",
                // Where the broker listens, while it does.
                "address",
            ]
                + RecordPath.Tree.allCases.map(\.rawValue) + StoreSecret.allCases.map(\.rawValue))

    /// Format 2 has no catalog, and a state of the log only after a trimming.
    static let number = 3
    static let convertible = 2
    private static let prefix = "token-broker records "

    static var content: [UInt8] { Array((prefix + String(number) + "\n").utf8) }

    /// The number of the store's format, if this build can use it.
    static func read(_ files: StoreFiles) throws(FileStoreError) -> Int {
        guard let bytes = try files.read(name, limit: 100) else { throw files.damage(name, .missing) }
        guard let number = parse(bytes) else { throw files.damage(name, bytes.isEmpty ? .empty : .otherFile) }
        if number > Self.number { throw .newerFormat(directory: files.path) }
        if number < convertible { throw .olderFormat(directory: files.path) }
        return number
    }

    static func parse(_ bytes: [UInt8]) -> Int? {
        // The file is compared by characters, so its length is limited first.
        guard let text = String(validating: bytes.prefix(64), as: UTF8.self), text.hasPrefix(prefix), text.last == "\n",
            let number = Int(text.dropFirst(prefix.count).dropLast()), number > 0
        else { return nil }
        return number
    }
}
