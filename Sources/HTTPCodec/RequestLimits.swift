/// How much of a request a server takes in. Each limit is inclusive.
package struct RequestLimits: Sendable, Equatable {
    /// Bytes of the request line without its CRLF. Default 8192; RFC 9112 §3 asks for 8000 at least. Beyond it: 414.
    package var requestLineBytes: Int
    /// Bytes of the whole head, request line and line ends included. Default 16 KiB. Beyond it: 431.
    package var headBytes: Int
    /// Field lines. Default 100. Beyond it: 431.
    package var fieldCount: Int
    /// Bytes of content, transfer coding undone. Default 64 KiB. Beyond it, already when declared: 413.
    package var bodyBytes: Int
    /// Bytes of chunk extensions and trailers together. Default 4 KiB. Beyond it: 431.
    package var chunkOverheadBytes: Int

    package init(
        requestLineBytes: Int = 8192, headBytes: Int = 16_384, fieldCount: Int = 100, bodyBytes: Int = 65_536,
        chunkOverheadBytes: Int = 4096
    ) {
        self.requestLineBytes = requestLineBytes
        self.headBytes = headBytes
        self.fieldCount = fieldCount
        self.bodyBytes = bodyBytes
        self.chunkOverheadBytes = chunkOverheadBytes
    }
}
