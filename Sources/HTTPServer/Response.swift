package import HTTPCodec

/// An answer. The server adds `Date`, `X-Request-ID`, what frames the content (`Content-Length` or, for a stream,
/// `Transfer-Encoding`) and, where it is due, `Connection`.
package struct Response: Sendable {
    package var status: Status
    package var fields: Fields
    package var body: [UInt8]
    /// Closes the connection once this answer is out.
    package var closesConnection: Bool
    /// Closes the connection without an answer, as a server does that fails in the middle of its work. The rest of
    /// this value is not sent.
    package var abortsConnection = false
    /// Makes the rest of the content, which is sent while it is made; nil where `body` is all of it.
    ///
    /// The head and `body` leave at once. Then this runs in the task that ran the handler, on the connection's loop, and
    /// must not block; when it returns, the content is complete. It counts as a running handler: its task is cancelled
    /// when the client is gone, and a drain waits for it. Nothing is read from the client meanwhile; that it has finished
    /// sending does not end the stream. It may write nothing for as long as it likes, but what the client does not take
    /// within `ServerConfiguration.writeTimeout` ends the connection with a reset. A client that closed without a reset
    /// is found out only by writing to it, so a stream with long pauses writes something in them.
    ///
    /// It is not run for HEAD, nor with a status that has no content.
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
