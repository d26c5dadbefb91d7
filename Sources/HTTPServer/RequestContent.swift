/// Why the rest of a content does not come. The request has no more of it.
package enum ContentFault: Error, Equatable, Sendable {
    /// The connection ended inside the content.
    case cutShort
    /// Nothing has come for `ServerConfiguration.bodyTimeout`.
    case tooSlow
    /// The framing of the content is wrong, so that nothing behind it can be read.
    case malformed
    /// The connection is closed, or the task that reads was cancelled.
    case ended
}

/// The content of a request that is read while it comes, because `RequestHandler.admit` has said so.
///
/// Nothing is read from the client that is not asked for, so a slow reader slows its client down, and holds 16 KiB of it.
package struct RequestContent: Sendable {
    private let read: @Sendable () async throws(ContentFault) -> [UInt8]?

    /// - Parameter read: reads the next piece. The server's own reads from a connection; another closure can give a content
    ///   without a server.
    package init(_ read: @escaping @Sendable () async throws(ContentFault) -> [UInt8]?) {
        self.read = read
    }

    /// The next piece, as it has arrived: not empty, at most 16 KiB from a connection. Waits until there is one, for
    /// `ServerConfiguration.bodyTimeout` at most. Nil when the content is complete. One task at a time may call it, in
    /// `RequestHandler.respond` or in the stream of its response.
    package func next() async throws(ContentFault) -> [UInt8]? { try await read() }
}
