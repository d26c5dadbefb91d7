/// A request method (RFC 9110 §9). Methods are case-sensitive. Unknown methods are kept, so that the router can answer
/// 405.
package struct Method: Hashable, Sendable, CustomStringConvertible {
    package let name: String

    package init(_ name: String) { self.name = name }

    package static let get = Method("GET")
    package static let head = Method("HEAD")
    package static let post = Method("POST")
    package static let put = Method("PUT")
    package static let patch = Method("PATCH")
    package static let delete = Method("DELETE")
    package static let options = Method("OPTIONS")

    package var description: String { name }
}
