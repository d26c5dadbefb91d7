import ExternalText
import JSON

/// What became of one line or entry.
struct ImportOutcome: Sendable {
    enum Kind: Sendable { case imported, unchanged, refused }

    let item: ImportItem
    /// The broker's line; nil for what this program refuses.
    let told: JSONValue?

    var kind: Kind {
        switch told?["outcome"]?.string {
        case "imported": .imported
        case "unchanged": .unchanged
        default: .refused
        }
    }

    /// Whether it may succeed later: the store or the provider does not answer now.
    var isForNow: Bool { kind == .refused && told?["retry_after"] != nil }

    /// For people, where it is refused: `line 12 (alice): conflict: The user is logged in.`
    var complaint: String? {
        guard kind == .refused else { return nil }
        var text = item.name ?? "line \(item.number)"
        if let key = told?["storage_key"]?.string?.text ?? item.storageKey, key != item.name { text += " (\(key))" }
        if case .refused(let reason) = item.content { return TextTable.shown("\(text): \(reason)") }
        if told?["outcome"]?.string == "conflict" { text += ": conflict" }
        // The broker speaks of its own parameter.
        let detail = told?["detail"]?.string?.text ?? "the broker gives no reason"
        text += ": " + detail.replacing("replace=true", with: "--replace")
        if let code = told?["error_code"]?.string?.text { text += " (\(code))" }
        var lines = [TextTable.shown(text)]
        let faults = told?["errors"]?.array ?? []
        // The detail tells a single one.
        for fault in faults.count > 1 ? faults : [] {
            guard let detail = fault["detail"]?.string?.text else { continue }
            lines.append(TextTable.shown(Refusal.line(of: fault, detail)))
        }
        return lines.joined(separator: "\n")
    }

    /// As the broker tells it, with the number of the input's line and the name of its entry.
    var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("line", item.number)
            json.memberIfPresent("entry", item.name)
            json.memberOrNull("storage_key", told?["storage_key"]?.string?.text ?? item.storageKey)
            if case .refused(let reason) = item.content {
                json.member("outcome", "failed")
                json.member("code", "invalid_request")
                json.member("detail", reason)
            }
            let known: [WireText] = ["outcome", "code", "detail"]
            for name in known {
                if let value = told?[name] { json.member(name.text, value) }
            }
            for (name, value) in (told?.object ?? [:]).sorted(by: { $0.key < $1.key })
            where !known.contains(name) && name != "line" && name != "storage_key" {
                json.member(name.text, value)
            }
        } + [0x0a]
    }

    /// Reads what the broker has told of lines, of each one in their order.
    /// - Throws: `failed` where it has not told of all.
    static func read(_ body: [UInt8], of lines: [ImportItem]) throws(CommandError) -> [ImportOutcome] {
        var outcomes: [ImportOutcome] = []
        for line in body.split(separator: 0x0a) {
            guard let value = try? JSONValue(parsing: Array(line)), let number = value["line"]?.integer else {
                throw CommandError.stranger("what comes is no outcome of an import")
            }
            guard number == outcomes.count + 1, outcomes.count < lines.count else {
                throw CommandError(
                    .failed,
                    TextTable.shown(
                        value["detail"]?.string?.text ?? "the broker's outcomes are not in the order of the lines"))
            }
            outcomes.append(ImportOutcome(item: lines[outcomes.count], told: value))
        }
        guard outcomes.count == lines.count else {
            throw CommandError(.failed, "the broker has told of \(outcomes.count) of \(lines.count) lines only")
        }
        return outcomes
    }
}
