package import HTTPCodec

/// An answer. The server adds `Date`, `X-Request-ID`, `Content-Length` or, for a stream, `Transfer-Encoding`, and, where
/// HTTP needs it, `Connection`.
package struct Response: Sendable {
    package var status: Status
    package var fields: Fields
    package var body: [UInt8]
    /// Closes the connection when this answer is sent.
    package var closesConnection: Bool
    /// Closes the connection without an answer, as a server does that crashes. The rest of this value is not sent.
    package var abortsConnection = false
    /// Writes the rest of the content, which is sent as it is written; nil when `body` is all of the content.
    ///
    /// The head and `body` are sent at once. Then this runs in the task that ran the handler, on the connection's loop, and
    /// must not block; when it returns, the content is complete. It counts as a running handler: its task is cancelled
    /// when the connection is closed or reset, and a drain waits for it. Nothing is read from the client meanwhile. A
    /// client that has finished sending does not end the stream. There is no time limit between two writes, but a client
    /// that does not read what was written within `ServerConfiguration.writeTimeout` is reset. A client that closed
    /// without a reset is noticed only by writing to it, so a stream with long pauses writes something in them.
    ///
    /// It is not run for HEAD, nor for a status that has no content.
    package var stream: (@Sendable (ResponseStream) async -> Void)?

    package init(
        _ status: Status, fields: Fields = [:], body: [UInt8] = [], closesConnection: Bool = false,
        stream: (@Sendable (ResponseStream) async -> Void)? = nil
    ) {
        self.status = status
        self.fields = fields
        self.body = body
        self.closesConnection = closesConnection
        self.stream = stream
    }
}
