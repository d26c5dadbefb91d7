package import ExternalText

/// Header or trailer fields in their original order. Names compare without case (RFC 9110 §5.1). Repeated fields are
/// kept.
///
/// The text is in one array, and the lines are offsets into it. So a parsed head costs two allocations, however many
/// fields it has, and a field becomes a string only when it is read.
package struct Fields: Sendable, Equatable, ExpressibleByDictionaryLiteral, CustomStringConvertible {
    package struct Field: Sendable, Equatable {
        package let name: WireText
        package let value: WireText

        package init(name: WireText, value: WireText) {
            self.name = name
            self.value = value
        }
    }

    package private(set) var bytes: [UInt8]
    package private(set) var lines: [FieldLine]

    package init() {
        bytes = []
        lines = []
    }

    /// Creates fields from parsed lines, whose offsets count from the beginning of `bytes`.
    init(bytes: [UInt8], lines: [FieldLine]) {
        self.bytes = bytes
        self.lines = lines
    }

    package init(dictionaryLiteral elements: (String, String)...) {
        self.init()
        lines.reserveCapacity(elements.count)
        bytes.reserveCapacity(elements.reduce(0) { $0 + $1.0.utf8.count + $1.1.utf8.count })
        for (name, value) in elements { append(name, value) }
    }

    /// Every field as text. Bytes that are not UTF-8 appear as U+FFFD.
    package var all: [Field] {
        lines.map { Field(name: text($0.name), value: text($0.value)) }
    }

    package var count: Int { lines.count }

    /// Adds a field line after the others.
    package mutating func append(_ name: String, _ value: String) {
        let nameStart = bytes.count
        bytes.append(contentsOf: name.utf8)
        let valueStart = bytes.count
        bytes.append(contentsOf: value.utf8)
        lines.append(FieldLine(bytes.span, name: nameStart..<valueStart, value: valueStart..<bytes.count))
    }

    /// Replaces all fields with this name by one field. With nil removes them.
    package mutating func set(_ name: String, _ value: String?) {
        if contains(name) {
            let kept = lines.filter { !isNamed($0, name.utf8.span) }
            let before = self
            self = Fields()
            for line in kept { append(line, of: before) }
        }
        if let value { append(name, value) }
    }

    package func contains(_ name: String) -> Bool { firstLine(name) != nil }

    /// The values of all fields with this name, in order.
    package func values(_ name: String) -> [WireText] {
        let wanted = name.utf8.span
        var values: [WireText] = []
        for line in lines where isNamed(line, wanted) { values.append(text(line.value)) }
        return values
    }

    /// The bytes of the values of all fields with this name, in order.
    package func byteValues(_ name: String) -> [ArraySlice<UInt8>] {
        let wanted = name.utf8.span
        var values: [ArraySlice<UInt8>] = []
        for line in lines where isNamed(line, wanted) { values.append(bytes[line.value]) }
        return values
    }

    /// The value of the first field with this name.
    package subscript(_ name: String) -> WireText? {
        firstLine(name).map { text($0.value) }
    }

    /// The members of a comma-separated list field, over all its lines, trimmed and without empty members (RFC 9110
    /// §5.6.1). Not for fields whose members can contain quoted commas.
    package func list(_ name: String) -> [WireText] {
        let wanted = name.utf8.span
        var members: [WireText] = []
        for line in lines where isNamed(line, wanted) {
            for member in bytes[line.value].split(separator: UInt8(ascii: ",")) {
                let trimmed = Self.trimmed(member)
                if !trimmed.isEmpty { members.append(text(trimmed.startIndex..<trimmed.endIndex)) }
            }
        }
        return members
    }

    package static func == (left: Fields, right: Fields) -> Bool {
        left.lines.count == right.lines.count
            && zip(left.lines, right.lines).allSatisfy {
                left.bytes[$0.name] == right.bytes[$1.name] && left.bytes[$0.value] == right.bytes[$1.value]
            }
    }

    /// Contains only the names, because values can be secrets.
    package var description: String {
        "[" + lines.map { text($0.name).text }.joined(separator: ", ") + "]"
    }

    func isNamed(_ line: FieldLine, _ wanted: Span<UInt8>) -> Bool {
        let name = line.name
        guard name.count == wanted.count else { return false }
        let start = name.lowerBound
        for index in wanted.indices
        where ByteClass.lowercased(bytes[start + index]) != ByteClass.lowercased(wanted[index]) {
            return false
        }
        return true
    }

    private mutating func append(_ line: FieldLine, of other: Fields) {
        let nameStart = bytes.count
        bytes.append(contentsOf: other.bytes[line.name])
        let valueStart = bytes.count
        bytes.append(contentsOf: other.bytes[line.value])
        lines.append(FieldLine(bytes.span, name: nameStart..<valueStart, value: valueStart..<bytes.count))
    }

    private func firstLine(_ name: String) -> FieldLine? {
        let wanted = name.utf8.span
        for line in lines where isNamed(line, wanted) { return line }
        return nil
    }

    private func text(_ range: Range<Int>) -> WireText {
        WireText(String(decoding: bytes[range], as: UTF8.self))
    }

    private static func trimmed(_ text: ArraySlice<UInt8>) -> ArraySlice<UInt8> {
        var text = text
        while let first = text.first, ByteClass.isWhitespace(first) { text.removeFirst() }
        while let last = text.last, ByteClass.isWhitespace(last) { text.removeLast() }
        return text
    }
}
