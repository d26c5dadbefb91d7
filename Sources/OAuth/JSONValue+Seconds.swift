import ExternalText
import JSON

extension JSONValue {
    /// A number of seconds, or a text of at most 40 characters with a decimal number; nil for other values. A fraction is
    /// rounded by `rule`. Numbers above 10^15 count as 10^15.
    package func wholeSeconds(_ rule: FloatingPointRoundingRule) -> Int64? {
        switch self {
        case .integer(let seconds): seconds
        case .number(let seconds): Self.whole(seconds, rule)
        case .string(let text): Self.isDecimal(text) ? Double(text.text).flatMap { Self.whole($0, rule) } : nil
        default: nil
        }
    }

    private static func whole(_ seconds: Double, _ rule: FloatingPointRoundingRule) -> Int64? {
        Int64(exactly: min(max(seconds, -1), 1e15).rounded(rule))
    }

    private static func isDecimal(_ text: WireText) -> Bool {
        guard text.count <= 40 else { return false }
        let digits = text.starts(with: "-") || text.starts(with: "+") ? text.dropping(1) : text
        let parts = digits.split(at: ".", limit: 3)
        return parts.count <= 2 && parts.allSatisfy { !$0.isEmpty && $0.utf8.allSatisfy(\.isDigit) }
    }
}
