/// How the end of a request's content is found (RFC 9112 §6.3).
package enum BodyFraming: Sendable, Equatable {
    /// The request has no content.
    case none
    /// The content has this many bytes, at least one.
    case length(Int)
    case chunked
}
