internal import HTTPCodec
internal import Reactor

/// A time as a person types it and as the broker writes it, in whole seconds.
struct CommandTime: Comparable, Sendable {
    /// Since 1970-01-01T00:00:00Z.
    let seconds: Int64

    init(seconds: Int64) { self.seconds = seconds }

    /// Reads `2026-11-21T09:00:00Z`, with another offset or fractions as well; `2026-11-21 09:00` and `2026-11-21`, in UTC; and so
    /// long ago: `90s`, `30m`, `2h`, `7d`. Nil for anything else.
    init?(_ text: String, now: CommandTime) {
        let bytes = Array(text.utf8)
        guard let time = Self.ago(bytes, now) ?? Self.date(bytes) else { return nil }
        self = time
    }

    static func < (left: CommandTime, right: CommandTime) -> Bool { left.seconds < right.seconds }

    static var now: CommandTime { CommandTime(seconds: WallClock.milliseconds / 1000) }

    /// `2026-11-21T09:00:00Z`.
    var text: String {
        let (days, second) = GregorianDate.floorDivide(seconds, by: 86_400)
        let date = GregorianDate(daysSince1970: days)
        let numbers = [date.month, date.day, second / 3600, second / 60 % 60, second % 60].map(Self.twoDigits)
        let year = String(repeating: "0", count: max(0, 4 - String(date.year).count)) + String(date.year)
        return "\(year)-\(numbers[0])-\(numbers[1])T\(numbers[2]):\(numbers[3]):\(numbers[4])Z"
    }

    private static func twoDigits(_ number: Int64) -> String { number < 10 ? "0\(number)" : "\(number)" }

    private static func ago(_ bytes: [UInt8], _ now: CommandTime) -> CommandTime? {
        let units: [UInt8: Int64] = [
            UInt8(ascii: "s"): 1, UInt8(ascii: "m"): 60, UInt8(ascii: "h"): 3600, UInt8(ascii: "d"): 86_400,
        ]
        guard (2...8).contains(bytes.count), let unit = bytes.last.flatMap({ units[$0] }),
            let number = number(bytes, 0..<bytes.count - 1)
        else { return nil }
        return CommandTime(seconds: now.seconds - number * unit)
    }

    private static func number(_ bytes: [UInt8], _ range: Range<Int>) -> Int64? {
        guard range.upperBound <= bytes.count, bytes[range].allSatisfy({ $0 >= 0x30 && $0 <= 0x39 }) else { return nil }
        return bytes[range].reduce(0) { $0 * 10 + Int64($1 - 0x30) }
    }

    private static func date(_ bytes: [UInt8]) -> CommandTime? {
        func has(_ characters: String, at index: Int) -> Bool {
            index < bytes.count && characters.utf8.contains(bytes[index])
        }
        guard let year = number(bytes, 0..<4), has("-", at: 4), let month = number(bytes, 5..<7), has("-", at: 7),
            let day = number(bytes, 8..<10), (1...12).contains(month)
        else { return nil }
        let date = GregorianDate(year: year, month: month, day: day)
        guard GregorianDate(daysSince1970: date.daysSince1970) == date else { return nil }
        let midnight = date.daysSince1970 * 86_400
        if bytes.count == 10 { return CommandTime(seconds: midnight) }
        guard has("Tt ", at: 10), let hour = number(bytes, 11..<13), has(":", at: 13),
            let minute = number(bytes, 14..<16), hour < 24, minute < 60
        else { return nil }
        var index = 16
        var second: Int64 = 0
        if has(":", at: index) {
            guard let number = number(bytes, 17..<19), number < 60 else { return nil }
            (second, index) = (number, 19)
        }
        if has(".", at: index) {
            let fraction = bytes[(index + 1)...].prefix { $0 >= 0x30 && $0 <= 0x39 }
            guard !fraction.isEmpty else { return nil }
            index += 1 + fraction.count
        }
        guard let offset = offset(Array(bytes[index...])) else { return nil }
        return CommandTime(seconds: midnight + hour * 3600 + minute * 60 + second - offset)
    }

    /// The seconds that a zone is before UTC: of `Z`, `+01:00`, and nothing, which is UTC.
    private static func offset(_ bytes: [UInt8]) -> Int64? {
        if bytes.isEmpty || bytes == [UInt8(ascii: "Z")] || bytes == [UInt8(ascii: "z")] { return 0 }
        guard bytes.count == 6, let hours = number(bytes, 1..<3), bytes[3] == UInt8(ascii: ":"),
            let minutes = number(bytes, 4..<6), hours < 24, minutes < 60
        else { return nil }
        switch bytes[0] {
        case UInt8(ascii: "+"): return hours * 3600 + minutes * 60
        case UInt8(ascii: "-"): return -(hours * 3600 + minutes * 60)
        default: return nil
        }
    }
}

extension Invocation {
    /// An option that must be a time.
    /// - Throws: `usage`.
    func time(_ option: String) throws(CommandError) -> CommandTime? {
        guard let text = self[option] else { return nil }
        guard let time = CommandTime(text, now: .now) else {
            throw wrong(
                "--\(option) must be a time such as 2026-11-21T09:00:00Z, or how long ago it was, such as 90s, 30m, 2h or "
                    + "7d; not \(text)")
        }
        return time
    }
}
