/// The connection is gone, or the writing task was cancelled. Writing again cannot help.
package struct StreamEnded: Error, Equatable, Sendable {
    package init() {}
}

/// Where a response's content goes while it is made. May be used from any task, while `Response.stream` runs; writes
/// from several tasks keep their chunks whole, in the order in which they reach the connection.
package struct ResponseStream: Sendable {
    private let send: @Sendable ([UInt8]) async throws(StreamEnded) -> Void

    /// - Parameter send: takes the pieces, none of them empty. The server's leads to a connection; another serves to run
    ///   a stream without a server.
    package init(_ send: @escaping @Sendable ([UInt8]) async throws(StreamEnded) -> Void) {
        self.send = send
    }

    /// Sends `bytes` as one piece; without any, does nothing.
    ///
    /// Returns without waiting for the client while fewer than `ServerConfiguration.unsentBytes` are unsent; otherwise
    /// when the client has taken enough, which `ServerConfiguration.writeTimeout` bounds. Throws `StreamEnded` when the
    /// connection is gone, `Response.stream` has returned, or the calling task is cancelled; how much of `bytes` has
    /// reached the client is unknown then.
    package func write(_ bytes: [UInt8]) async throws(StreamEnded) {
        if bytes.isEmpty { return }
        try await send(bytes)
    }
}
