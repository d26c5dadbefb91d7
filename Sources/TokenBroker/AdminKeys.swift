package import BrokerCore
package import Cryptography
import ExternalText

/// The operator's keys. Each has a name, so that an operator can replace one key and keep the others, and a role.
package struct AdminKeys: Sendable {
    /// Why a text is not a list of keys. Positions count from 1. No case contains any text of a key.
    package enum Fault: Error, Equatable, Sendable, CustomStringConvertible {
        /// The text before the entry's colon is not a name. It is not shown, because it may be part of a key.
        case malformedName(position: Int)
        /// The text between the entry's slash and its colon is not a role. Neither it nor the name is shown, because both may be
        /// parts of a key.
        case unknownRole(position: Int)
        /// No key may change the configuration.
        case noAdmin
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
                "entry \(position) is not of the form name:key or name/role:key, with a name of 1 to 63 of a-z, 0-9 and "
                    + "'-' that does not begin with '-'; a key without a name has no colon"
            case .unknownRole(let position):
                "entry \(position) has an unknown role; the roles are "
                    + AdminRole.allCases.map(\.rawValue).joined(separator: ", ")
            case .noAdmin: "has no key with the role admin, so that no key may change tenants and API keys"
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

    private typealias Entry = (name: AdminName, role: AdminRole, digest: SHA256.Words)

    private let entries: [Entry]

    /// Reads a comma-separated list of keys. An entry is `name:key` or `name/role:key`, or a key without a colon, whose name is
    /// `admin`. Without a role it has the role `admin`. No key contains a comma.
    package init(parsing text: SecretBytes) throws(Fault) {
        var known: [Entry] = []
        let entries = text.revealedBytes.split(separator: UInt8(ascii: ","), omittingEmptySubsequences: false)
        for (index, entry) in entries.enumerated() {
            var (name, role, key) = (AdminName.unnamed, AdminRole.admin, entry)
            if let colon = entry.firstIndex(of: UInt8(ascii: ":")) {
                let parts = entry[..<colon].split(
                    separator: UInt8(ascii: "/"), maxSplits: 1, omittingEmptySubsequences: false)
                guard let given = AdminName(parts[0]) else { throw .malformedName(position: index + 1) }
                if parts.count > 1 {
                    guard let named = AdminRole(WireText(Array(parts[1]))) else {
                        throw .unknownRole(position: index + 1)
                    }
                    role = named
                }
                (name, key) = (given, entry[entry.index(after: colon)...])
            }
            if known.contains(where: { $0.name == name }) { throw .duplicateName(name) }
            guard Self.lengths.contains(key.count), key.allSatisfy({ $0 > 0x20 && $0 < 0x7f }) else {
                throw .malformedKey(name)
            }
            guard Set(key).count >= Self.leastDistinct else { throw .guessable(name) }
            let digest = SHA256.words(Array(key).span)
            if known.contains(where: { $0.digest == digest }) { throw .duplicateKey(name) }
            known.append((name, role, digest))
        }
        guard known.contains(where: { $0.role == .admin }) else { throw .noAdmin }
        self.entries = known
    }

    /// The names and roles of the keys.
    package var described: [(name: AdminName, role: AdminRole)] { entries.map { ($0.name, $0.role) } }

    /// The name and the role of the key with this digest; nil if no key has it. The time that this takes does not depend on
    /// the result.
    func find(digest: SHA256.Words) -> (name: AdminName, role: AdminRole)? {
        var found: Int?
        for index in entries.indices where digest.isEqual(entries[index].digest) { found = index }
        return found.map { (entries[$0].name, entries[$0].role) }
    }
}
