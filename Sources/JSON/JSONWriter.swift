import ExternalText

/// Writes JSON text. Members keep the given order, and commas are added automatically.
///
/// It serves for responses and log lines, where the order of members helps people. Control characters, quotation marks
/// and line separators are escaped, so that a value cannot forge a line.
package struct JSONWriter {
    package private(set) var bytes: [UInt8] = []
    private var needsComma = false

    package init() {
        // Few texts are shorter, and a buffer that grows is copied each time.
        bytes.reserveCapacity(256)
    }

    /// The text of one object.
    package static func object(_ body: (inout JSONWriter) -> Void) -> [UInt8] {
        var writer = JSONWriter()
        writer.object(body)
        return writer.bytes
    }

    // MARK: Values

    package mutating func object(_ body: (inout JSONWriter) -> Void) {
        begin(UInt8(ascii: "{"))
        body(&self)
        end(UInt8(ascii: "}"))
    }

    package mutating func array(_ body: (inout JSONWriter) -> Void) {
        begin(UInt8(ascii: "["))
        body(&self)
        end(UInt8(ascii: "]"))
    }

    package mutating func string(_ value: String) {
        separate()
        quote(value)
    }

    package mutating func integer(_ value: Int64) { literal(String(value)) }
    package mutating func bool(_ value: Bool) { literal(value ? "true" : "false") }
    package mutating func null() { literal("null") }

    package mutating func value(_ value: JSONValue) {
        switch value {
        case .null: null()
        case .bool(let value): bool(value)
        case .integer(let value): integer(value)
        case .number(let value):
            precondition(value.isFinite, "JSON has no infinities")
            literal(value.description)
        case .string(let text): string(text.text)
        case .array(let elements): array { writer in for element in elements { writer.value(element) } }
        case .object(let members):
            object { writer in
                for (name, member) in members.sorted(by: { $0.key < $1.key }) { writer.member(name.text, member) }
            }
        }
    }

    // MARK: Members of an object

    /// Writes a name. Exactly one value must follow.
    package mutating func name(_ name: String) {
        separate()
        quote(name)
        bytes.append(UInt8(ascii: ":"))
        needsComma = false
    }

    package mutating func member(_ name: String, _ value: String) {
        self.name(name)
        string(value)
    }

    package mutating func member(_ name: String, _ value: Int64) {
        self.name(name)
        integer(value)
    }

    package mutating func member(_ name: String, _ value: Int) { member(name, Int64(value)) }

    package mutating func member(_ name: String, _ value: Bool) {
        self.name(name)
        bool(value)
    }

    package mutating func member(_ name: String, _ value: JSONValue) {
        self.name(name)
        self.value(value)
    }

    package mutating func member(_ name: String, _ values: [String]) {
        self.name(name)
        array { writer in for value in values { writer.string(value) } }
    }

    /// Writes `null` when the value is nil.
    package mutating func memberOrNull(_ name: String, _ value: String?) {
        self.name(name)
        if let value { string(value) } else { null() }
    }

    /// Omits the member when the value is nil.
    package mutating func memberIfPresent(_ name: String, _ value: String?) {
        if let value { member(name, value) }
    }

    package mutating func memberIfPresent(_ name: String, _ value: Int64?) {
        if let value { member(name, value) }
    }

    // MARK: Text

    private mutating func separate() {
        if needsComma { bytes.append(UInt8(ascii: ",")) }
        needsComma = true
    }

    private mutating func begin(_ bracket: UInt8) {
        separate()
        bytes.append(bracket)
        needsComma = false
    }

    private mutating func end(_ bracket: UInt8) {
        bytes.append(bracket)
        needsComma = true
    }

    private mutating func literal(_ text: String) {
        separate()
        bytes.append(contentsOf: text.utf8)
    }

    /// Whether no byte needs an escape, which is the common case. False, too, at the first bytes of multi-byte characters that
    /// are escaped, though others begin with them.
    private static func isPlain(_ text: Span<UInt8>) -> Bool {
        // Without a branch for each byte, which lets the compiler look at many of them at once.
        var needsEscape = false
        for index in text.indices {
            let byte = text[index]
            let isControl = byte < 0x20 || byte == 0x7f
            let isMark = byte == UInt8(ascii: "\"") || byte == UInt8(ascii: "\\")
            needsEscape = needsEscape || isControl || isMark || byte == 0xc2 || byte == 0xe2
        }
        return !needsEscape
    }

    private mutating func quote(_ text: String) {
        bytes.append(UInt8(ascii: "\""))
        defer { bytes.append(UInt8(ascii: "\"")) }
        if Self.isPlain(text.utf8.span) { return bytes.append(contentsOf: text.utf8) }
        for scalar in text.unicodeScalars {
            switch scalar {
            case "\"", "\\":
                bytes.append(UInt8(ascii: "\\"))
                bytes.append(UInt8(scalar.value))
            case "\n": bytes.append(contentsOf: #"\n"#.utf8)
            case "\r": bytes.append(contentsOf: #"\r"#.utf8)
            case "\t": bytes.append(contentsOf: #"\t"#.utf8)
            case "\u{0}"..."\u{1f}", "\u{7f}"..."\u{9f}", "\u{2028}", "\u{2029}":
                let digits = String(scalar.value, radix: 16)
                bytes.append(contentsOf: #"\u"#.utf8)
                bytes.append(contentsOf: repeatElement(UInt8(ascii: "0"), count: 4 - digits.utf8.count))
                bytes.append(contentsOf: digits.utf8)
            default: bytes.append(contentsOf: UTF8.encode(scalar)!)
            }
        }
    }
}
