package import BrokerCore
package import Cryptography

/// The operator's keys. Each has a name, so that an operator can replace one key and keep the others.
package struct AdminKeys: Sendable {
    /// Why a text is not a list of keys. Positions count from 1. No case contains any text of a key.
    package enum Fault: Error, Equatable, Sendable, CustomStringConvertible {
        /// The text before the entry's colon is not a name. It is not shown, because it may be part of a key.
        case malformedName(position: Int)
        /// An earlier entry has the same name.
        case duplicateName(AdminName)
        /// The key has fewer than 32 or more than 512 characters, or a character that is not visible ASCII.
        case malformedKey(AdminName)
        /// The key consists of a few characters that are repeated.
        case guessable(AdminName)
        /// An earlier entry has the same key.
        case duplicateKey(AdminName)

        package var description: String {
            switch self {
            case .malformedName(let position):
                "entry \(position) is not of the form name:key, with a name of 1 to 63 of a-z, 0-9 and '-' that does "
                    + "not begin with '-'; a key without a name has no colon"
            case .duplicateName(let name): "has two keys of the name '\(name)'"
            case .malformedKey(let name):
                "must have \(lengths.lowerBound) to \(lengths.upperBound) visible ASCII characters without spaces; the "
                    + "key '\(name)' has not"
            case .guessable(let name):
                "must be random; the key '\(name)' has fewer than \(leastDistinct) different characters"
            case .duplicateKey(let name): "has the key of '\(name)' under another name as well"
            }
        }
    }

    /// How many characters a key has.
    package static let lengths = 32...512
    /// The fewest different characters of a key. Fewer than one in ten million keys of 32 random hexadecimal digits has
    /// less.
    private static let leastDistinct = 8

    private let digests: [(name: AdminName, digest: SHA256.Words)]

    /// Reads a comma-separated list of keys. An entry is `name:key`, or a key without a colon, whose name is `admin`.
    /// No key contains a comma.
    package init(parsing text: SecretBytes) throws(Fault) {
        var digests: [(name: AdminName, digest: SHA256.Words)] = []
        let entries = text.revealedBytes.split(separator: UInt8(ascii: ","), omittingEmptySubsequences: false)
        for (index, entry) in entries.enumerated() {
            var (name, key) = (AdminName.unnamed, entry)
            if let colon = entry.firstIndex(of: UInt8(ascii: ":")) {
                guard let given = AdminName(entry[..<colon]) else { throw .malformedName(position: index + 1) }
                (name, key) = (given, entry[entry.index(after: colon)...])
            }
            if digests.contains(where: { $0.name == name }) { throw .duplicateName(name) }
            guard Self.lengths.contains(key.count), key.allSatisfy({ $0 > 0x20 && $0 < 0x7f }) else {
                throw .malformedKey(name)
            }
            guard Set(key).count >= Self.leastDistinct else { throw .guessable(name) }
            let digest = SHA256.words(Array(key).span)
            if digests.contains(where: { $0.digest == digest }) { throw .duplicateKey(name) }
            digests.append((name, digest))
        }
        self.digests = digests
    }

    /// The name of the key with this digest; nil if no key has it. The time that this takes does not depend on the
    /// result.
    func name(digest: SHA256.Words) -> AdminName? {
        var found: AdminName?
        for known in digests where digest.isEqual(known.digest) { found = known.name }
        return found
    }
}
