package import HTTPCodec

/// A complete answer. Redirects are answers like any other: they are never followed.
package struct ClientResponse: Sendable {
    package let status: Status
    package let fields: Fields
    package let body: [UInt8]

    package init(status: Status, fields: Fields, body: [UInt8]) {
        self.status = status
        self.fields = fields
        self.body = body
    }
}
