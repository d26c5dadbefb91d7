package import HTTPCodec
package import Reactor

/// A whole request: its head and its content, without transfer codings.
package struct Request: Sendable {
    package var method: Method
    /// The path of the request target, percent escapes as sent. Begins with `/`, or is `*` for `OPTIONS *`.
    package var path: String
    /// What follows the first `?` of the target, escapes as sent; nil without one.
    package var query: String?
    package var fields: Fields
    package var body: [UInt8]
    /// Identifies the request in logs and in the answer's `X-Request-ID`: 32 hexadecimal digits, made by the server.
    package var id: String
    /// Where the request comes from: the peer of its connection, or the client that a trusted proxy names (see
    /// `TrustedProxies`). `unknown` for a request that did not arrive over a connection.
    package var source: NetworkSource
    /// The whole address of `source`; `unspecified` when the peer has none, as on a Unix-domain socket. Nil for a request
    /// that did not arrive over a connection.
    package var client: NetworkAddress?
    /// Who the client of the connection is by the certificate that it has shown in the handshake of TLS, which was verified; nil
    /// without one.
    package var peer: PeerIdentity?
    /// When the request came. Where the process stood still before it was read, this is when that began, since the request may
    /// have waited ever since. Nil for a request that did not arrive over a connection.
    package var arrival: MonotonicInstant?
    /// The content, where `RequestHandler.admit` has said that it is read while it comes; nil where `body` has all of it.
    package var content: RequestContent?
    /// The value that `RequestHandler.admit` returned as `found`; nil for a request without content.
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
