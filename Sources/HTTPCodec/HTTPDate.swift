/// `IMF-fixdate`, the only form of a date that may be sent (RFC 9110 §5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`.
package enum HTTPDate {
    /// The 29 bytes for a time between the years 1970 and 9999; times outside are moved to the nearer end, since the
    /// form has four digits for the year.
    package static func format(secondsSince1970 seconds: Int64) -> [UInt8] {
        let seconds = min(max(seconds, 0), 253_402_300_799)
        let (days, secondOfDay) = (Int(seconds / 86_400), Int(seconds % 86_400))
        let date = civil(daysSince1970: days)
        let weekday = (days + 4) % 7  // 1 January 1970 was a Thursday.
        var text: [UInt8] = []
        text.reserveCapacity(29)
        text.append(contentsOf: "SunMonTueWedThuFriSat".utf8.dropFirst(3 * weekday).prefix(3))
        text.append(contentsOf: ", ".utf8)
        append(date.day, digits: 2, to: &text)
        text.append(UInt8(ascii: " "))
        text.append(contentsOf: "JanFebMarAprMayJunJulAugSepOctNovDec".utf8.dropFirst(3 * (date.month - 1)).prefix(3))
        text.append(UInt8(ascii: " "))
        append(date.year, digits: 4, to: &text)
        text.append(UInt8(ascii: " "))
        append(secondOfDay / 3600, digits: 2, to: &text)
        text.append(UInt8(ascii: ":"))
        append(secondOfDay / 60 % 60, digits: 2, to: &text)
        text.append(UInt8(ascii: ":"))
        append(secondOfDay % 60, digits: 2, to: &text)
        text.append(contentsOf: " GMT".utf8)
        return text
    }

    /// The Gregorian date of a day, by eras of 400 years that begin on 1 March, so that the leap day comes last.
    private static func civil(daysSince1970: Int) -> (year: Int, month: Int, day: Int) {
        let shifted = daysSince1970 + 719_468
        let (era, dayOfEra) = (shifted / 146_097, shifted % 146_097)
        let yearOfEra = (dayOfEra - dayOfEra / 1460 + dayOfEra / 36_524 - dayOfEra / 146_096) / 365
        let dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
        let marchMonth = (5 * dayOfYear + 2) / 153
        let month = marchMonth < 10 ? marchMonth + 3 : marchMonth - 9
        return (yearOfEra + era * 400 + (month <= 2 ? 1 : 0), month, dayOfYear - (153 * marchMonth + 2) / 5 + 1)
    }

    private static func append(_ value: Int, digits: Int, to text: inout [UInt8]) {
        var divisor = 1
        for _ in 1..<digits { divisor *= 10 }
        while divisor > 0 {
            text.append(UInt8(ascii: "0") + UInt8(value / divisor % 10))
            divisor /= 10
        }
    }
}
