internal import ExternalText
internal import JSON

extension JSONValue {
    /// A number of seconds, or a text of digits, 20 at most; nil for anything else and for what 64 bits cannot count. A fraction
    /// is rounded by the rule, a number beyond a thousand million million taken for that many.
    package func wholeSeconds(_ rule: FloatingPointRoundingRule) -> Int64? {
        switch self {
        case .integer(let seconds): seconds
        case .number(let seconds): Int64(exactly: min(max(seconds, -1), 1e15).rounded(rule))
        case .string(let text): text.count <= 20 ? Int64(text.text) : nil
        default: nil
        }
    }
}
