/// `IMF-fixdate`, the only form of a date that may be sent (RFC 9110 §5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`.
package enum HTTPDate {
    /// The 29 bytes for a time in the years 1970 to 9999. Other times are clamped to this range, because the form has
    /// four digits for the year.
    package static func format(secondsSince1970 seconds: Int64) -> [UInt8] {
        let seconds = min(max(seconds, 0), 253_402_300_799)
        let (days, secondOfDay) = (seconds / 86_400, seconds % 86_400)
        let date = GregorianDate(daysSince1970: days)
        let weekday = Int((days + 4) % 7)  // 1 January 1970 was a Thursday.
        var text: [UInt8] = []
        text.reserveCapacity(29)
        text.append(contentsOf: "SunMonTueWedThuFriSat".utf8.dropFirst(3 * weekday).prefix(3))
        text.append(contentsOf: ", ".utf8)
        append(date.day, digits: 2, to: &text)
        text.append(UInt8(ascii: " "))
        text.append(
            contentsOf: "JanFebMarAprMayJunJulAugSepOctNovDec".utf8.dropFirst(3 * Int(date.month - 1)).prefix(3))
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

    private static func append(_ value: Int64, digits: Int, to text: inout [UInt8]) {
        var divisor: Int64 = 1
        for _ in 1..<digits { divisor *= 10 }
        while divisor > 0 {
            text.append(UInt8(ascii: "0") + UInt8(value / divisor % 10))
            divisor /= 10
        }
    }
}
