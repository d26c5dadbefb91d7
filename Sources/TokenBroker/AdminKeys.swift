package import BrokerCore
package import Cryptography

/// The operator's keys, each with a name, so that one can be replaced while the others stay as they are.
package struct AdminKeys: Sendable {
    /// What is wrong with a text of keys. Positions count from 1; no case carries key text.
    package enum Fault: Error, Equatable, Sendable, CustomStringConvertible {
        /// The entry has a colon, and what stands before it is no name. It is not shown: it may be a part of a key.
        case malformedName(position: Int)
        /// An earlier entry has the same name.
        case duplicateName(AdminName)
        /// The key has not between 32 and 512 characters, or others than visible ASCII.
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
    /// Of 32 random hexadecimal digits, hardly one key in ten million has fewer different ones.
    private static let leastDistinct = 8

    private let digests: [(name: AdminName, digest: SHA256.Words)]

    /// Reads keys with commas between them, each by itself or as `name:key`. A key by itself has the name `admin`, and
    /// neither a comma nor a colon.
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

    /// The name of the key with that digest; nil for none. Takes the same time whichever it is.
    func name(digest: SHA256.Words) -> AdminName? {
        var found: AdminName?
        for known in digests where digest.isEqual(known.digest) { found = known.name }
        return found
    }
}
