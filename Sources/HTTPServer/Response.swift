package import HTTPCodec

/// An answer. The server adds `Date`, `Content-Length`, `X-Request-ID` and, where it is due, `Connection`.
package struct Response: Sendable {
    package var status: Status
    package var fields: Fields
    package var body: [UInt8]
    /// Closes the connection once this answer is out.
    package var closesConnection: Bool
    /// Closes the connection without an answer, as a server does that fails in the middle of its work. The rest of
    /// this value is not sent.
    package var abortsConnection = false

    package init(_ status: Status, fields: Fields = [:], body: [UInt8] = [], closesConnection: Bool = false) {
        self.status = status
        self.fields = fields
        self.body = body
        self.closesConnection = closesConnection
    }
}
