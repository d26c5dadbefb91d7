/// Why a message was not encoded: what was to be sent would have been read as something else. A programming error or
/// hostile input that reached a field; sending it again cannot help.
package enum EncodingFault: Error, Equatable, Sendable {
    /// The status is an interim one (1xx), which is not an answer.
    case status
    /// The method is not a token.
    case method
    /// The request target or host is empty or holds a space, a control or a byte beyond ASCII.
    case target
    /// A field's name is not a token.
    case fieldName
    /// A field's value holds CR, LF, NUL or another control.
    case fieldValue
    /// A field that only the encoder may write, since the message's framing rests on it.
    case reservedField
}
