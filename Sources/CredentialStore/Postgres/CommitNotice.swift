import ExternalText
import OAuth

/// The payload of the notification by which a replica tells the others of a commit: names and versions, no content.
///
/// One line per change, with words separated by spaces; no name contains a space. During an upgrade replicas of two
/// builds run side by side: a build takes a line that it does not know for "anything may have changed".
enum CommitNotice {
    /// NOTIFY takes fewer than 8000 octets.
    private static let limit = 7900
    /// The payload for a commit whose notice is longer than the limit.
    static let anything = "*"

    /// The payload for a commit. Nil when the commit only takes leases, moves due marks, adds to the audit log or writes a
    /// replica's report or registration, which other replicas do not cache.
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
                if id.kind == .process || id.kind == .journal { continue }
                line("w", String(record.version), id.kind.rawValue, id.tenant.description, id.key)
            case .release(let id, let version, _, _):
                line("w", String(version), id.kind.rawValue, id.tenant.description, id.key)
            case .remove(let id, _): line("r", id.kind.rawValue, id.tenant.description, id.key)
            case .removeAll(let tenant): line("t", tenant.description)
            case .append(let entry):
                if grown.contains(entry.tenant) { continue }
                grown.append(entry.tenant)
                line("l", entry.tenant.description)
            case .require, .settleDue, .claim, .audit: break
            }
        }
        if text.isEmpty { return nil }
        return text.utf8.count <= limit ? text : anything
    }

    /// Reads a payload. Every client of the database can send one, so it must have no other effect than that records
    /// are read again.
    static func notification(in text: String) -> StoreNotification {
        var changes: [StoreChange] = []
        // Splits the octets, because splitting characters would first combine them into grapheme clusters.
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

    /// Reads the words of a line one after the other.
    private struct Words {
        /// Nil after the last word.
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
            next().flatMap { TenantName(stored: $0) }
        }
    }
}
