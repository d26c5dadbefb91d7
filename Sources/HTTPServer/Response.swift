package import HTTPCodec

/// An answer. The server adds `Date`, `Content-Length`, `X-Request-ID` and, where it is due, `Connection`.
package struct Response: Sendable {
    package var status: Status
    package var fields: Fields
    package var body: [UInt8]
    /// Closes the connection once this answer is out.
    package var closesConnection: Bool

    package init(_ status: Status, fields: Fields = [:], body: [UInt8] = [], closesConnection: Bool = false) {
        self.status = status
        self.fields = fields
        self.body = body
        self.closesConnection = closesConnection
    }
}
