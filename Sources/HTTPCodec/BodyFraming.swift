/// How the end of a request's content is found (RFC 9112 §6.3).
package enum BodyFraming: Sendable, Equatable {
    /// There is none.
    case none
    /// So many bytes follow, at least one.
    case length(Int)
    case chunked
}
