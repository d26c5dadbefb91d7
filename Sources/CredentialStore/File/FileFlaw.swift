package import Reactor

/// What is wrong with one file of a store.
package enum FileFlaw: Error, Equatable, Sendable {
    case missing
    case empty
    /// It ends before what it says it holds.
    case truncated
    /// Its content is not what its checksum was made of.
    case checksum
    /// It is whole, and was written as another file.
    case otherFile
    /// Another file has the same record, or the look-up digest that only one record may have.
    case duplicate
    /// A name that no file of a store has.
    case unknownName
    /// The catalog does not name it: no commit wrote it, or one that removed it came after.
    case uncatalogued
    /// It is whole, but what the log had before it is missing.
    case gap
    /// The system refuses to read it. Only an examination says so; a store that is used reports the system's error.
    case unreadable(SystemError)
    /// A later version of this program wrote it.
    case newerFormat
    /// The record is sealed under a key that is not configured.
    case unknownKey(KeyIdentity)
    /// The record does not open although its key is configured: it was altered, moved or put back.
    case brokenSeal
    /// A secret's file that does not hold such a secret.
    case noSecret

    package var isUnknownKey: Bool {
        if case .unknownKey = self { true } else { false }
    }

    /// In words that follow "is damaged: ".
    package var text: String {
        switch self {
        case .missing: "it is missing"
        case .empty: "it is empty"
        case .truncated: "it is truncated"
        case .checksum: "its checksum is wrong"
        case .otherFile: "it holds another file's content"
        case .duplicate: "another file holds the same record or look-up digest"
        case .unknownName: "no file of a store has this name"
        case .uncatalogued: "the catalog does not name it"
        case .gap: "the events before it are missing"
        case .unreadable(let error): "it cannot be read (\(error))"
        case .newerFormat: "a later version of token-broker wrote it"
        case .unknownKey(let identity): "it is sealed under a key that is not configured (\(identity))"
        case .brokenSeal: "it does not open with the configured keys: it was altered, moved or put back"
        case .noSecret: "it does not hold what it should"
        }
    }
}

extension FileStoreError {
    /// - Parameter file: relative to the directory.
    static func damaged(_ directory: String, _ file: String, _ flaw: FileFlaw) -> FileStoreError {
        if flaw == .newerFormat { return .newerFormat(directory: directory) }
        let record = RecordPath(parsing: file).map { " (\($0.id.text))" } ?? ""
        return .damaged("\(directory)/\(file) is damaged: \(flaw.text)\(record)")
    }

    /// A record is missing, which stood in either tree.
    static func missing(_ directory: String, _ id: RecordID) -> FileStoreError {
        .damaged("\(directory)/\(RecordPath.eitherTree(id)) is damaged: \(FileFlaw.missing.text) (\(id.text))")
    }
}
