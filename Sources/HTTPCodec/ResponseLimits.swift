/// The limits of a response that a client accepts.
package struct ResponseLimits: Sendable {
    /// The bytes of all heads together, including interim responses. Default 64 KiB.
    package var headBytes: Int
    /// The number of field lines of one head. Default 200.
    package var fieldCount: Int
    /// The bytes of content without the transfer coding. Default 1 MiB.
    package var bodyBytes: Int
    /// The bytes of chunk extensions and trailers together. Default 8 KiB.
    package var chunkOverheadBytes: Int
    /// The number of interim (1xx) responses before the final response. Default 8.
    package var interimResponses: Int

    package init(
        headBytes: Int = 65_536, fieldCount: Int = 200, bodyBytes: Int = 1_048_576, chunkOverheadBytes: Int = 8192,
        interimResponses: Int = 8
    ) {
        self.headBytes = headBytes
        self.fieldCount = fieldCount
        self.bodyBytes = bodyBytes
        self.chunkOverheadBytes = chunkOverheadBytes
        self.interimResponses = interimResponses
    }
}
