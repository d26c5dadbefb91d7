package import ExternalText
package import HTTPCodec

/// `Retry-After` (RFC 9110 §10.2.3).
package enum RetryAfter {
    /// The longest wait after a 429.
    package static let longest: Duration = .seconds(3600)
    /// The longest wait after any other status. A failing server cannot know when it will have recovered.
    package static let longestOfFailure: Duration = .seconds(60)

    /// Reads the field of a response with this status: seconds or an HTTP date. Nil for other texts; a date in the past
    /// means zero.
    package static func parse(_ text: WireText, status: Int, now: Timestamp) -> Duration? {
        let longest = status == 429 ? longest : longestOfFailure
        if !text.isEmpty, text.utf8.allSatisfy(\.isDigit) {
            return min(.seconds(text.count <= 18 ? Int64(text.text) ?? .max : .max), longest)
        }
        guard let date = HTTPDate.parse(text) else { return nil }
        return min(max(now.duration(to: date), .zero), longest)
    }
}

/// The preferred form of an HTTP date (RFC 9110 §5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`. The obsolete forms are not
/// read.
extension HTTPDate {
    private static let months: [WireText] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ]

    package static func parse(_ text: WireText) -> Timestamp? {
        guard text.count == 29 else { return nil }
        let parts = text.split(at: " ")
        guard parts.count == 6, parts[0].count == 4, parts[0].ends(with: ","), parts[4].count == 8,
            parts[5] == "GMT",
            let month = months.firstIndex(of: parts[2])
        else { return nil }
        let number = month < 9 ? "0\(month + 1)" : "\(month + 1)"
        return Timestamp(rfc3339: "\(parts[3])-\(number)-\(parts[1])T\(parts[4])Z")
    }
}
