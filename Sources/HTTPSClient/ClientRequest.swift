package import HTTPCodec

/// A request to be sent once.
package struct ClientRequest: Sendable, CustomStringConvertible, CustomDebugStringConvertible {
    package var method: Method
    package var url: URLTarget
    /// Fields besides those that the client writes itself: Host, Content-Length and Accept-Encoding.
    package var fields: Fields
    package var body: [UInt8]
    /// The keys of which one must be in the server's verified chain; nil to rely on the chain alone. Not usable with
    /// `http://`.
    package var pins: PinSet?
    /// The longest that the exchange may take, waiting for a connection and making one included. Nil, and more than that,
    /// is the client's `exchangeTimeout`.
    package var timeLimit: Duration?

    package init(
        method: Method, url: URLTarget, fields: Fields = Fields(), body: [UInt8] = [], pins: PinSet? = nil,
        timeLimit: Duration? = nil
    ) {
        self.method = method
        self.url = url
        self.fields = fields
        self.body = body
        self.pins = pins
        self.timeLimit = timeLimit
    }

    /// Without query, fields and body, in which secrets travel.
    package var description: String { "\(method) \(url.scheme.rawValue)://\(url.origin.authority)" }
    package var debugDescription: String { description }
}
