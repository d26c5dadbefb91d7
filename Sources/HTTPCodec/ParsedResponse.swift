/// A complete response: head and content, with the transfer coding removed.
package struct ParsedResponse: Sendable {
    package let status: Status
    package let fields: Fields
    package let body: [UInt8]
    /// Whether the connection may carry another request (RFC 9112 §9.3). Bytes after the response also forbid reuse,
    /// and only the caller can see those.
    package let allowsReuse: Bool

    package init(status: Status, fields: Fields, body: [UInt8], allowsReuse: Bool) {
        self.status = status
        self.fields = fields
        self.body = body
        self.allowsReuse = allowsReuse
    }
}
