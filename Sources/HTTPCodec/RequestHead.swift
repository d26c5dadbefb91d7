/// A request's head, checked.
package struct RequestHead: Sendable {
    /// Bytes from the beginning of what was parsed to the end of the head.
    package let length: Int
    package let method: Method
    /// As `Request.path`: begins with `/`, or is `*`.
    package let path: String
    /// What follows the target's first `?`; nil without one.
    package let query: String?
    /// With an absolute-form target, Host is the target's authority, whatever was sent (RFC 9112 §3.2.2).
    package let fields: Fields
    package let framing: BodyFraming
    /// Whether the client speaks HTTP/1.0: interim responses and silent persistence are not for it.
    package let isHTTP10: Bool
    /// Whether the client lets the connection persist (RFC 9112 §9.3).
    package let keepsAlive: Bool
    /// Whether the client waits for 100 before it sends the content.
    package let expectsContinue: Bool
}
