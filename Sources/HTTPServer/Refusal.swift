/// Why a server refuses a request or a connection.
package enum Refusal: Int, Sendable, CaseIterable {
    /// A request that waited for too long on an overloaded loop. Answered 503.
    case overload
    /// A connection over the limit. Answered 503; when many are refused, most are closed without an answer.
    case connections
    /// A connection over its source's limit, or over its source's share of a full server. Answered like `connections`.
    case source
    /// A connection in use that was closed without an answer, because its source had more than its share of a full server
    /// and another source's connection needed room.
    case displacement
    /// A request whose content, with that of the same loop's other requests, exceeds the loop's limit. Answered 503.
    case contents
    /// A connection that was reset because the unread answers of the same loop exceed its limit, and its client had not
    /// read for longest.
    case answers

    /// The name in metrics and in the log.
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

    /// The explanation in the answer.
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
