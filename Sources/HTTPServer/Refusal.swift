/// What a server has no room for.
package enum Refusal: Int, Sendable, CaseIterable {
    /// A request that waited for too long on a loop with more to do than it can. Answered 503.
    case overload
    /// A connection over the limit. Answered 503; of a crowd, most are closed without an answer.
    case connections
    /// A connection over its source's limit, or over its source's share of a full server. Answered like `connections`.
    case source
    /// A connection in use that was closed without an answer, since its source had more than its share of a full server
    /// and another source's connection needed the place.
    case displacement
    /// A request whose content, with those of the same loop's other requests, is more than that may hold. Answered 503.
    case contents
    /// A connection that was reset because the answers which clients of the same loop do not read are more than that may
    /// hold, and its client had not read for longest.
    case answers

    /// As metrics and the log call it.
    package var name: StaticString {
        switch self {
        case .overload: "overload"
        case .connections: "connections"
        case .source: "source"
        case .displacement: "displacement"
        case .contents: "contents"
        case .answers: "answers"
        }
    }

    /// For people, in the answer.
    package var detail: String {
        switch self {
        case .overload: "There is more to do than this server can. Ask again."
        case .connections: "The server has too many connections."
        case .source, .displacement: "The server has too many connections from your address."
        case .contents: "The server holds too much content of requests. Ask again."
        case .answers: "The server holds too many answers that are not read. Ask again."
        }
    }
}
