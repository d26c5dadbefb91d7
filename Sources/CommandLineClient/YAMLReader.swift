import ExternalText
import JSON

/// Reads the part of YAML 1.2 that configurations need: mappings and lists by indentation, lists and mappings in brackets on one line,
/// texts with and without quotation marks, numbers, booleans, null, comments. Everything else is refused with its line: anchors,
/// tags, texts of several lines, tabs, several documents, names that stand twice, and numbers that programs read differently.
struct YAMLReader {
    struct Fault: Error, Equatable, CustomStringConvertible {
        /// From 1 on.
        let line: Int
        let reason: String

        var description: String { "line \(line): \(reason)" }
    }

    struct Line {
        let number: Int
        var indent: Int
        var content: ArraySlice<UInt8>
    }

    private var lines: [Line] = []
    private var next = 0
    private static let maximumDepth = 24

    /// The value of a whole text.
    /// - Throws: the first fault.
    static func value(of text: String) throws(Fault) -> JSONValue {
        var reader = try YAMLReader(Array(text.utf8))
        guard let first = reader.lines.first else { return .null }
        let value = try reader.block(first.indent, depth: 0)
        if reader.next < reader.lines.count {
            throw Fault(
                line: reader.lines[reader.next].number, reason: "this is indented differently from what it belongs to")
        }
        return value
    }

    private init(_ bytes: [UInt8]) throws(Fault) {
        let content = bytes.starts(with: [0xef, 0xbb, 0xbf]) ? bytes[3...] : bytes[...]
        for (index, line) in content.split(separator: 0x0a, omittingEmptySubsequences: false).enumerated() {
            let number = index + 1
            var line = line
            if line.last == 0x0d { line.removeLast() }
            let content = line.drop { $0 == UInt8(ascii: " ") }
            if content.first == 0x09 { throw Fault(line: number, reason: "tabs do not indent; use spaces") }
            if content.isEmpty || content.first == UInt8(ascii: "#") { continue }
            if content.contains(where: { $0 < 0x20 && $0 != 0x09 || $0 == 0x7f }) {
                throw Fault(line: number, reason: "there is a control character in it")
            }
            if content.elementsEqual("---".utf8) || content.elementsEqual("...".utf8) {
                if lines.isEmpty, content.first == UInt8(ascii: "-") { continue }
                throw Fault(line: number, reason: "only one document is read")
            }
            if content.first == UInt8(ascii: "%") { throw Fault(line: number, reason: "directives are not read") }
            lines.append(Line(number: number, indent: line.count - content.count, content: content))
        }
    }

    // MARK: By indentation

    private var current: Line? { next < lines.count ? lines[next] : nil }

    /// What begins at the next line, whose indentation is given.
    private mutating func block(_ indent: Int, depth: Int) throws(Fault) -> JSONValue {
        let line = lines[next]
        if depth > Self.maximumDepth { throw Fault(line: line.number, reason: "this is nested too deeply") }
        if Self.isElement(line.content) { return try list(indent, depth) }
        if try Self.entry(line) != nil { return try mapping(indent, depth) }
        next += 1
        return try YAMLScalar.value(of: line)
    }

    private static func isElement(_ content: ArraySlice<UInt8>) -> Bool {
        content.first == UInt8(ascii: "-") && (content.count == 1 || content.dropFirst().first == UInt8(ascii: " "))
    }

    private mutating func list(_ indent: Int, _ depth: Int) throws(Fault) -> JSONValue {
        var elements: [JSONValue] = []
        while let line = current, line.indent == indent, Self.isElement(line.content) {
            let rest = line.content.dropFirst().drop { $0 == UInt8(ascii: " ") }
            if rest.isEmpty || rest.first == UInt8(ascii: "#") {
                next += 1
                elements.append(try nested(below: indent, depth))
            } else {
                // What stands behind the dash is as if it stood on a line of its own.
                lines[next] = Line(
                    number: line.number, indent: indent + line.content.count - rest.count, content: rest)
                elements.append(try block(lines[next].indent, depth: depth + 1))
            }
            try refuseDeeper(than: indent)
        }
        return .array(elements)
    }

    private mutating func mapping(_ indent: Int, _ depth: Int) throws(Fault) -> JSONValue {
        var members: [WireText: JSONValue] = [:]
        while let line = current, line.indent == indent, !Self.isElement(line.content) {
            guard let (name, rest) = try Self.entry(line) else {
                throw Fault(line: line.number, reason: "this is no NAME: VALUE; a text of several lines is not read")
            }
            guard members[name] == nil else {
                throw Fault(line: line.number, reason: "\(name.text) stands twice")
            }
            next += 1
            if rest.isEmpty || rest.first == UInt8(ascii: "#") {
                members[name] = try nested(below: indent, depth, allowsList: true)
            } else {
                members[name] = try YAMLScalar.value(of: Line(number: line.number, indent: indent, content: rest))
            }
            try refuseDeeper(than: indent)
        }
        return .object(members)
    }

    /// What stands deeper on the next lines; null for nothing.
    /// - Parameter allowsList: whether a list may stand as deep as the name that it belongs to.
    private mutating func nested(
        below indent: Int, _ depth: Int, allowsList: Bool = false
    ) throws(Fault) -> JSONValue {
        guard let line = current else { return .null }
        let isList = allowsList && line.indent == indent && Self.isElement(line.content)
        return line.indent > indent || isList ? try block(line.indent, depth: depth + 1) : .null
    }

    private func refuseDeeper(than indent: Int) throws(Fault) {
        guard let line = current, line.indent > indent else { return }
        throw Fault(line: line.number, reason: "this is indented deeper than what it belongs to")
    }

    /// The name of a line's entry and what stands behind its colon; nil for a line that is none.
    private static func entry(_ line: Line) throws(Fault) -> (name: WireText, rest: ArraySlice<UInt8>)? {
        var scalar = YAMLScalar(line)
        let name: WireText
        if let quoted = try scalar.quoted() {
            name = quoted
            guard scalar.rest.first == UInt8(ascii: ":") else { return nil }
        } else {
            guard let end = YAMLScalar.colon(in: line.content) else { return nil }
            // A colon within brackets belongs to what is in them.
            if let first = line.content.first, "[{".utf8.contains(first) { return nil }
            try YAMLScalar.refuseSigns(line.content[..<end], line.number)
            name = WireText(Array(line.content[..<end]))
            scalar.rest = line.content[end...]
        }
        let rest = scalar.rest.dropFirst()
        guard rest.isEmpty || rest.first == UInt8(ascii: " ") else { return nil }
        return (name, rest.drop { $0 == UInt8(ascii: " ") })
    }
}
