import ExternalText
import JSON

/// What stands on one line of YAML: a text, a number, or lists and mappings in brackets.
struct YAMLScalar {
    typealias Fault = YAMLReader.Fault

    private let number: Int
    /// What is not read yet.
    var rest: ArraySlice<UInt8>

    private static let maximumDepth = 24

    init(_ line: YAMLReader.Line) {
        number = line.number
        rest = line.content
    }

    /// The value of a whole line.
    static func value(of line: YAMLReader.Line) throws(Fault) -> JSONValue {
        var scalar = YAMLScalar(line)
        let value = try scalar.value(isInBrackets: false, depth: 0)
        let hasSpace = scalar.rest.first == UInt8(ascii: " ")
        scalar.skipSpaces()
        if scalar.rest.isEmpty || hasSpace && scalar.rest.first == UInt8(ascii: "#") { return value }
        throw scalar.fault("there is more behind the value")
    }

    private func fault(_ reason: String) -> Fault { Fault(line: number, reason: reason) }

    private mutating func skipSpaces() { rest = rest.drop { $0 == UInt8(ascii: " ") || $0 == 0x09 } }

    private mutating func skip(_ sign: Unicode.Scalar) -> Bool {
        skipSpaces()
        guard rest.first == UInt8(ascii: sign) else { return false }
        rest.removeFirst()
        return true
    }

    private mutating func value(isInBrackets: Bool, depth: Int) throws(Fault) -> JSONValue {
        if depth > Self.maximumDepth { throw fault("this is nested too deeply") }
        skipSpaces()
        if skip("[") { return try list(depth) }
        if skip("{") { return try mapping(depth) }
        if let text = try quoted() { return .string(text) }
        return try Self.typed(try plain(isInBrackets: isInBrackets), number)
    }

    private mutating func list(_ depth: Int) throws(Fault) -> JSONValue {
        var elements: [JSONValue] = []
        while !skip("]") {
            elements.append(try value(isInBrackets: true, depth: depth + 1))
            if skip(",") { continue }
            if skip("]") { break }
            throw fault("a list in brackets ends on its line with ]")
        }
        return .array(elements)
    }

    private mutating func mapping(_ depth: Int) throws(Fault) -> JSONValue {
        var members: [WireText: JSONValue] = [:]
        while !skip("}") {
            skipSpaces()
            let name: WireText
            if let quoted = try quoted() {
                name = quoted
                guard skip(":") else { throw fault("there is no colon behind \(name.text)") }
            } else {
                guard let end = Self.colon(in: rest) else {
                    throw fault("a mapping in brackets ends on its line with }")
                }
                try Self.refuseSigns(rest[..<end], number)
                name = WireText(Array(rest[..<end]))
                rest = rest[end...].dropFirst()
            }
            guard members[name] == nil else { throw fault("\(name.text) stands twice") }
            members[name] = try value(isInBrackets: true, depth: depth + 1)
            if skip(",") { continue }
            if skip("}") { break }
            throw fault("a mapping in brackets ends on its line with }")
        }
        return .object(members)
    }

    // MARK: Texts

    /// A text in quotation marks; nil where none begins here.
    mutating func quoted() throws(Fault) -> WireText? {
        guard let mark = rest.first, mark == UInt8(ascii: "\"") || mark == UInt8(ascii: "'") else { return nil }
        let isSingle = mark == UInt8(ascii: "'")
        var bytes: [UInt8] = []
        var left = rest.dropFirst()
        while let byte = left.popFirst() {
            if byte == mark {
                guard isSingle, left.first == mark else {
                    rest = left
                    return try isSingle ? WireText(bytes) : unescaped(bytes)
                }
                left.removeFirst()
            } else if byte == UInt8(ascii: "\\"), !isSingle, let escaped = left.popFirst() {
                bytes.append(byte)
                bytes.append(escaped)
                continue
            }
            bytes.append(byte)
        }
        throw fault("a text in quotation marks ends on its line")
    }

