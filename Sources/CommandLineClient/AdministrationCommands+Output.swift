import ExternalText
import JSON

/// What the commands of administration have in common.
extension AdministrationCommands {
    static let limit = CommandSpecification.Option("limit", "N", "show the first N only; all by default")
    static let secretFile = CommandSpecification.Option(
        "secret-file", "PATH",
        "a file whose first line is the client secret; - asks for it, or reads it from standard input")

    /// The number of elements that are wanted; nil for all.
    static func limit(_ invocation: Invocation) throws(CommandError) -> Int? {
        try invocation.integer("limit", in: 1...1_000_000)
    }

    /// A document of the broker: as it is for programs, as lines of members for people.
    /// - Parameter first: the members that stand first.
    static func show(_ answer: BrokerAPI.Answer, first: [WireText], _ invocation: Invocation) throws(CommandError) {
        if invocation.printsJSON { return invocation.printLine(answer.body) }
        invocation.show(table(of: try answer.json(), first: first))
    }

    /// A line for each member of an object, but for what `noteWarnings` says.
    static func table(of value: JSONValue, first: [WireText]) -> TextTable {
        let members = value.object ?? [:]
        var table = TextTable("MEMBER", "VALUE")
        let left = members.keys.filter { !first.contains($0) && $0 != "warnings" && $0 != "dropped" }.sorted()
        for name in first + left {
            if let value = members[name] { table.add(name.text, text(of: SecretMembers.shown(name, value))) }
        }
        return table
    }

    /// A value for people: a text as it is, texts with commas, `-` for nothing, else JSON.
    static func text(of value: JSONValue?) -> String {
        switch value {
        case nil, .null: return "-"
        case .string(let text): return text.isEmpty ? "-" : text.text
        case .bool(let value): return value ? "yes" : "no"
        case .array(let values):
            let texts = values.compactMap { $0.string?.text }
            if texts.count == values.count { return texts.isEmpty ? "-" : texts.joined(separator: ", ") }
        default: break
        }
        return value.map { String(decoding: $0.encoded, as: UTF8.self) } ?? "-"
    }

    /// A line of JSON for each element.
    static func printLines(_ elements: [JSONValue], _ invocation: Invocation) {
        for element in elements { invocation.printLine(element) }
    }

    /// An object as the body of a request.
    static func body(_ members: [WireText: JSONValue]) -> [UInt8] { JSONValue.object(members).encoded }

    /// What the broker says of a configuration that it has taken, for people.
    static func noteWarnings(_ value: JSONValue, _ invocation: Invocation) {
        if let dropped = value["dropped"]?.array, !dropped.isEmpty {
            invocation.terminal.note("Not set any more: \(TextTable.shown(text(of: .array(dropped)))).")
        }
        for warning in value["warnings"]?.array ?? [] {
            // For people of the command line.
            let detail = text(of: warning["detail"]).replacing("GET /providers/", with: "token-broker providers show ")
            invocation.terminal.note("Warning: \(TextTable.shown(detail))")
        }
    }

    /// The secret of `--secret-file`; nil where that is not given.
    static func secretOfFile(_ invocation: Invocation) throws(CommandError) -> String? {
        guard let path = invocation["secret-file"] else { return nil }
        let text =
            path == "-" ? invocation.terminal.secret("Client secret: ") : try GivenFile.text(path, limit: 64 << 10)
        // By scalars: a carriage return and a line feed are one character of a String.
        let line = (text ?? "").unicodeScalars.drop { $0 == "\u{feff}" }.prefix { $0 != "\n" && $0 != "\r" }
        let secret = String(line)
        guard !secret.isEmpty else { throw CommandError(.refused, "\(path) holds no secret") }
        return secret
    }

    /// Texts as a list of JSON; nil for none, so that the member is left out.
    static func list(_ texts: [String]) -> JSONValue? {
        texts.isEmpty ? nil : .array(texts.map { .string(WireText($0)) })
    }
}
