/// Why a message was not encoded: its recipient would have read it as another message. The cause is a programming
/// error, or hostile input in a field. Retrying cannot help.
package enum EncodingFault: Error, Equatable, Sendable {
    /// The status is interim (1xx), which is not a final response.
    case status
    /// The method is not a token.
    case method
    /// The request target or host is empty, or contains a space, a control character or a byte outside ASCII.
    case target
    /// A field's name is not a token.
    case fieldName
    /// A field's value contains CR, LF, NUL or another control character.
    case fieldValue
    /// A field that only the encoder may write, because it determines the message's framing.
    case reservedField
}