    /// The escapes are those of JSON.
    private func unescaped(_ bytes: [UInt8]) throws(Fault) -> WireText {
        let mark = [UInt8(ascii: "\"")]
        guard let text = (try? JSONValue(parsing: mark + bytes + mark))?.string else {
            throw fault("a text in double quotation marks has the escapes of JSON only")
        }
        return text
    }

    /// A text without quotation marks, to the comment, or in brackets to the sign that ends it.
    private mutating func plain(isInBrackets: Bool) throws(Fault) -> ArraySlice<UInt8> {
        var end = rest.startIndex
        while end < rest.endIndex {
            let byte = rest[end]
            if isInBrackets, ",]}[{".utf8.contains(byte) { break }
            let isSpaced = end == rest.startIndex || rest[end - 1] == UInt8(ascii: " ")
            if byte == UInt8(ascii: "#"), isSpaced { break }
            end += 1
        }
        // The space before a comment is not part of the text.
        while end > rest.startIndex, rest[end - 1] == UInt8(ascii: " ") || rest[end - 1] == 0x09 { end -= 1 }
        let text = rest[..<end]
        rest = rest[end...]
        try Self.refuseSigns(text, number)
        if Self.colon(in: text) != nil {
            throw fault("a text with a colon and a space, or a colon at its end, needs quotation marks")
        }
        return text
    }

    /// The first colon that ends a name: one before a space or at the end.
    static func colon(in text: ArraySlice<UInt8>) -> Int? {
        text.indices.first { index in
            text[index] == UInt8(ascii: ":")
                && (index + 1 == text.endIndex || text[index + 1] == UInt8(ascii: " "))
        }
    }

    /// Refuses what means something else in YAML.
    static func refuseSigns(_ text: ArraySlice<UInt8>, _ number: Int) throws(Fault) {
        guard let first = text.first else { return }
        let hasSpace = text.count == 1 || text.dropFirst().first == UInt8(ascii: " ")
        if "&*!|>%@`\"'#,]}[{".utf8.contains(first) || "-?:".utf8.contains(first) && hasSpace
            || text.elementsEqual("<<".utf8)
        {
            throw Fault(
                line: number,
                reason:
                    "anchors, aliases, tags, texts of several lines and the like are not read; a text that begins with "
                    + "\(Character(Unicode.Scalar(first))) needs quotation marks")
        }
    }

    /// The value of a text without quotation marks.
    private static func typed(_ bytes: ArraySlice<UInt8>, _ number: Int) throws(Fault) -> JSONValue {
        let text = String(decoding: bytes, as: UTF8.self)
        switch text {
        case "", "~", "null", "Null", "NULL": return .null
        case "true", "True", "TRUE": return .bool(true)
        case "false", "False", "FALSE": return .bool(false)
        default: break
        }
        let digits = text.hasPrefix("-") || text.hasPrefix("+") ? text.dropFirst() : text[...]
        guard let first = digits.utf8.first, first == UInt8(ascii: ".") || (0x30...0x39).contains(first) else {
            return .string(WireText(text))
        }
        if let value = try? JSONValue(parsing: Array(bytes)) { return value }
        if isDoubtful(digits) {
            throw Fault(line: number, reason: "this may be a number or a text: write it in quotation marks")
        }
        return .string(WireText(text))
    }

    /// Whether programs differ: 0x1f, 017, 1_000, .5, .inf and +1 are numbers for some. Addresses, versions and dates are texts for all.
    private static func isDoubtful(_ digits: Substring) -> Bool {
        let text = digits.lowercased()
        if ["0x", "0o", "0b"].contains(where: { text.hasPrefix($0) }) || text == ".inf" || text == ".nan" {
            return true
        }
        return text.utf8.allSatisfy { "0123456789_.e+-".utf8.contains($0) } && text.count(where: { $0 == "." }) < 2
            && !text.replacing("e-", with: "").contains("-")
    }
}
