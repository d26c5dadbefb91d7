internal import Cryptography
internal import OAuth

/// Where in a store's directory a record's file stands: `tree/kind/tenant/name`.
struct RecordPath: Hashable, Sendable {
    /// Records with a look-up digest, an expiry, a due mark or a lease stand apart, so that a start has to read those and
    /// no others.
    enum Tree: String, CaseIterable, Sendable {
        case plain, indexed
    }

    let tree: Tree
    let id: RecordID

    init(_ tree: Tree, _ id: RecordID) {
        self.tree = tree
        self.id = id
    }

    /// Where a record with this content belongs.
    init(for record: StoredRecord) {
        let isIndexed =
            record.lookup != nil || record.expires != nil || record.due != nil || record.lease != nil
        self.init(isIndexed ? .indexed : .plain, record.id)
    }

    /// Nil for a path at which no record stands.
    init?(parsing path: String) {
        let parts = path.utf8.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
            .map { String(decoding: $0, as: UTF8.self) }
        guard parts.count == 4, let tree = Tree(rawValue: parts[0]), let kind = RecordKind(rawValue: parts[1]),
            let tenant = Self.tenant(named: parts[2]), let key = Self.key(named: parts[3])
        else { return nil }
        self.init(tree, RecordID(kind, tenant, key: key))
    }

    /// For an operator's eyes: where a record stands of which only the identity is known.
    static func eitherTree(_ id: RecordID) -> String {
        "{plain,indexed}/\(id.kind.rawValue)/\(id.tenant)/\(name(forKey: id.key))"
    }

    var directory: String { Self.directory(tree, id.kind, id.tenant) }

    var text: String { directory + "/" + Self.name(forKey: id.key) }

    static func directory(_ tree: Tree, _ kind: RecordKind, _ tenant: TenantName) -> String {
        "\(tree.rawValue)/\(kind.rawValue)/\(tenant)"
    }

    static func tenant(named name: String) -> TenantName? {
        name == TenantName.broker.description ? .broker : TenantName(name)
    }

    /// `=`, the key in lower case, then, where the key has capitals, `=` and hexadecimal digits whose bits say which
    /// characters those are.
    ///
    /// So no name is `.` or `..` or begins with a `~` or a hyphen, keys that differ in case only are told apart on file
    /// systems that ignore it, and the longest key still makes a name below the 255 octets that Linux allows.
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

    /// Nil unless `name(forKey:)` makes that name.
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
