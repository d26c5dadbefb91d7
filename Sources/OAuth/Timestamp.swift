import HTTPCodec

/// A point in time: whole milliseconds since 1970-01-01T00:00:00Z, without leap seconds.
@usableFromInline package struct Timestamp: Comparable, Hashable, Sendable, CustomStringConvertible {
    @usableFromInline package let milliseconds: Int64

    @inlinable package init(milliseconds: Int64) { self.milliseconds = milliseconds }

    package init(seconds: Int64) { self.init(milliseconds: seconds * 1000) }

    /// 9999-12-31T23:59:59Z, the last second that RFC 3339 can express.
    package static let latest = Timestamp(seconds: 253_402_300_799)

    /// Later than every other time: the expiry of a token that does not expire. It is never written as a time.
    package static let never = Timestamp(milliseconds: .max)

    /// The time of a number since 1970 that a provider names, from 1970 on and `latest` at most.
    ///
    /// Most numbers tell their unit: one of 10^12 or more would be a time in seconds long after the year 9999, and is one in
    /// milliseconds since 2001; one of less than 10^11 would be a time in milliseconds before 1974, and is one in seconds. So a
    /// provider that tells lifetimes in one unit and times in the other is read as it is meant.
    /// - Parameter isInMilliseconds: the unit of the numbers between.
    init(since1970 number: Int64, inMilliseconds isInMilliseconds: Bool = false) {
        let unit: Int64 = number >= (isInMilliseconds ? 100_000_000_000 : 1_000_000_000_000) ? 1 : 1000
        self.init(milliseconds: min(max(number, 0), Self.latest.milliseconds / unit) * unit)
    }

    /// Whole seconds since 1970, rounded down.
    package var seconds: Int64 { GregorianDate.floorDivide(milliseconds, by: 1000).quotient }

    /// The time `duration` later, limited to `latest` and to what 64 bits can count. `never` stays `never`.
    package func advanced(by duration: Duration) -> Timestamp {
        if self == .never { return self }
        let (seconds, attoseconds) = duration.components
        let whole = seconds.multipliedReportingOverflow(by: 1000)
        let span = whole.partialValue.addingReportingOverflow(attoseconds / 1_000_000_000_000_000)
        let sum = milliseconds.addingReportingOverflow(span.partialValue)
        if whole.overflow || span.overflow || sum.overflow {
            return duration > .zero ? .latest : Timestamp(milliseconds: .min)
        }
        return min(Timestamp(milliseconds: sum.partialValue), .latest)
    }

    package func duration(to later: Timestamp) -> Duration {
        .milliseconds(later.milliseconds) - .milliseconds(milliseconds)
    }

    @inlinable package static func < (left: Timestamp, right: Timestamp) -> Bool {
        left.milliseconds < right.milliseconds
    }

    /// RFC 3339 in UTC, whole seconds: `2026-11-21T09:00:00Z`.
    @usableFromInline package var description: String {
        let (days, secondOfDay) = GregorianDate.floorDivide(seconds, by: 86_400)
        let date = GregorianDate(daysSince1970: days)
        // Written byte by byte, since every event and every log line contains a time or two.
        var text: [UInt8] = []
        text.reserveCapacity(20)
        if (0...9999).contains(date.year) {
            Self.append(date.year / 100, to: &text)
            Self.append(date.year % 100, to: &text)
        } else {
            // RFC 3339 cannot express this year.
            text.append(contentsOf: String(date.year).utf8)
        }
        text.append(UInt8(ascii: "-"))
        Self.append(date.month, to: &text)
        text.append(UInt8(ascii: "-"))
        Self.append(date.day, to: &text)
        text.append(UInt8(ascii: "T"))
        Self.append(secondOfDay / 3600, to: &text)
        text.append(UInt8(ascii: ":"))
        Self.append(secondOfDay / 60 % 60, to: &text)
        text.append(UInt8(ascii: ":"))
        Self.append(secondOfDay % 60, to: &text)
        text.append(UInt8(ascii: "Z"))
        return String(decoding: text, as: UTF8.self)
    }

    /// Appends two digits.
    private static func append(_ value: Int64, to text: inout [UInt8]) {
        text.append(UInt8(ascii: "0") + UInt8(truncatingIfNeeded: value / 10))
        text.append(UInt8(ascii: "0") + UInt8(truncatingIfNeeded: value % 10))
    }

    /// Reads RFC 3339 (§5.6) with any offset; fractions are truncated to milliseconds. Nil for other texts, for leap
    /// seconds, and for times outside the years 0000 to 9999 in UTC, which `description` cannot write.
    package init?(rfc3339 text: String) {
        let bytes = Array(text.utf8)
        func number(_ range: Range<Int>) -> Int64? {
            guard range.upperBound <= bytes.count else { return nil }
            var value: Int64 = 0
            for byte in bytes[range] {
                guard byte >= 0x30, byte <= 0x39 else { return nil }
                value = value * 10 + Int64(byte - 0x30)
            }
            return value
        }
        func has(_ characters: String, at index: Int) -> Bool {
            index < bytes.count && characters.utf8.contains(bytes[index])
        }
        guard let year = number(0..<4), has("-", at: 4), let month = number(5..<7), has("-", at: 7),
            let day = number(8..<10), has("Tt", at: 10), let hour = number(11..<13), has(":", at: 13),
            let minute = number(14..<16), has(":", at: 16), let second = number(17..<19),
            (1...12).contains(month), hour < 24, minute < 60, second < 60
        else { return nil }
        let date = GregorianDate(year: year, month: month, day: day)
        let days = date.daysSince1970
        guard GregorianDate(daysSince1970: days) == date else { return nil }

        var index = 19
        var fraction: Int64 = 0
        if has(".", at: index) {
            let start = index + 1
            index = start
            while index < bytes.count, bytes[index] >= 0x30, bytes[index] <= 0x39 {
                if index - start < 3 { fraction = fraction * 10 + Int64(bytes[index] - 0x30) }
                index += 1
            }
            if index == start { return nil }
            for _ in min(index - start, 3)..<3 { fraction *= 10 }
        }
        var offset: Int64 = 0
        if has("Zz", at: index) {
            index += 1
        } else if has("+-", at: index) {
            guard let hours = number(index + 1..<index + 3), has(":", at: index + 3),
                let minutes = number(index + 4..<index + 6), hours < 24, minutes < 60
            else { return nil }
            offset = (hours * 60 + minutes) * 60 * (has("-", at: index) ? -1 : 1)
            index += 6
        } else {
            return nil
        }
        guard index == bytes.count else { return nil }
        let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset
        guard seconds >= GregorianDate(year: 0, month: 1, day: 1).daysSince1970 * 86_400, seconds <= Self.latest.seconds
        else {
            return nil
        }
        self.init(milliseconds: seconds * 1000 + fraction)
    }
}
