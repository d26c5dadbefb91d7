internal import HTTPCodec

/// A time as files of tokens have it: milliseconds since 1970-01-01T00:00:00Z.
struct FileTime: Sendable, Equatable, Comparable, CustomStringConvertible {
    let milliseconds: Int64

    init(milliseconds: Int64) { self.milliseconds = milliseconds }

    static func < (left: FileTime, right: FileTime) -> Bool { left.milliseconds < right.milliseconds }

    /// The first millisecond of the year 2. Go writes a time in the year 1 for none.
    private static let beginning: Int64 = -62_104_060_800_000
    /// The last second of the year 9999.
    private static let latest: Int64 = 253_402_300_799_000

    /// Whether it stands for no time at all.
    var isNone: Bool { milliseconds < Self.beginning }

    /// Seconds since 1970, and milliseconds where the number would be a time after the year 9999.
    init?(number: Double) {
        let milliseconds = number.magnitude >= 253_402_300_800 ? number : number * 1000
        guard milliseconds.isFinite, (0...Double(Self.latest)).contains(milliseconds) else { return nil }
        self.milliseconds = Int64(milliseconds)
    }

    /// RFC 3339 with any offset and fraction; with `UTC` at the end, as botocore writes it; without an offset, as google-auth
    /// writes it, which means UTC; and with a space in place of the `T`.
    init?(_ text: String) {
        guard text.utf8.count <= 64 else { return nil }
        let bytes = Array(text.utf8)
        func number(_ start: Int, _ count: Int) -> Int64? {
            guard start + count <= bytes.count else { return nil }
            var value: Int64 = 0
            for byte in bytes[start..<start + count] {
                guard (0x30...0x39).contains(byte) else { return nil }
                value = value * 10 + Int64(byte - 0x30)
            }
            return value
        }
        func has(_ characters: String, at index: Int) -> Bool {
            index < bytes.count && characters.utf8.contains(bytes[index])
        }
        guard let year = number(0, 4), has("-", at: 4), let month = number(5, 2), has("-", at: 7),
            let day = number(8, 2), has("Tt ", at: 10), let hour = number(11, 2), has(":", at: 13),
            let minute = number(14, 2), has(":", at: 16), let second = number(17, 2), (1...12).contains(month),
            hour < 24, minute < 60, second < 60
        else { return nil }
        let date = GregorianDate(year: year, month: month, day: day)
        guard GregorianDate(daysSince1970: date.daysSince1970) == date else { return nil }
        var index = 19
        var fraction: Int64 = 0
        if has(".", at: index) {
            let start = index + 1
            index = start
            while has("0123456789", at: index) {
                if index - start < 3 { fraction = fraction * 10 + Int64(bytes[index] - 0x30) }
                index += 1
            }
            if index == start { return nil }
            for _ in min(index - start, 3)..<3 { fraction *= 10 }
        }
        var offset: Int64 = 0
        switch String(decoding: bytes[index...], as: UTF8.self) {
        case "", "Z", "z", "UTC", " UTC": break
        default:
            guard has("+-", at: index), let hours = number(index + 1, 2), has(":", at: index + 3),
                let minutes = number(index + 4, 2), index + 6 == bytes.count, hours < 24, minutes < 60
            else { return nil }
            offset = (hours * 60 + minutes) * 60 * (has("-", at: index) ? -1 : 1)
        }
        let seconds = date.daysSince1970 * 86_400 + hour * 3600 + minute * 60 + second - offset
        guard seconds * 1000 <= Self.latest else { return nil }
        milliseconds = seconds * 1000 + fraction
    }

    /// RFC 3339 in UTC, whole seconds.
    var description: String {
        let seconds = GregorianDate.floorDivide(milliseconds, by: 1000).quotient
        let (days, ofDay) = GregorianDate.floorDivide(seconds, by: 86_400)
        let date = GregorianDate(daysSince1970: days)
        func padded(_ number: Int64, _ count: Int) -> String {
            let digits = String(number)
            return String(repeating: "0", count: max(0, count - digits.count)) + digits
        }
        return "\(padded(date.year, 4))-\(padded(date.month, 2))-\(padded(date.day, 2))T"
            + "\(padded(ofDay / 3600, 2)):\(padded(ofDay / 60 % 60, 2)):\(padded(ofDay % 60, 2))Z"
    }
}
