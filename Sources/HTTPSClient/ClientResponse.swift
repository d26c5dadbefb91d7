package import HTTPCodec

/// A complete answer. Redirects are answers like any other: they are never followed.
package struct ClientResponse: Sendable, CustomStringConvertible, CustomDebugStringConvertible {
    package let status: Status
    package let fields: Fields
    package let body: [UInt8]

    package init(status: Status, fields: Fields, body: [UInt8]) {
        self.status = status
        self.fields = fields
        self.body = body
    }

    /// Without fields and body, in which secrets travel.
    package var description: String { "\(status), \(body.count) bytes" }
    package var debugDescription: String { description }
}
