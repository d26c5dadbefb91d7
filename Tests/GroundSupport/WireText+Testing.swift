package import ExternalText
package import HTTPCodec
package import JSON
package import OAuth

// Tests hold what a program under test has answered against texts of their own, short ones: there the comparison with a
// `String` is what one wants to write.

package func == (left: WireText?, right: String?) -> Bool { left == right.map { WireText($0) } }
package func != (left: WireText?, right: String?) -> Bool { !(left == right) }
package func == (left: [WireText], right: [String]) -> Bool { left == right.map { WireText($0) } }

extension JSONValue {
    /// The text of a string; nil for what is none.
    package var text: String? { string?.text }

    package static func string(_ text: String) -> JSONValue { .string(WireText(text)) }

    package subscript(_ member: String) -> JSONValue? { self[WireText(member)] }
}

extension FormEncoding {
    package static func decode(_ text: String, limits: Limits = Limits()) throws(Fault) -> [Pair] {
        try decode(WireText(text), limits: limits)
    }
}

extension AuthorizationResponse {
    package init(query: String) throws(Fault) {
        try self.init(query: WireText(query))
    }
}
