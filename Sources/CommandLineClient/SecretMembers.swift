import ExternalText
import JSON

/// Members of configurations that hold secrets, or can: what a person is shown of them, and what a command line must not hold.
enum SecretMembers {
    /// Secrets as a whole.
    static let whole: Set<WireText> = ["client_secret", "client_secrets", "private_key", "client_certificate"]
    /// Those within other members.
    private static let inner: Set<[WireText]> = [["shared_signals", "authorization"]]
    /// Objects whose values can be secrets; the names are shown.
    private static let maps: Set<[WireText]> = [["relay", "headers"], ["request_headers"]]
    /// The private parts of a JWK.
    private static let privateParts: Set<WireText> = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"]

    private static let hidden = JSONValue.string("(secret)")

    /// Whether a member holds a secret, whatever it is.
    /// - Parameter path: the names from the outermost to the innermost.
    static func contain(_ path: [WireText]) -> Bool {
        path.first.map(whole.contains) == true || inner.contains(path)
            || path.count > 1 && maps.contains(path.dropLast())
    }

    /// A member's value without its secrets: `(secret)` stands in their place, also for the user and the password in an address.
    static func shown(_ name: WireText, _ value: JSONValue) -> JSONValue { shown(value, at: [name]) }

    private static func shown(_ value: JSONValue, at path: [WireText]) -> JSONValue {
        if value == .null { return value }
        if contain(path) { return hidden }
        switch value {
        case .string(let text): return .string(WireText(shown(address: text.text)))
        case .array(let elements): return .array(elements.map { shown($0, at: path) })
        case .object(let members):
            var shown: [WireText: JSONValue] = [:]
            for (name, member) in members {
                let isPrivate = members["kty"] != nil && privateParts.contains(name)
                shown[name] = isPrivate ? hidden : Self.shown(member, at: path + [name])
            }
            return .object(shown)
        default: return value
        }
    }

    private static func shown(address: String) -> String {
        guard let mark = address.firstRange(of: "://"), GivenWords.isConfidential(address) else { return address }
        let rest = address[mark.upperBound...]
        guard let sign = rest.prefix(while: { !"/?#".contains($0) }).lastIndex(of: "@") else { return address }
        return address[..<mark.upperBound] + "(secret)" + rest[sign...]
    }
}
