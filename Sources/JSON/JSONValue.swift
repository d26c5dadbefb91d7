package import ExternalText

/// A JSON value (RFC 8259). Objects have no order and no repeated members.
package enum JSONValue: Sendable, Equatable {
    case null
    case bool(Bool)
    case integer(Int64)
    /// A number that is not a 64-bit integer.
    case number(Double)
    case string(WireText)
    case array([JSONValue])
    case object([WireText: JSONValue])

    /// Why a text is not one JSON value. `description` may be shown to callers.
    package enum Fault: Error, Equatable, CustomStringConvertible {
        /// The text is not one well-formed JSON value in UTF-8, or more text follows it.
        case malformed
        /// The value is nested deeper than `JSONValue.maximumDepth`.
        case tooDeep
        /// An object names a member twice. Readers disagree about which one counts, so the text is refused.
        case repeatedMember(pointer: String)
        /// The name of a member is longer than `longestName`.
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

    /// More than any document of this service needs, and far less than would exhaust a stack.
    package static let maximumDepth = 32

    /// Reads exactly one value in UTF-8. The time is proportional to the text's length for every text.
    /// - Parameter longestName: the most bytes that the name of a member may have.
    package init(parsing bytes: [UInt8], longestName: Int = .max) throws(Fault) {
        var reader = JSONReader(bytes, longestName: longestName)
        self = try reader.document()
    }

    /// Reads exactly one value, for what must not be lost although a text in it is not right: bytes that are no UTF-8, halves of
    /// surrogate pairs and control characters in a string become U+FFFD or stay, and a number beyond the range of a double becomes
    /// null.
    package init(repairing bytes: [UInt8]) throws(Fault) {
        var reader = JSONReader(bytes, longestName: .max, repairsText: true)
        self = try reader.document()
    }

    /// Reads the value that a text begins with, for what must not be lost although the text is not JSON: what follows the value is
    /// ignored, and of an object's members those are missing that occur with different values.
    package init(beginning bytes: [UInt8]) throws(Fault) {
        var reader = JSONReader(bytes, longestName: .max, isLenient: true)
        self = try reader.beginning()
    }
}

extension JSONValue {
    package var string: WireText? { if case .string(let value) = self { value } else { nil } }
    package var bool: Bool? { if case .bool(let value) = self { value } else { nil } }
    package var integer: Int64? { if case .integer(let value) = self { value } else { nil } }
    package var array: [JSONValue]? { if case .array(let value) = self { value } else { nil } }
    package var object: [WireText: JSONValue]? { if case .object(let value) = self { value } else { nil } }

    /// The member of an object; nil when it is missing or the value is not an object.
    package subscript(_ member: WireText) -> JSONValue? { object?[member] }

    /// This value changed as a merge patch says (RFC 7396): a member that is null is removed, an object is merged, and anything
    /// else is put in place.
    package func merged(with patch: JSONValue) -> JSONValue {
        guard case .object(let changes) = patch else { return patch }
        var members = object ?? [:]
        for (name, change) in changes {
            members[name] = change == .null ? nil : (members[name] ?? .null).merged(with: change)
        }
        return .object(members)
    }

    /// The most bytes of a name in a pointer. Names can be long, and pointers are read by people.
    private static let longestToken = 64

    /// The first 64 bytes of a member's name as a reference token of a JSON pointer (RFC 6901 §3).
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
