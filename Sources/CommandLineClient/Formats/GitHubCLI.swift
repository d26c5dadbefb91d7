import ExternalText

extension TokenFileFormat {
    /// `hosts.yml` of gh: the user of each host, and since gh 2.40 several users. The tokens have no end and no refresh token. Where
    /// gh keeps them in the keyring of the system, they are not in the file.
    static let gitHubCLI = TokenFileFormat(
        name: "gh", help: "hosts.yml of gh",
        read: { bytes throws(TokenFileFault) in
            guard let text = WireText(validating: bytes.span) else { throw TokenFileFault("is no text in UTF-8") }
            let hosts = try GitHubCLIFile.read(text)
            if hosts.isEmpty { throw TokenFileFault("has no host") }
            return hosts.flatMap { entries($0) }
        })

    private static func entries(_ host: GitHubCLIFile.Node) -> [TokenFileEntry] {
        var users = (host["users"]?.members ?? []).map { ($0.name, $0["oauth_token"]?.value ?? "") }
        let active = host["user"]?.value ?? ""
        let token = host["oauth_token"]?.value ?? ""
        if let index = users.firstIndex(where: { $0.0 == active }) {
            // The active user's token stands at the host, too.
            if users[index].1.isEmpty { users[index].1 = token }
        } else if users.isEmpty || !token.isEmpty {
            users.append((active, token))
        }
        return users.map { name, token in
            var entry = TokenFileEntry(
                name.isEmpty ? host.name : "\(name) at \(host.name)", group: host.name,
                storageKey: name.isEmpty ? nil : name)
            entry.accessToken = token.isEmpty ? nil : token
            if token.isEmpty {
                entry.refuse(
                    "its token is not in the file but in the keyring of the system; gh auth token --hostname \(host.name) prints it"
                )
            }
            return entry
        }
    }
}

/// The part of YAML that gh writes: maps of maps of plain or quoted texts, each level farther from the margin.
enum GitHubCLIFile {
    struct Node: Sendable, Equatable {
        let name: String
        /// Nil where members follow.
        var value: String?
        var members: [Node] = []

        subscript(_ name: String) -> Node? { members.first { $0.name == name } }
    }

    private static let deepest = 4
    /// Far more than there are hosts and users.
    private static let mostLines = 10_000

    static func read(_ text: WireText) throws(TokenFileFault) -> [Node] {
        var lines: [Line] = []
        for (index, whole) in text.split(at: "\n").enumerated() {
            guard let line = try Line(whole, number: index + 1) else { continue }
            guard lines.count < mostLines else {
                throw TokenFileFault("has more than \(mostLines) lines", line: index + 1)
            }
            lines.append(line)
        }
        var rest = lines[...]
        let nodes = try members(&rest, level: 0)
        if let line = rest.first { throw TokenFileFault("has a line at an unexpected distance", line: line.number) }
        return nodes
    }

    private struct Line {
        let number: Int
        let indent: Int
        let name: String
        let value: String?

        /// Nil for an empty line and a comment.
        init?(_ whole: WireText, number: Int) throws(TokenFileFault) {
            let whole = whole.ends(with: "\r") ? whole.prefix(whole.count - 1) : whole
            let indent = whole.utf8.prefix { $0 == 0x20 }.count
            let text = whole.dropping(indent).trimmed
            if text.isEmpty || text.starts(with: "#") || text == "---" || text == "{}" { return nil }
            if whole.dropping(indent).starts(with: "\t") {
                throw TokenFileFault("has a tab at the beginning of a line, which YAML forbids", line: number)
            }
            // The colon that ends a name is the first that a space or the end of the line follows.
            let bytes = Array(text.utf8)
            guard
                let colon = bytes.indices.first(where: {
                    bytes[$0] == 0x3a && ($0 + 1 == bytes.count || bytes[$0 + 1] == 0x20)
                }),
                let name = Self.scalar(WireText(Array(bytes[..<colon]))), !name.isEmpty
            else { throw TokenFileFault("has a line that gh does not write", line: number) }
            let value = WireText(Array(bytes[(colon + 1)...])).trimmed
            guard let read = Self.scalar(value) else {
                throw TokenFileFault("has a value in a form of YAML that gh does not write", line: number)
            }
            self.number = number
            self.indent = indent
            self.name = name
            self.value = value.isEmpty ? nil : read
        }

        /// A text that is plain, or quoted without an escape; nil for another form.
        private static func scalar(_ text: WireText) -> String? {
            for quote: Unicode.Scalar in ["\"", "'"] where text.utf8.first == UInt8(ascii: quote) {
                guard text.count >= 2, text.utf8.last == UInt8(ascii: quote) else { return nil }
                let inner = text.dropping(1).prefix(text.count - 2)
                return inner.contains(quote) || inner.contains("\\") ? nil : inner.text
            }
            guard let first = text.utf8.first else { return "" }
            // What else begins a value: aliases, anchors, tags, blocks, lists, maps, directives.
            if "&*!|>[]{}%@`,?".utf8.contains(first) || text.starts(with: "- ") || text == "-" { return nil }
            let isCommented = zip(text.utf8, text.utf8.dropFirst()).contains { $0 == 0x20 && $1 == 0x23 }
            return isCommented ? nil : text == "null" || text == "~" ? "" : text.text
        }
    }

    private static func members(_ lines: inout ArraySlice<Line>, level: Int) throws(TokenFileFault) -> [Node] {
        guard let first = lines.first else { return [] }
        guard level < deepest else { throw TokenFileFault("is nested deeper than gh writes", line: first.number) }
        if level == 0, first.indent != 0 {
            throw TokenFileFault("has a line at an unexpected distance", line: first.number)
        }
        var nodes: [Node] = []
        var names: Set<String> = []
        while let line = lines.first, line.indent == first.indent {
            lines.removeFirst()
            guard names.insert(line.name).inserted else {
                throw TokenFileFault("has a name twice", line: line.number)
            }
            var node = Node(name: line.name, value: line.value)
            if let next = lines.first, next.indent > line.indent {
                guard line.value == nil else {
                    throw TokenFileFault("has a line at an unexpected distance", line: next.number)
                }
                node.members = try members(&lines, level: level + 1)
            }
            nodes.append(node)
        }
        return nodes
    }
}
