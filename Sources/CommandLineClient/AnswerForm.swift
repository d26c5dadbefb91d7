import ExternalText
import HTTPCodec

/// What a broker's answer to a request that it has granted looks like. Another one comes from something else: a page of a network that
/// wants a login first, a proxy, another service. It must not pass for done.
package enum AnswerForm: Sendable, Equatable {
    /// 200 with a JSON document.
    case json
    /// 201 with a JSON document.
    case created
    /// 200 or 201 with a JSON document: of what was replaced, or made.
    case stored
    /// 204.
    case nothing
    /// 200 with lines of JSON or of JWE.
    case lines
    /// 200 with server-sent events.
    case events

    /// That of a request where it names none.
    init(_ method: Method) {
        self =
            switch method {
            case .delete: .nothing
            case .put: .stored
            default: .json
            }
    }

    func fits(_ status: Status, _ fields: Fields) -> Bool {
        switch self {
        case .json: status.code == 200 && Self.type(fields) == "application/json"
        case .created: status.code == 201 && Self.type(fields) == "application/json"
        case .stored: [200, 201].contains(status.code) && Self.type(fields) == "application/json"
        case .nothing: status.code == 204
        case .lines: status.code == 200 && Self.type(fields) == "application/x-ndjson"
        case .events: status.code == 200 && Self.type(fields) == "text/event-stream"
        }
    }

    /// Whether an answer is a refusal in the broker's form, RFC 9457.
    static func isProblem(_ fields: Fields) -> Bool { type(fields) == "application/problem+json" }

    /// The media type without its parameters; nil for none.
    static func type(_ fields: Fields) -> WireText? { fields["Content-Type"].map { MediaType($0).name } }
}
