/// Why bytes from a server are not a response. After any of these the connection is to be closed. Whether a retry
/// helps is the server's affair, except where said.
package enum ResponseFault: Error, Equatable, Sendable {
    /// The status line, a field line or a line end breaks the grammar of RFC 9112.
    case malformedHead
    /// Neither HTTP/1.1 nor HTTP/1.0.
    case unsupportedVersion
    /// Head bytes or field lines beyond their limit, interim responses included.
    case headTooLarge
    /// More 1xx responses than allowed in front of the answer.
    case tooManyInterimResponses
    /// 101 without having asked for it.
    case unexpectedUpgrade
    /// Content-Length is repeated or not a decimal number, or stands beside Transfer-Encoding.
    case ambiguousLength
    /// Transfer-Encoding is malformed, not understood, or sent by an HTTP/1.0 server.
    case unsupportedTransferCoding
    /// Chunked framing breaks its grammar, or its extensions and trailers exceed their limit.
    case malformedChunk
    /// The content exceeds the limit; thrown as soon as it is declared.
    case bodyTooLarge
    /// The server closed in the middle of the response.
    case truncated
    /// The server closed before the first byte of a response. On a reused connection the request was most likely never
    /// read, so one that may be repeated can be sent again on a new connection.
    case closedBeforeResponse
}
