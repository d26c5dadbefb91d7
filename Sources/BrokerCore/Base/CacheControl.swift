import ExternalText
import HTTPCodec

/// What a response says of how long it may be used again (RFC 9111 §4.2, §5.2).
enum CacheControl {
    /// For how many seconds a response may be used: what `max-age` leaves of `Age`, and 0 with `no-store` or `no-cache`. A
    /// `max-age` that cannot be read counts as 0, and of two the shorter one counts (§4.2.1).
    /// - Parameters:
    ///   - unstated: stands for the `max-age` of a response that has none of these directives.
    ///   - limit: the result's upper bound.
    static func freshSeconds(_ fields: Fields, unstated: Int64, limit: Int64) -> Int64 {
        var stated: Int64?
        for directive in fields.values("Cache-Control").flatMap({ $0.split(at: ",") }) {
            let parts = directive.trimmed.split(at: "=", limit: 2)
            switch parts[0].lowercased {
            case "no-store", "no-cache": return 0
            case "max-age":
                let seconds = parts.count == 2 ? Self.seconds(parts[1]) ?? 0 : 0
                stated = min(stated ?? seconds, seconds)
            default: break
            }
        }
        // What a cache on the way has kept is older by this.
        let age = fields["Age"].flatMap { seconds($0.trimmed) } ?? 0
        return min(max(0, (stated ?? unstated) - age), limit)
    }

    /// A number of seconds, with or without quotation marks; nil for another text.
    private static func seconds(_ text: WireText) -> Int64? {
        let digits = text.utf8.filter { $0 != UInt8(ascii: "\"") }
        guard !digits.isEmpty, digits.count <= 18, digits.allSatisfy({ $0 >= 0x30 && $0 <= 0x39 }) else { return nil }
        return digits.reduce(0) { $0 * 10 + Int64($1 - 0x30) }
    }
}
