internal import HTTPCodec

/// What a client would rather have (RFC 9110 §12.5.1).
enum Accept {
    /// Whether JSON is preferred to HTML. A browser, and a client that takes anything, get HTML.
    static func prefersJSON(_ fields: Fields) -> Bool {
        let ranges = fields.list("Accept").map(Range.init)
        if ranges.isEmpty { return false }
        let json = max(
            quality("application", "json", ranges), quality("application", "problem+json", ranges))
        return json > quality("text", "html", ranges)
    }

    private struct Range {
        var type = ""
        var subtype = ""
        var quality = 1.0

        init(_ text: String) {
            let parts = text.lowercased().split(separator: ";").map { $0.filter { $0 != " " && $0 != "\t" } }
            let names = (parts.first ?? "").split(separator: "/")
            if names.count == 2 {
                type = String(names[0])
                subtype = String(names[1])
            }
            for part in parts.dropFirst() where part.hasPrefix("q=") {
                quality = Double(part.dropFirst(2)) ?? 0
            }
        }
    }

    /// The most specific range that fits decides.
    private static func quality(_ type: String, _ subtype: String, _ ranges: [Range]) -> Double {
        let fits: (Range) -> Int? = { range in
            if range.type == type, range.subtype == subtype { return 2 }
            if range.type == type, range.subtype == "*" { return 1 }
            return range.type == "*" && range.subtype == "*" ? 0 : nil
        }
        let best = ranges.compactMap { range in fits(range).map { ($0, range.quality) } }.max { $0.0 < $1.0 }
        return best?.1 ?? 0
    }
}
