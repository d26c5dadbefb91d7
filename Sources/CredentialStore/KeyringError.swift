/// Why a list of keys cannot be read. Positions count from 1. No case carries key text. Retrying cannot help.
package enum KeyringError: Error, Equatable, Sendable, CustomStringConvertible {
    /// The list has no entry.
    case empty
    /// The entry is not `id:key` with an id of `[A-Za-z0-9_-]{1,32}`. The message does not quote the entry, which may
    /// be a key.
    case malformedEntry(position: Int)
    /// An earlier entry has the same id.
    case duplicateID(position: Int, id: String)
    /// The key is not Base 64 with padding (RFC 4648 §4).
    case invalidEncoding(position: Int, id: String)
    /// The key does not have 32 octets.
    case wrongLength(position: Int, id: String, count: Int)
    /// The key has so few different octets that it was not made at random.
    case notRandom(position: Int, id: String)
    /// An earlier key has the same identity by chance, which happens to one pair of keys in 2³². Another key must be
    /// generated.
    case identityTaken(position: Int, id: String)

    package var description: String {
        switch self {
        case .empty: "no keys are given"
        case .malformedEntry(let position):
            "entry \(position) is not of the form id:key, with an id of 1 to 32 of A-Z, a-z, 0-9, '_' and '-'"
        case .duplicateID(let position, let id): "entry \(position) uses the id '\(id)' again"
        case .invalidEncoding(let position, let id): "the key of entry \(position) ('\(id)') is not base64"
        case .wrongLength(let position, let id, let count):
            "the key of entry \(position) ('\(id)') has \(count) bytes instead of 32"
        case .notRandom(let position, let id):
            "the key of entry \(position) ('\(id)') is not random; token-broker keys generate makes one"
        case .identityTaken(let position, let id):
            "the key of entry \(position) ('\(id)') cannot be told apart from an earlier one; generate another"
        }
    }
}
