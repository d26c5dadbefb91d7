package import OAuth
import Reactor

/// Times as people type them, and as files of tokens have them.
extension Timestamp {
    /// The time of this machine's clock, in whole seconds.
    static var thisSecond: Timestamp { Timestamp(seconds: WallClock.milliseconds / 1000) }

    /// Reads what a person types, in whole seconds: RFC 3339; `2026-11-21 09:00` and `2026-11-21`, in UTC; and so long ago, or ahead:
    /// `90s`, `30m`, `2h`, `7d`. Nil for anything else.
    init?(typed text: String, now: Timestamp, isAhead: Bool = false) {
        if text.utf8.count <= 8, let unit = text.last, !unit.isNumber, let span = TimeSpan.seconds(text) {
            self.init(seconds: now.seconds + (isAhead ? span : -span))
            return
        }
        var bytes = Array(text.utf8)
        if bytes.count == 10 { bytes += Array("T00:00:00Z".utf8) }
        if bytes.count >= 16, bytes.count == 16 || bytes[16] != UInt8(ascii: ":") {
            bytes.insert(contentsOf: ":00".utf8, at: 16)
        }
        guard let time = Timestamp(written: bytes) else { return nil }
        self.init(seconds: time.seconds)
    }

    /// Reads RFC 3339; with `UTC` at the end, as botocore writes it; without an offset, as google-auth writes it, which means UTC;
    /// and with a space in place of the `T`.
    init?(ofFile text: String) {
        guard text.utf8.count <= 64 else { return nil }
        var bytes = Array(text.utf8)
        if text.hasSuffix("UTC") {
            bytes.removeLast(text.hasSuffix(" UTC") ? 4 : 3)
            bytes.append(UInt8(ascii: "Z"))
        }
        self.init(written: bytes)
    }

    /// Seconds since 1970, and milliseconds where the number would be a time after the year 9999.
    init?(ofFile number: Double) {
        let milliseconds = number.magnitude >= 253_402_300_800 ? number : number * 1000
        guard milliseconds.isFinite, (0...Double(Self.latest.milliseconds)).contains(milliseconds) else { return nil }
        self.init(milliseconds: Int64(milliseconds))
    }

    /// RFC 3339, also with a space in place of the `T`, and without an offset, which means UTC.
    private init?(written bytes: [UInt8]) {
        guard bytes.count >= 19 else { return nil }
        var bytes = bytes
        if bytes[10] == UInt8(ascii: " ") { bytes[10] = UInt8(ascii: "T") }
        if !bytes[19...].contains(where: { "Zz+-".utf8.contains($0) }) { bytes.append(UInt8(ascii: "Z")) }
        self.init(rfc3339: String(decoding: bytes, as: UTF8.self))
    }

    /// Whether it stands for no time at all: Go writes a time in the year 1 for none.
    var isNoneOfFile: Bool { milliseconds < -62_104_060_800_000 }
}

/// A length of time as people type it.
enum TimeSpan {
    private static let units: [Character: Int64] = ["s": 1, "m": 60, "h": 3600, "d": 86_400]

    /// The seconds of `3600`, `90s`, `30m`, `12h` or `90d`; nil for anything else, and for a number over 10^9.
    static func seconds(_ text: String) -> Int64? {
        let unit = text.last.flatMap { units[$0] }
        let digits = unit == nil ? text[...] : text.dropLast()
        guard digits.allSatisfy({ "0"..."9" ~= $0 }), let number = Int64(digits), number <= 1_000_000_000 else {
            return nil
        }
        return number * (unit ?? 1)
    }
}

extension Invocation {
    /// An option that must be a time.
    /// - Parameter isAhead: whether `2h` is a time in two hours, and not two hours ago.
    /// - Throws: `usage`.
    package func time(_ option: String, isAhead: Bool = false) throws(CommandError) -> Timestamp? {
        guard let text = self[option] else { return nil }
        guard let time = Timestamp(typed: text, now: .thisSecond, isAhead: isAhead) else {
            throw wrong(
                "--\(option) must be a time such as 2026-11-21T09:00:00Z, or how \(isAhead ? "far ahead it is" : "long ago it was"), "
                    + "such as 90s, 30m, 2h or 7d; not \(text)")
        }
        return time
    }

    /// An option that must be a length of time, in seconds. Nil where the option is not there.
    /// - Throws: `usage`.
    func span(_ option: String) throws(CommandError) -> Int64? {
        guard let text = self[option] else { return nil }
        guard let seconds = TimeSpan.seconds(text) else {
            throw wrong("--\(option) must be a time such as 90d, 12h, 30m or 3600, not \(text)")
        }
        return seconds
    }
}
