import BrokerCore
import ExternalText
import HTTPCodec

/// The media types that a client accepts, and which it prefers (RFC 9110 §12.5.1).
enum Accept {
    /// Whether the client prefers JSON to HTML. A browser gets HTML, and so does a client that accepts everything.
    /// Where both have the same quality, the type that is named goes before a wildcard (`application/json, */*`).
    static func prefersJSON(_ fields: Fields) -> Bool {
        let ranges = fields.list("Accept").prefix(mostRanges).map(Range.init)
        if ranges.isEmpty { return false }
        let json = max(
            preference("application", "json", ranges), preference("application", "problem+json", ranges))
        return json.quality > 0 && json > preference("text", "html", ranges)
    }

    /// The most media ranges that are read. The rest of a longer list is ignored.
    private static let mostRanges = 64

    /// Whether the field names HTML. Every browser does, and no other common client.
    static func namesHTML(_ fields: Fields) -> Bool {
        let ranges: [Range] = fields.list("Accept").prefix(mostRanges).map(Range.init)
        return ranges.contains { $0.isHTML && $0.quality > 0 }
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
        var type: WireText = ""
        var subtype: WireText = ""
        var quality = 1.0

        var isHTML: Bool { type == "text" && subtype == "html" }

        init(_ text: WireText) {
            let range = MediaType(text)
            let names = range.name.split(at: "/", limit: 3)
            if names.count == 2 {
                type = names[0]
                subtype = names[1]
            }
            for parameter in range.parameters where parameter.starts(with: "q=") {
                // A weight has at most five characters (RFC 9110 §12.4.2).
                quality = parameter.count <= 16 ? Double(parameter.dropping(2).text) ?? 0 : 0
            }
        }
    }

    /// The preference of the most precise range that matches the type.
    private static func preference(_ type: WireText, _ subtype: WireText, _ ranges: [Range]) -> Preference {
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
