/// A JSON value (RFC 8259). Objects have no order and no repeated members.
package enum JSONValue: Sendable, Equatable {
    case null
    case bool(Bool)
    case integer(Int64)
    /// A number that is no 64-bit integer.
    case number(Double)
    case string(String)
    case array([JSONValue])
    case object([String: JSONValue])

    /// What is wrong with a text that should have been one JSON value. `description` may be shown to anyone.
    package enum Fault: Error, Equatable, CustomStringConvertible {
        /// Not one well-formed JSON value in UTF-8, or something follows it.
        case malformed
        /// Nested deeper than `JSONValue.maximumDepth`.
        case tooDeep
        /// An object names a member twice. Readers disagree which one counts, so none does.
        case repeatedMember(pointer: String)

        package var description: String {
            switch self {
            case .malformed: "The body is not one well-formed JSON value in UTF-8."
            case .tooDeep: "The JSON value is nested deeper than \(JSONValue.maximumDepth) levels."
            case .repeatedMember(let pointer): "The member at \(pointer) occurs more than once."
            }
        }
    }

    /// Far beyond any document of this service, far below what would exhaust a stack.
    package static let maximumDepth = 32

    /// Reads exactly one value, in UTF-8.
    package init(parsing bytes: [UInt8]) throws(Fault) {
        var reader = JSONReader(bytes)
        self = try reader.document()
    }
}

extension JSONValue {
    package var string: String? { if case .string(let value) = self { value } else { nil } }
    package var bool: Bool? { if case .bool(let value) = self { value } else { nil } }
    package var integer: Int64? { if case .integer(let value) = self { value } else { nil } }
    package var array: [JSONValue]? { if case .array(let value) = self { value } else { nil } }
    package var object: [String: JSONValue]? { if case .object(let value) = self { value } else { nil } }

    /// The member of an object; nil for a missing one and for what is no object.
    package subscript(_ member: String) -> JSONValue? { object?[member] }

    /// `token` as a piece of a JSON pointer (RFC 6901 §3).
    package static func pointerToken(_ token: String) -> String {
        token.replacing("~", with: "~0").replacing("/", with: "~1")
    }
}
