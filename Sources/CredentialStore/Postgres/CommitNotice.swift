internal import ExternalText
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
        var text = ""
        var grown: [TenantName] = []
        func line(_ words: String...) {
            for (index, word) in words.enumerated() {
                if !text.isEmpty { text += index > 0 ? " " : "\n" }
                text += word
            }
        }
        for change in changes {
            switch change {
            case .insert(let record), .replace(let record, _, _):
                let id = record.id
                line("w", String(record.version), id.kind.rawValue, id.tenant.description, id.key)
            case .release(let id, let version, _, _):
                line("w", String(version), id.kind.rawValue, id.tenant.description, id.key)
            case .remove(let id, _): line("r", id.kind.rawValue, id.tenant.description, id.key)
            case .removeAll(let tenant): line("t", tenant.description)
            case .append(let entry):
                if grown.contains(entry.tenant) { continue }
                grown.append(entry.tenant)
                line("l", entry.tenant.description)
            case .require, .settleDue, .claim: break
            }
        }
        if text.isEmpty { return nil }
        return text.utf8.count <= limit ? text : anything
    }

    /// What a payload tells. Anybody who may connect to the database can send one: it is a hint, and never believed
    /// beyond what it has us read again.
    static func news(_ text: String) -> StoreNews {
        var changes: [StoreChange] = []
        // By octets, since characters would be put together first.
        var rest = text.utf8[...]
        while true {
            let line = rest.prefix { $0 != UInt8(ascii: "\n") }
            guard let change = change(line) else { return .unknown }
            changes.append(change)
            if line.endIndex == rest.endIndex { return .changed(changes) }
            rest = rest[line.endIndex...].dropFirst()
        }
    }

    private static func change(_ line: Substring.UTF8View) -> StoreChange? {
        var words = Words(rest: line)
        let change: StoreChange?
        switch words.next() {
        case "w":
            let version = words.next().flatMap { Int64($0) }
            change = words.id().flatMap { id in version.map { .written(id, version: $0) } }
        case "r": change = words.id().map { .removed($0) }
        case "t": change = words.tenant().map { .tenantRemoved($0) }
        case "l": change = words.tenant().map { .logGrown($0) }
        default: return nil
        }
        return words.isAtEnd ? change : nil
    }

    /// The words of a line, one after the other.
    private struct Words {
        /// Nil behind the last one.
        var rest: Substring.UTF8View?

        var isAtEnd: Bool { rest == nil }

        mutating func next() -> String? {
            guard let line = rest else { return nil }
            let word = line.prefix { $0 != UInt8(ascii: " ") }
            rest = word.endIndex == line.endIndex ? nil : line[word.endIndex...].dropFirst()
            return String(Substring(word))
        }

        mutating func id() -> RecordID? {
            guard let kind = next().flatMap({ RecordKind(WireText($0)) }), let tenant = tenant(), let key = next()
            else {
                return nil
            }
            return RecordID(kind, tenant, key: key)
        }

        mutating func tenant() -> TenantName? {
            next().flatMap { WireText($0) == WireText(TenantName.broker.description) ? .broker : TenantName($0) }
        }
    }
}
