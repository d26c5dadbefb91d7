/// What a server has no room for, and answers 503 without looking into it.
package enum Refusal: Int, Sendable, CaseIterable {
    /// A request that waited for too long on a loop with more to do than it can.
    case overload
    /// A connection over the limit; of a crowd, most are closed without an answer.
    case connections
    /// A request whose content, with those of the same loop's other requests, is more than that may hold.
    case contents

    /// As metrics and the log call it.
    package var name: StaticString {
        switch self {
        case .overload: "overload"
        case .connections: "connections"
        case .contents: "contents"
        }
    }

    /// For people, in the answer.
    package var detail: String {
        switch self {
        case .overload: "There is more to do than this server can. Ask again."
        case .connections: "The server has too many connections."
        case .contents: "The server holds too much content of requests. Ask again."
        }
    }
}
