/// Why bytes are not a request that this server accepts. The rest of the stream cannot be interpreted, so the server
/// answers and closes the connection (RFC 9112 §2.2). Retrying cannot help.
package enum RequestFault: Error, Hashable, Sendable, CaseIterable {
    /// A CR or LF alone, or another control character.
    case lineEnd
    /// The request line violates its grammar.
    case requestLine
    /// The request target violates its grammar or does not suit the method.
    case target
    /// A field line violates its grammar: a folded line, a space before the colon, a name that is not a token.
    case fieldLine
    /// Host is missing, repeated or invalid (RFC 9112 §3.2).
    case host
    /// Content-Length is repeated, a list, or not a decimal number.
    case contentLength
    /// Content-Length together with Transfer-Encoding, which contradict each other.
    case conflictingLength
    /// Transfer-Encoding is malformed, does not end in chunked, or comes from an HTTP/1.0 client.
    case transferEncoding
    /// The chunked framing violates its grammar.
    case chunk
    /// The request line is longer than the limit.
    case requestLineTooLong
    /// The head is longer than the limit.
    case headTooLarge
    /// There are more field lines than the limit.
    case tooManyFields
    /// Chunk extensions and trailers exceed their limit.
    case chunkOverheadTooLarge
    /// The content, or its declared length, exceeds the limit.
    case contentTooLarge
    /// A major version other than 1.
    case version
    /// A transfer coding other than chunked.
    case unknownTransferCoding
    /// CONNECT or TRACE, which this server does not implement.
    case method
    /// An expectation other than 100-continue.
    case expectation

    /// The status of the answer.
    package var status: Status {
        switch self {
        case .lineEnd, .requestLine, .target, .fieldLine, .host, .contentLength, .conflictingLength,
            .transferEncoding, .chunk:
            .badRequest
        case .requestLineTooLong: .uriTooLong
        case .headTooLarge, .tooManyFields, .chunkOverheadTooLarge: .headerFieldsTooLarge
        case .contentTooLarge: .contentTooLarge
        case .version: .httpVersionNotSupported
        case .unknownTransferCoding, .method: .notImplemented
        case .expectation: .expectationFailed
        }
    }

    /// A constant text for the client.
    package var detail: String {
        switch self {
        case .lineEnd: "The head holds a control character or a line that does not end in CRLF."
        case .requestLine: "The request line is malformed."
        case .target: "The request target is malformed or does not suit the method."
        case .fieldLine: "A header field line is malformed."
        case .host: "The request needs exactly one valid Host field."
        case .contentLength: "Content-Length is repeated or malformed."
        case .conflictingLength: "Content-Length and Transfer-Encoding exclude each other."
        case .transferEncoding: "Transfer-Encoding is malformed, does not end in chunked or is not allowed here."
        case .chunk: "The chunked content is malformed."
        case .requestLineTooLong: "The request line is too long."
        case .headTooLarge: "The head of the request is too large."
        case .tooManyFields: "The request has too many header fields."
        case .chunkOverheadTooLarge: "Chunk extensions or trailer fields are too large."
        case .contentTooLarge: "The content is too large."
        case .version: "This server speaks HTTP/1.1."
        case .unknownTransferCoding: "chunked is the only transfer coding this server understands."
        case .method: "This server implements neither CONNECT nor TRACE."
        case .expectation: "100-continue is the only expectation this server meets."
        }
    }
}
