package import ExternalText

/// Reads values from outside by name and notes what is wrong with them, so that a caller is told all faults at once.
///
/// Each function returns nil for a value that is not given, and for one that is wrong: then it has noted a fault.
package protocol ValueReader {
    associatedtype Name

    mutating func string(_ name: Name) -> WireText?
    /// Adds a fault.
    /// - Parameter detail: continues a sentence that begins with the name.
    mutating func note(_ name: Name, _ detail: String)
}

/// What values have to be. Each continues a sentence that begins with a name.
package enum ValueRule {
    package static let bool = "must be true or false"
    package static let timestamp = "must be a time such as 2026-11-21T09:00:00Z"

    package static func integer<Number: FixedWidthInteger>(in range: ClosedRange<Number>) -> String {
        "must be a whole number from \(range.lowerBound) to \(range.upperBound)"
    }

    /// - Parameter range: of whole numbers.
    package static func number(in range: ClosedRange<Double>) -> String {
        "must be a number from \(Int(range.lowerBound)) to \(Int(range.upperBound))"
    }

    package static func choice<T: RawRepresentable & CaseIterable>(_ type: T.Type) -> String
    where T.RawValue == String {
        "must be one of " + T.allCases.map(\.rawValue).joined(separator: ", ")
    }
}

extension ValueReader {
    /// What `read` makes of a text; a fault where that is nil.
    package mutating func value<Value>(
        _ name: Name, rule: @autoclosure () -> String, _ read: (WireText) -> Value?
    ) -> Value? {
        guard let text = string(name) else { return nil }
        if let value = read(text) { return value }
        note(name, rule())
        return nil
    }

    /// A time in the form of RFC 3339.
    package mutating func timestamp(_ name: Name) -> Timestamp? {
        value(name, rule: ValueRule.timestamp) { Timestamp(rfc3339: $0.text) }
    }

    package mutating func choice<T: RawRepresentable & CaseIterable>(_ name: Name, _ type: T.Type) -> T?
    where T.RawValue == String {
        value(name, rule: ValueRule.choice(type)) { T($0) }
    }
}

/// A source whose values are all text: a query or the environment.
package protocol TextReader: ValueReader {}

extension TextReader {
    package mutating func integer<Number: FixedWidthInteger>(
        _ name: Name, in range: ClosedRange<Number>
    ) -> Number? {
        value(name, rule: ValueRule.integer(in: range)) { text in
            WholeNumber.read(text.utf8.span).flatMap { Number(exactly: $0) }.flatMap { range.contains($0) ? $0 : nil }
        }
    }

    package mutating func bool(_ name: Name) -> Bool? {
        value(name, rule: ValueRule.bool) { text in
            switch text {
            case "true": true
            case "false": false
            default: nil
            }
        }
    }
}

package enum WholeNumber {
    /// The number that up to 18 digits are.
    package static func read(_ text: Span<UInt8>) -> Int64? {
        guard (1...18).contains(text.count) else { return nil }
        var number: Int64 = 0
        for index in text.indices {
            guard text[index].isDigit else { return nil }
            number = number * 10 + Int64(text[index] - UInt8(ascii: "0"))
        }
        return number
    }
}
