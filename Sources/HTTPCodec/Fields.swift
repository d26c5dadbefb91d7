/// Header or trailer fields in the order sent. Names compare without case (RFC 9110 §5.1); repeated ones are kept.
package struct Fields: Sendable, Equatable, ExpressibleByDictionaryLiteral {
    package struct Field: Sendable, Equatable {
        package let name: String
        package let value: String

        package init(name: String, value: String) {
            self.name = name
            self.value = value
        }
    }

    package private(set) var all: [Field]

    package init() { all = [] }

    package init(dictionaryLiteral elements: (String, String)...) {
        all = elements.map { Field(name: $0.0, value: $0.1) }
    }

    /// Adds a field line after the others.
    package mutating func append(_ name: String, _ value: String) {
        all.append(Field(name: name, value: value))
    }

    /// Replaces every field of that name by one, or removes them.
    package mutating func set(_ name: String, _ value: String?) {
        all.removeAll { Self.equal($0.name, name) }
        if let value { append(name, value) }
    }

    /// Every value of that name, in order.
    package func values(_ name: String) -> [String] {
        all.filter { Self.equal($0.name, name) }.map(\.value)
    }

    /// The first value of that name.
    package subscript(_ name: String) -> String? {
        all.first { Self.equal($0.name, name) }?.value
    }

    /// The members of a comma-separated list field over all its lines, trimmed, empty ones left out (RFC 9110 §5.6.1).
    /// Not for fields whose members can hold quoted commas.
    package func list(_ name: String) -> [String] {
        values(name).flatMap { $0.split(separator: ",") }.map { Self.trimmed($0) }.filter { !$0.isEmpty }
    }

    package static func equal(_ left: String, _ right: String) -> Bool {
        left.utf8.count == right.utf8.count && zip(left.utf8, right.utf8).allSatisfy { lowercase($0) == lowercase($1) }
    }

    private static func lowercase(_ byte: UInt8) -> UInt8 {
        byte >= 0x41 && byte <= 0x5a ? byte | 0x20 : byte
    }

    private static func trimmed(_ text: Substring) -> String {
        var text = text
        while let first = text.first, first == " " || first == "\t" { text.removeFirst() }
        while let last = text.last, last == " " || last == "\t" { text.removeLast() }
        return String(text)
    }
}
