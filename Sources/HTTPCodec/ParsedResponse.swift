/// A whole response: head and content, transfer coding undone.
package struct ParsedResponse: Sendable {
    package let status: Status
    package let fields: Fields
    package let body: [UInt8]
    /// Whether the connection may carry another request (RFC 9112 §9.3). Bytes that follow the response forbid it too;
    /// only the caller sees those.
    package let allowsReuse: Bool

    package init(status: Status, fields: Fields, body: [UInt8], allowsReuse: Bool) {
        self.status = status
        self.fields = fields
        self.body = body
        self.allowsReuse = allowsReuse
    }
}
