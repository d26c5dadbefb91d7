import ExternalText
import JSON

/// Members of a JSON object as they stand on a command line: `MEMBER=TEXT`, `MEMBER:=JSON`, and with `@PATH` in the place of the
/// text or the JSON what a file holds. `parameters.region=eu` is the member `region` of the object `parameters`; the value `null`
/// stands for JSON's.
struct AssignedMembers {
    private(set) var members: [WireText: JSONValue] = [:]

    private static let longestFile = 64 << 10

    /// - Throws: `usage` for a word of another form, a member that stands twice, and a secret; `refused` for a file that cannot be
    ///   read.
    init(_ words: [String]) throws(CommandError) {
        for word in words {
            let (path, value) = try Self.read(word)
            try set(path, value, in: word)
        }
    }

    /// Whether a member is there, given as `parameters.region`.
    func has(_ path: String) -> Bool {
        var value: JSONValue? = .object(members)
        for part in Self.parts(path) { value = value?[part] }
        return value != nil
    }

    /// Puts a member there.
    /// - Throws: `usage` where it stands there already.
    mutating func add(_ path: String, _ value: JSONValue) throws(CommandError) {
        try set(Self.parts(path), value, in: path)
    }

    private mutating func set(_ path: [WireText], _ value: JSONValue, in word: String) throws(CommandError) {
        guard let merged = Self.inserting(value, at: path[...], in: .object(members))?.object else {
            throw CommandError(.usage, conflict(path, value, in: word))
        }
        members = merged
    }

    /// Why a member cannot be put there.
    private func conflict(_ path: [WireText], _ new: JSONValue, in word: String) -> String {
        var value = JSONValue.object(members)
        for (index, part) in path.enumerated() {
            guard let inner = value.object?[part] else {
                let outer = path[..<index].map(\.text).joined(separator: ".")
                return "\(outer) is given as a value, and by \(Self.shown(word)) as an object with members"
            }
            value = inner
        }
        return value.object == nil || new.object != nil
            ? "the member of \(Self.shown(word)) is given twice"
            : "\(Self.shown(word)) is given as a value, and before it as an object with members"
    }

    private static func inserting(_ value: JSONValue, at path: ArraySlice<WireText>, in old: JSONValue?) -> JSONValue? {
        guard let name = path.first else { return old == nil ? value : nil }
        guard var members = old == nil ? [:] : old?.object else { return nil }
        guard let inner = inserting(value, at: path.dropFirst(), in: members[name]) else { return nil }
        members[name] = inner
        return .object(members)
    }

    private static func parts(_ path: String) -> [WireText] {
        path.split(separator: ".", omittingEmptySubsequences: false).map { WireText(String($0)) }
    }

    private static func read(_ word: String) throws(CommandError) -> ([WireText], JSONValue) {
        guard let sign = word.firstIndex(of: "="), sign != word.startIndex else {
            throw CommandError(
                .usage, "\(shown(word)) is no MEMBER=TEXT and no MEMBER:=JSON, such as scopes:='[\"openid\"]'")
        }
        let isJSON = word[..<sign].last == ":"
        let path = parts(String(isJSON ? word[..<sign].dropLast() : word[..<sign]))
        guard path.allSatisfy({ !$0.isEmpty }), path.count <= 8 else {
            throw CommandError(.usage, "\(shown(word)) names no member")
        }
        var text = String(word[word.index(after: sign)...])
        if text == "null" { return (path, .null) }
        if text.hasPrefix("@") {
            text = try file(String(text.dropFirst()))
        } else if SecretMembers.contain(path) {
            let name = path.map(\.text).joined(separator: ".")
            throw CommandError(
                .usage,
                "\(name) would stand in lists of processes: write it to a file and say \(name)"
                    + (isJSON ? ":" : "") + "=@PATH")
        }
        if !isJSON { return (path, .string(WireText(text))) }
        do throws(JSONValue.Fault) {
            return (path, try JSONValue(parsing: Array(text.utf8)))
        } catch {
            throw CommandError(
                .usage, "\(shown(word)): what is behind := is no JSON; a text needs no colon before the =")
        }
    }

    /// The member's name without its value, which may be long.
    private static func shown(_ word: String) -> String {
        TextTable.shown(String(word.prefix { $0 != "=" }.prefix(100)))
    }

    /// The text of a file, without the line break at its end.
    private static func file(_ path: String) throws(CommandError) -> String {
        try GivenFile.text(path, limit: longestFile)
    }
}
