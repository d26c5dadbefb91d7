package import HTTPCodec
package import Reactor

/// A whole request: head and content, transfer codings undone.
package struct Request: Sendable {
    package var method: Method
    /// The path of the request target, percent escapes as sent. Begins with `/`, or is `*` for `OPTIONS *`.
    package var path: String
    /// What follows the first `?` of the target, escapes as sent; nil without one.
    package var query: String?
    package var fields: Fields
    package var body: [UInt8]
    /// This request's name in logs and in the answer's `X-Request-ID`: 32 hexadecimal digits, made by the server.
    package var id: String
    /// Where the request comes from: the peer of its connection, or the client that a trusted proxy names (see
    /// `TrustedProxies`). `unknown` for a request that no connection brought.
    package var source: NetworkSource
    /// The whole address that `source` is of; `unspecified` where the peer has none, as on a Unix-domain socket. Nil for a
    /// request that no connection brought.
    package var client: NetworkAddress?
    /// What `RequestHandler.admit` found; nil for a request without content.
    package var admission: (any Sendable)?

    package init(
        method: Method, path: String, query: String? = nil, fields: Fields = [:], body: [UInt8] = [],
        id: String = "0", source: NetworkSource = .unknown, client: NetworkAddress? = nil
    ) {
        self.method = method
        self.path = path
        self.query = query
        self.fields = fields
        self.body = body
        self.id = id
        self.source = source
        self.client = client
    }
}
