package import HTTPCodec

/// A complete response. The client returns redirects like other responses and never follows them.
package struct ClientResponse: Sendable, CustomStringConvertible, CustomDebugStringConvertible {
    package let status: Status
    package let fields: Fields
    package let body: [UInt8]

    package init(status: Status, fields: Fields, body: [UInt8]) {
        self.status = status
        self.fields = fields
        self.body = body
    }

    /// Omits fields and body, because they may hold secrets.
    package var description: String { "\(status), \(body.count) bytes" }
    package var debugDescription: String { description }
}
