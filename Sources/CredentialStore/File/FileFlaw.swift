package import Reactor

/// The flaw of one file of a store.
package enum FileFlaw: Error, Equatable, Sendable {
    case missing
    case empty
    /// It is shorter than the lengths of its fields say.
    case truncated
    /// Its checksum does not match its content.
    case checksum
    /// It is intact, but contains the content of another file.
    case otherFile
    /// Another file has the same record, or the same look-up digest, which must be unique.
    case duplicate
    /// No file of a store has this name.
    case unknownName
    /// The catalog does not list it: no commit wrote it, or a later commit removed it.
    case uncatalogued
    /// It is intact, but the part of the log before it is missing.
    case gap
    /// The system cannot read it. Only an examination reports this; an open store reports the system's error.
    case unreadable(SystemError)
    /// A later version of this program wrote it.
    case newerFormat
    /// The record is sealed under a key that is not configured.
    case unknownKey(KeyIdentity)
    /// The record does not open although its key is configured: it was altered, moved or replaced by an earlier
    /// version.
    case brokenSeal
    /// The file of a secret does not contain such a secret.
    case noSecret

    package var isUnknownKey: Bool {
        if case .unknownKey = self { true } else { false }
    }

    /// A phrase that follows "is damaged: ".
    package var text: String {
        switch self {
        case .missing: "it is missing"
        case .empty: "it is empty"
        case .truncated: "it is truncated"
        case .checksum: "its checksum is wrong"
        case .otherFile: "it contains the content of another file"
        case .duplicate: "another file has the same record or look-up digest"
        case .unknownName: "no file of a store has this name"
        case .uncatalogued: "the catalog does not list it"
        case .gap: "the events before it are missing"
        case .unreadable(let error): "it cannot be read (\(error))"
        case .newerFormat: "a later version of token-broker wrote it"
        case .unknownKey(let identity): "it is sealed under a key that is not configured (\(identity))"
        case .brokenSeal:
            "it does not open with the configured keys: it was altered, moved or replaced by an earlier version"
        case .noSecret: "it does not contain the secret"
        }
    }
}
