/// The connection is closed, or the writing task was cancelled. A retry does not help.
package struct StreamEnded: Error, Equatable, Sendable {
    package init() {}
}

/// Sends the content that `Response.stream` writes. Any task may use it while `Response.stream` runs. Pieces from several
/// tasks stay whole, and are sent in the order in which they reach the connection.
package struct ResponseStream: Sendable {
    private let send: @Sendable ([UInt8]) async throws(StreamEnded) -> Void
    private let reset: @Sendable () async -> Void

    /// - Parameters:
    ///   - send: sends a piece that is not empty. The server's own sends to a connection; another closure can run
    ///     a stream without a server.
    ///   - reset: resets the connection.
    package init(
        _ send: @escaping @Sendable ([UInt8]) async throws(StreamEnded) -> Void,
        reset: @escaping @Sendable () async -> Void = {}
    ) {
        self.send = send
        self.reset = reset
    }

    /// Sends `bytes` as one piece. Does nothing when `bytes` is empty.
    ///
    /// Returns without waiting for the client while fewer than `ServerConfiguration.unsentBytes` are unsent; otherwise
    /// when the client has read enough, which `ServerConfiguration.writeTimeout` bounds. Throws `StreamEnded` when the
    /// connection is closed, `Response.stream` has returned, or the calling task is cancelled; it is unknown then how
    /// much of `bytes` has reached the client.
    package func write(_ bytes: [UInt8]) async throws(StreamEnded) {
        if bytes.isEmpty { return }
        try await send(bytes)
    }

    /// Resets the connection, because the content cannot be completed: the client sees that it was cut off. The stream has ended
    /// then, and its function returns.
    package func abort() async { await reset() }
}
