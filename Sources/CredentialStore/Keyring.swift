package import Cryptography
import OAuth

/// The keys of the store. The first key seals new records; every key opens the records that it has sealed.
///
/// To replace a key, put its successor in front, and keep the old key until no record is sealed under it.
package struct Keyring: Sendable {
    struct Key: Sendable {
        let id: String
        let identity: KeyIdentity
        let bytes: SecretBytes
    }

    /// The least number of different octets in a key. Of 10^37 random keys of 32 octets, about one has fewer.
    private static let leastDistinct = 8

    let primary: Key
    private let byIdentity: [KeyIdentity: Key]
    private let ids: Set<String>

    /// Reads `id:key` entries that are separated by commas. White space around an entry is ignored. An id is
    /// `[A-Za-z0-9_-]{1,32}`, a key is 32 octets in Base 64.
    package init(parsing text: String) throws(KeyringError) {
        var keys: [Key] = []
        var byIdentity: [KeyIdentity: Key] = [:]
        var ids: Set<String> = []
        if text.utf8.allSatisfy(Self.isWhiteSpace) { throw .empty }
        for (index, entry) in text.utf8.split(separator: UInt8(ascii: ","), omittingEmptySubsequences: false)
            .enumerated()
        {
            let position = index + 1
            let trimmed = Self.trimmed(entry)
            guard let colon = trimmed.firstIndex(of: UInt8(ascii: ":")) else {
                throw .malformedEntry(position: position)
            }
            let idBytes = trimmed[..<colon]
            guard (1...32).contains(idBytes.count), idBytes.allSatisfy(Self.isIDCharacter) else {
                throw .malformedEntry(position: position)
            }
            let id = String(decoding: idBytes, as: UTF8.self)
            guard ids.insert(id).inserted else { throw .duplicateID(position: position, id: id) }
            guard
                let bytes = Base64.decode(
                    String(decoding: trimmed[trimmed.index(after: colon)...], as: UTF8.self))
            else { throw .invalidEncoding(position: position, id: id) }
            guard bytes.count == AES256GCM.keyCount else {
                throw .wrongLength(position: position, id: id, count: bytes.count)
            }
            guard Set(bytes).count >= Self.leastDistinct else { throw .notRandom(position: position, id: id) }
            let secret = SecretBytes(bytes)
            let key = Key(id: id, identity: KeyIdentity(id: id, key: secret), bytes: secret)
            guard byIdentity.updateValue(key, forKey: key.identity) == nil else {
                throw .identityTaken(position: position, id: id)
            }
            keys.append(key)
        }
        primary = keys[0]
        self.byIdentity = byIdentity
        self.ids = ids
    }

    private init(primary: Key, byIdentity: [KeyIdentity: Key], ids: Set<String>) {
        self.primary = primary
        self.byIdentity = byIdentity
        self.ids = ids
    }

    /// The same keys, of which `key` seals.
    /// - Parameter key: one of `all`.
    func led(by key: Key) -> Keyring { Keyring(primary: key, byIdentity: byIdentity, ids: ids) }

    /// A new key in the form that `init(parsing:)` reads.
    /// - Parameter id: `[A-Za-z0-9_-]{1,32}`.
    /// - Throws: `.randomnessUnavailable`; `.invalidLength` when `id` is not an id.
    package static func generate(id: String) throws(CryptographyError) -> String {
        guard (1...32).contains(id.utf8.count), id.utf8.allSatisfy(isIDCharacter) else { throw .invalidLength }
        return id + ":" + Base64.encode(try SecureRandom.bytes(AES256GCM.keyCount))
    }

    /// A keyring of one new key, which is written nowhere.
    /// - Throws: `.randomnessUnavailable` (retrying later may help).
    static func ofProcess() throws(CryptographyError) -> Keyring {
        let (id, bytes) = ("process", try SecureRandom.secret(AES256GCM.keyCount))
        let key = Key(id: id, identity: KeyIdentity(id: id, key: bytes), bytes: bytes)
        return Keyring(primary: key, byIdentity: [key.identity: key], ids: [id])
    }

    /// Whether it has the same keys, with the same first one.
    package func isSame(as other: Keyring) -> Bool {
        primary.identity == other.primary.identity && Set(byIdentity.keys) == Set(other.byIdentity.keys)
    }

    /// The id of the key that seals.
    package var primaryID: String { primary.id }

    func key(_ identity: KeyIdentity) -> Key? { byIdentity[identity] }

    /// All keys, in no order.
    var all: [Key] { Array(byIdentity.values) }

    func contains(id: String) -> Bool { ids.contains(id) }

    private static func isIDCharacter(_ byte: UInt8) -> Bool {
        byte.isLowercaseLetter || byte.isUppercaseLetter || byte.isDigit || byte == UInt8(ascii: "_")
            || byte == UInt8(ascii: "-")
    }

    private static func isWhiteSpace(_ byte: UInt8) -> Bool {
        byte == UInt8(ascii: " ") || byte == UInt8(ascii: "\t") || byte == UInt8(ascii: "\n")
            || byte == UInt8(ascii: "\r")
    }

    private static func trimmed(_ text: Substring.UTF8View) -> Substring.UTF8View {
        var text = text[...]
        while let first = text.first, isWhiteSpace(first) { text = text.dropFirst() }
        while let last = text.last, isWhiteSpace(last) { text = text.dropLast() }
        return text
    }
}

extension Keyring: CustomStringConvertible, CustomDebugStringConvertible {
    package var description: String { "keyring whose key '\(primary.id)' seals" }
    package var debugDescription: String { description }
}
