package import ExternalText

/// A JSON value (RFC 8259). Objects have no order and no repeated members.
package enum JSONValue: Sendable, Equatable {
    case null
    case bool(Bool)
    case integer(Int64)
    /// A number that is no 64-bit integer.
    case number(Double)
    case string(WireText)
    case array([JSONValue])
    case object([WireText: JSONValue])

    /// What is wrong with a text that should have been one JSON value. `description` may be shown to anyone.
    package enum Fault: Error, Equatable, CustomStringConvertible {
        /// Not one well-formed JSON value in UTF-8, or something follows it.
        case malformed
        /// Nested deeper than `JSONValue.maximumDepth`.
        case tooDeep
        /// An object names a member twice. Readers disagree which one counts, so none does.
        case repeatedMember(pointer: String)
        /// The name of a member is longer than the reader was told to take.
        case nameTooLong(pointer: String, limit: Int)

        package var description: String {
            switch self {
            case .malformed: "The body is not one well-formed JSON value in UTF-8."
            case .tooDeep: "The JSON value is nested deeper than \(JSONValue.maximumDepth) levels."
            case .repeatedMember(let pointer): "The member at \(pointer) occurs more than once."
            case .nameTooLong(let pointer, let limit):
                "The member at \(pointer) has a name of more than \(limit) bytes."
            }
        }
    }

    /// Far beyond any document of this service, far below what would exhaust a stack.
    package static let maximumDepth = 32

    /// Reads exactly one value, in UTF-8. Takes time in proportion to the text's length, whatever the text is.
    /// - Parameter longestName: bytes that the name of a member may have.
    package init(parsing bytes: [UInt8], longestName: Int = .max) throws(Fault) {
        var reader = JSONReader(bytes, longestName: longestName)
        self = try reader.document()
    }
}

extension JSONValue {
    package var string: WireText? { if case .string(let value) = self { value } else { nil } }
    package var bool: Bool? { if case .bool(let value) = self { value } else { nil } }
    package var integer: Int64? { if case .integer(let value) = self { value } else { nil } }
    package var array: [JSONValue]? { if case .array(let value) = self { value } else { nil } }
    package var object: [WireText: JSONValue]? { if case .object(let value) = self { value } else { nil } }

    /// The member of an object; nil for a missing one and for what is no object.
    package subscript(_ member: WireText) -> JSONValue? { object?[member] }

    /// How much of a name stands in a pointer, in bytes. Names can be long, and a pointer is for people.
    private static let longestToken = 64

    /// The first 64 bytes of a member's name as a piece of a JSON pointer (RFC 6901 §3).
    package static func pointerToken(_ name: WireText) -> String {
        var token: [UInt8] = []
        for byte in name.prefix(longestToken).utf8 {
            switch byte {
            case UInt8(ascii: "~"): token += "~0".utf8
            case UInt8(ascii: "/"): token += "~1".utf8
            default: token.append(byte)
            }
        }
        return String(decoding: token, as: UTF8.self)
    }
}
