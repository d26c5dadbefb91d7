/// When a request that failed is tried again.
///
/// | retry            | 1     | 2   | 3   | 4   | 5   |
/// |------------------|-------|-----|-----|-----|-----|
/// | wait before it   | 0.5 s | 1 s | 2 s | 4 s | 8 s |
/// | waited in all    | 0.5 s | 1.5 | 3.5 | 7.5 | 15.5 s |
///
/// - Source: TIDAL's Auth design: five more tries, each after twice the last wait.
package struct BackoffSchedule: Sendable, Equatable {
    package static let standard = BackoffSchedule()

    package static let retries = 5

    /// A wait that a provider asks for is kept inside one call up to this; a longer one is the caller's to keep.
    package static let longestWait: Duration = .seconds(30)

    /// What to wait before the given retry.
    /// - Parameters:
    ///   - retry: 1 for the first one.
    ///   - retryAfter: what the failed answer asked for; honoured when it is longer than the schedule.
    /// - Returns: nil when there is no such retry, or when the provider asks for more than `longestWait`.
    package func wait(before retry: Int, retryAfter: Duration?) -> Duration? {
        guard (1...Self.retries).contains(retry) else { return nil }
        let scheduled = Duration.milliseconds(500) * (1 << (retry - 1))
        guard let retryAfter, retryAfter > scheduled else { return scheduled }
        return retryAfter <= Self.longestWait ? retryAfter : nil
    }
}

/// `Retry-After` (RFC 9110 §10.2.3).
package enum RetryAfter {
    /// A provider that asks for more is asked again after this.
    package static let longest: Duration = .seconds(3600)

    /// Reads seconds or an HTTP date. Nil for anything else; a date that is past is zero.
    package static func parse(_ text: String, now: Timestamp) -> Duration? {
        if !text.isEmpty, text.utf8.allSatisfy(\.isDigit) {
            return min(.seconds(Int64(text) ?? .max), longest)
        }
        guard let date = HTTPDate.parse(text) else { return nil }
        return min(max(now.duration(to: date), .zero), longest)
    }
}

/// The fixed form of an HTTP date (RFC 9110 §5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`. The obsolete forms are not read.
package enum HTTPDate {
    private static let months = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ]

    package static func parse(_ text: String) -> Timestamp? {
        let parts = text.split(separator: " ", omittingEmptySubsequences: false).map(String.init)
        guard parts.count == 6, parts[0].utf8.count == 4, parts[0].hasSuffix(","), parts[4].utf8.count == 8,
            parts[5] == "GMT",
            let month = months.firstIndex(of: parts[2])
        else { return nil }
        let number = month < 9 ? "0\(month + 1)" : "\(month + 1)"
        return Timestamp(rfc3339: "\(parts[3])-\(number)-\(parts[1])T\(parts[4])Z")
    }
}
