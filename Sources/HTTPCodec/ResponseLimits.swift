/// How much of a response a client takes in.
package struct ResponseLimits: Sendable {
    /// Bytes of all heads together, interim ones included. Default 64 KiB.
    package var headBytes: Int
    /// Field lines of one head. Default 200.
    package var fieldCount: Int
    /// Bytes of content, transfer coding undone. Default 1 MiB.
    package var bodyBytes: Int
    /// Bytes of chunk extensions and trailers together. Default 8 KiB.
    package var chunkOverheadBytes: Int
    /// Interim (1xx) responses in front of the final one. Default 8.
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
