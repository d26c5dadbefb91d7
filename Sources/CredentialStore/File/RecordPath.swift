import Cryptography
import OAuth

/// The path of a record's file in the store's directory: `tree/kind/tenant/name`.
struct RecordPath: Hashable, Sendable {
    /// Records with a look-up digest, an expiry, a due mark or a lease are in a tree of their own, so that a recovery
    /// need read no others.
    enum Tree: String, CaseIterable, Sendable {
        case plain, indexed
    }

    let tree: Tree
    let id: RecordID

    init(_ tree: Tree, _ id: RecordID) {
        self.tree = tree
        self.id = id
    }

    /// The path for a record.
    init(for record: StoredRecord) {
        let isIndexed =
            record.lookup != nil || record.expires != nil || record.due != nil || record.lease != nil
        self.init(isIndexed ? .indexed : .plain, record.id)
    }

    /// Nil for a path that no record can have.
    init?(parsing path: String) {
        let parts = path.utf8.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
            .map { String(decoding: $0, as: UTF8.self) }
        guard parts.count == 4, let tree = Tree(rawValue: parts[0]), let kind = RecordKind(rawValue: parts[1]),
            let tenant = TenantName(stored: parts[2]), let key = Self.key(named: parts[3])
        else { return nil }
        self.init(tree, RecordID(kind, tenant, key: key))
    }

    /// Both paths that a record can have, for operators.
    static func eitherTree(_ id: RecordID) -> String {
        "{plain,indexed}/\(id.kind.rawValue)/\(id.tenant)/\(name(forKey: id.key))"
    }

    var directory: String { Self.directory(tree, kind: id.kind, tenant: id.tenant) }

    var text: String { directory + "/" + Self.name(forKey: id.key) }

    static func directory(_ tree: Tree, kind: RecordKind, tenant: TenantName) -> String {
        "\(tree.rawValue)/\(kind.rawValue)/\(tenant)"
    }

    /// The name is `=` and the key in lower case. If the key has capitals, `=` follows, with hexadecimal digits whose
    /// bits say which characters are capitals.
    ///
    /// So no name is `.` or `..` or begins with `~` or a hyphen; keys that differ only in case have different names on
    /// file systems that ignore case; and the longest key has a name of fewer than the 255 octets that Linux allows.
    static func name(forKey key: String) -> String {
        var name: [UInt8] = [UInt8(ascii: "=")]
        var capitals = [UInt8](repeating: 0, count: (key.utf8.count + 7) / 8)
        for (index, character) in key.utf8.enumerated() {
            name.append(character.isUppercaseLetter ? character | 0x20 : character)
            if character.isUppercaseLetter { capitals[index / 8] |= 1 << UInt8(index % 8) }
        }
        while capitals.last == 0 { capitals.removeLast() }
        let text = String(decoding: name, as: UTF8.self)
        return capitals.isEmpty ? text : text + "=" + Hex.encode(capitals)
    }

    /// The key for which `name(forKey:)` returns this name; nil when there is none.
    static func key(named name: String) -> String? {
        let parts = name.utf8.split(separator: UInt8(ascii: "="), omittingEmptySubsequences: false)
        guard (2...3).contains(parts.count), parts[0].isEmpty else { return nil }
        let capitals = parts.count == 3 ? Hex.decode(String(decoding: parts[2], as: UTF8.self)) : []
        guard let capitals else { return nil }
        var key = Array(parts[1])
        for index in key.indices where index / 8 < capitals.count && capitals[index / 8] >> UInt8(index % 8) & 1 == 1 {
            guard key[index].isLowercaseLetter else { return nil }
            key[index] &= ~0x20
        }
        let text = String(decoding: key, as: UTF8.self)
        return Self.name(forKey: text) == name ? text : nil
    }
}
