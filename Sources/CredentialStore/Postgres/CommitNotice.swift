internal import OAuth

/// What a replica tells the others of a commit, as the payload of a notification: names and versions, no content.
///
/// A line for each change, its words apart by spaces; no name holds one. Replicas of two builds run side by side during
/// an upgrade: what a build does not know, it takes for "anything may have changed".
enum CommitNotice {
    /// NOTIFY takes fewer than 8000 octets.
    private static let limit = 7900
    /// What stands for more than one notification can say.
    static let anything = "*"

    /// Nil where there is nothing to tell: leases that are taken and due marks that move are of no interest to others.
    static func text(_ changes: [RecordChange]) -> String? {
        var lines: [String] = []
        var grown: Set<TenantName> = []
        for change in changes {
            switch change {
            case .insert(let record), .replace(let record, _, _):
                lines.append("w \(record.version) \(words(record.id))")
            case .release(let id, let version, _, _): lines.append("w \(version) \(words(id))")
            case .remove(let id, _): lines.append("r \(words(id))")
            case .removeAll(let tenant): lines.append("t \(tenant)")
            case .append(let entry):
                if grown.insert(entry.tenant).inserted { lines.append("l \(entry.tenant)") }
            case .require, .settleDue, .claim: break
            }
        }
        if lines.isEmpty { return nil }
        let text = lines.joined(separator: "\n")
        return text.utf8.count <= limit ? text : anything
    }

    /// What a payload tells. Anybody who may connect to the database can send one: it is a hint, and never believed
    /// beyond what it has us read again.
    static func news(_ text: String) -> StoreNews {
        var changes: [StoreChange] = []
        // By octets, since characters would be put together first.
        for line in text.utf8.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false) {
            let words = line.split(separator: UInt8(ascii: " "), omittingEmptySubsequences: false)
            guard let change = change(words.map { Substring($0) }) else { return .unknown }
            changes.append(change)
        }
        return .changed(changes)
    }

    private static func change(_ words: [Substring]) -> StoreChange? {
        switch (words.first, words.count) {
        case ("w", 5):
            guard let version = Int64(words[1]), let id = id(words[2...]) else { return nil }
            return .written(id, version: version)
        case ("r", 4): return id(words[1...]).map { .removed($0) }
        case ("t", 2): return tenant(words[1]).map { .tenantRemoved($0) }
        case ("l", 2): return tenant(words[1]).map { .logGrown($0) }
        default: return nil
        }
    }

    private static func words(_ id: RecordID) -> String { "\(id.kind.rawValue) \(id.tenant) \(id.key)" }

    private static func id(_ words: ArraySlice<Substring>) -> RecordID? {
        guard let first = words.first, let kind = RecordKind(rawValue: String(first)),
            let tenant = tenant(words[words.startIndex + 1])
        else { return nil }
        return RecordID(kind, tenant, key: String(words[words.startIndex + 2]))
    }

    private static func tenant(_ name: Substring) -> TenantName? {
        name == TenantName.broker.description ? .broker : TenantName(String(name))
    }
}
