package import HTTPCodec

/// A request, which the client sends at most once.
package struct ClientRequest: Sendable, CustomStringConvertible, CustomDebugStringConvertible {
    package var method: Method
    package var url: URLTarget
    /// Header fields in addition to Host, Content-Length and Accept-Encoding, which the client writes.
    package var fields: Fields
    package var body: [UInt8]
    /// The server's verified chain must contain at least one of these keys. Nil checks the chain alone. Pins cannot be
    /// used with `http://`.
    package var pins: PinSet?
    /// What the client shows to the server, which must be an `https://` one; nil for nothing.
    package var certificate: ClientCertificate?
    /// The longest time that the exchange may take, including waiting for a connection and opening one. Nil and longer
    /// values mean the client's `exchangeTimeout`.
    package var timeLimit: Duration?

    /// Whether the server must be one that needs no entry in `TargetPolicy.networks`, for an address that others than the
    /// operator have named. Default false.
    package var avoidsListedNetworks: Bool

    /// Whether the request must not go on a connection that was kept: the server may have dropped that one unnoticed, and what
    /// was sent on it cannot be told from what the server has acted on. For requests that must not be repeated. Default false.
    package var needsNewConnection = false

    /// The proxy by which the request leaves, in place of the client's: whatever the server, without an exception. Where its host is
    /// not of the public internet, `TargetPolicy` must allow that. Nil for the client's, which is the default.
    package var proxy: OutboundProxy?

    /// Who takes the response's body as it comes; nil for a response that is kept whole. Set by `HTTPSClient.stream`.
    var receiver: ResponseReceiver?

    package init(
        method: Method, url: URLTarget, fields: Fields = Fields(), body: [UInt8] = [], pins: PinSet? = nil,
        timeLimit: Duration? = nil, avoidsListedNetworks: Bool = false
    ) {
        self.avoidsListedNetworks = avoidsListedNetworks
        self.method = method
        self.url = url
        self.fields = fields
        self.body = body
        self.pins = pins
        self.timeLimit = timeLimit
    }

    /// Omits query, fields and body, because they may hold secrets.
    package var description: String { "\(method) \(url.scheme.rawValue)://\(url.origin.authority)" }
    package var debugDescription: String { description }
}
