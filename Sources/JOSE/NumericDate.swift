package import JSON

/// A point in time as JWTs write it (RFC 7519 §2): seconds since 1970-01-01T00:00:00Z without leap seconds, with a
/// fraction if need be.
package struct NumericDate: Comparable, Hashable, Sendable {
    /// What has passed since 1970.
    package let sinceEpoch: Duration

    /// The seconds that are read: from 1970 to the end of the year 9999.
    package static let seconds: ClosedRange<Int64> = 0...253_402_300_799

    package init(sinceEpoch: Duration) { self.sinceEpoch = sinceEpoch }

    package init(seconds: Int64) { self.init(sinceEpoch: .seconds(seconds)) }

    /// Nil for other values than numbers from `seconds`.
    package init?(_ value: JSONValue) {
        switch value {
        case .integer(let seconds) where Self.seconds.contains(seconds): self.init(seconds: seconds)
        case .number(let seconds) where seconds >= 0 && seconds < Double(Self.seconds.upperBound):
            self.init(sinceEpoch: .seconds(seconds))
        default: return nil
        }
    }

    /// Whole seconds since 1970, rounded down.
    package var wholeSeconds: Int64 {
        let (seconds, attoseconds) = sinceEpoch.components
        return attoseconds < 0 ? seconds - 1 : seconds
    }

    package func advanced(by span: Duration) -> NumericDate { NumericDate(sinceEpoch: sinceEpoch + span) }

    package func duration(to later: NumericDate) -> Duration { later.sinceEpoch - sinceEpoch }

    package static func < (left: NumericDate, right: NumericDate) -> Bool { left.sinceEpoch < right.sinceEpoch }
}
