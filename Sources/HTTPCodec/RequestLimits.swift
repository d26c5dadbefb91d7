/// The limits of a request that a server accepts. Each limit is inclusive.
package struct RequestLimits: Sendable, Equatable {
    /// The bytes of the request line without its CRLF. Default 8192; RFC 9112 §3 recommends at least 8000. A longer
    /// line gets 414.
    package var requestLineBytes: Int
    /// The bytes of the whole head, including request line and line ends. Default 16 KiB. A longer head gets 431.
    package var headBytes: Int
    /// The number of field lines. Default 100. More lines get 431.
    package var fieldCount: Int
    /// The bytes of content without the transfer coding. Default 64 KiB. Longer content gets 413, already when its
    /// length is declared.
    package var bodyBytes: Int
    /// The bytes of chunk extensions and trailers together. Default 4 KiB. More bytes get 431.
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
