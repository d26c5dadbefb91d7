/// Why bytes from a server are not a valid response. After each of these faults the connection must be closed. Whether
/// a retry helps depends on the server, unless the case says otherwise.
package enum ResponseFault: Error, Equatable, Sendable {
    /// The status line, a field line or a line end violates the grammar of RFC 9112.
    case malformedHead
    /// The version is neither HTTP/1.1 nor HTTP/1.0.
    case unsupportedVersion
    /// The heads, including interim responses, exceed the limit of bytes or of field lines.
    case headTooLarge
    /// More 1xx responses than allowed precede the final response.
    case tooManyInterimResponses
    /// The server sent 101, which the request did not ask for.
    case unexpectedUpgrade
    /// Content-Length is repeated, is not a decimal number, or occurs together with Transfer-Encoding.
    case ambiguousLength
    /// Transfer-Encoding is malformed, not understood, or sent by an HTTP/1.0 server.
    case unsupportedTransferCoding
    /// The chunked framing violates its grammar, or its extensions and trailers exceed their limit.
    case malformedChunk
    /// The content exceeds the limit. Thrown as soon as the length is declared.
    case bodyTooLarge
    /// The server closed the connection in the middle of the response.
    case truncated
    /// The server closed the connection before the first byte of a response. On a reused connection the server most
    /// likely never read the request, so a request that may be repeated can be sent again on a new connection.
    case closedBeforeResponse
}
