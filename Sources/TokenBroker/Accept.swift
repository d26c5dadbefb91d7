internal import BrokerCore
internal import HTTPCodec

/// What a client would rather have (RFC 9110 §12.5.1).
enum Accept {
    /// Whether JSON is preferred to HTML. A browser, and a client that takes anything, get HTML; of two that are equally
    /// welcome, the one that is named counts (`application/json, */*`).
    static func prefersJSON(_ fields: Fields) -> Bool {
        let ranges = fields.list("Accept").map(Range.init)
        if ranges.isEmpty { return false }
        let json = max(
            preference("application", "json", ranges), preference("application", "problem+json", ranges))
        return json.quality > 0 && json > preference("text", "html", ranges)
    }

    /// Whether HTML is named, as every browser does and no other common client.
    static func namesHTML(_ fields: Fields) -> Bool {
        fields.list("Accept").map(Range.init)
            .contains { $0.type == "text" && $0.subtype == "html" && $0.quality > 0 }
    }

    private struct Preference: Comparable {
        var quality = 0.0
        /// 2 for a media type by its name, 1 for `type/*`, 0 for `*/*`.
        var precision = 0

        static func < (left: Preference, right: Preference) -> Bool {
            (left.quality, left.precision) < (right.quality, right.precision)
        }
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

    /// The most precise range that fits decides.
    private static func preference(_ type: String, _ subtype: String, _ ranges: [Range]) -> Preference {
        let fits: (Range) -> Int? = { range in
            if range.type == type, range.subtype == subtype { return 2 }
            if range.type == type, range.subtype == "*" { return 1 }
            return range.type == "*" && range.subtype == "*" ? 0 : nil
        }
        let fitting = ranges.compactMap { range in
            fits(range).map { Preference(quality: range.quality, precision: $0) }
        }
        return fitting.max { $0.precision < $1.precision } ?? Preference()
    }
}
