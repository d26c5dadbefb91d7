import OAuth
import Testing

@Suite struct Timestamps {
    // Seconds from `date -u -d … +%s`.
    static let instants: [(String, Int64)] = [
        ("1970-01-01T00:00:00Z", 0), ("1970-01-01T00:00:01Z", 1), ("1969-12-31T23:59:59Z", -1),
        ("1999-12-31T23:59:59Z", 946_684_799), ("2000-01-01T00:00:00Z", 946_684_800),
        ("2000-02-28T23:59:59Z", 951_782_399), ("2000-02-29T00:00:00Z", 951_782_400),
        ("2000-02-29T23:59:59Z", 951_868_799), ("2000-03-01T00:00:00Z", 951_868_800),
        ("1900-02-28T23:59:59Z", -2_203_891_201), ("1900-03-01T00:00:00Z", -2_203_891_200),
        ("2024-02-29T12:00:00Z", 1_709_208_000), ("2026-11-21T09:00:00Z", 1_795_251_600),
        ("2038-01-19T03:14:07Z", 2_147_483_647), ("2038-01-19T03:14:08Z", 2_147_483_648),
        ("2100-02-28T23:59:59Z", 4_107_542_399), ("2100-03-01T00:00:00Z", 4_107_542_400),
        ("2026-12-31T23:59:59Z", 1_798_761_599), ("2027-01-01T00:00:00Z", 1_798_761_600),
        ("0001-01-01T00:00:00Z", -62_135_596_800), ("0000-01-01T00:00:00Z", -62_167_219_200),
        ("9999-12-31T23:59:59Z", 253_402_300_799),
    ]

    @Test(arguments: instants)
    func `what is written is read again`(text: String, seconds: Int64) {
        #expect(Timestamp(rfc3339: text)?.milliseconds == seconds * 1000)
        #expect(Timestamp(seconds: seconds).description == text)
    }

    @Test func `years that RFC 3339 cannot express are written in full`() {
        #expect(Timestamp(seconds: 253_402_300_800).description == "10000-01-01T00:00:00Z")
        #expect(Timestamp(seconds: -62_167_219_201).description == "-1-12-31T23:59:59Z")
        // The ends of the range are written too and do not trap.
        for end in [Int64.min, .max] { #expect(Timestamp(milliseconds: end).description.hasSuffix("Z")) }
    }

    @Test func `the first and last day of every month of 800 years are read and written`() {
        var seconds: Int64 = -11_676_096_000
        for year in 1600..<2400 {
            let isLeap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
            for (month, count) in [31, isLeap ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31].enumerated() {
                let prefix = "\(year)-" + (month < 9 ? "0" : "") + "\(month + 1)-"
                let last = seconds + Int64(count - 1) * 86_400
                #expect(Timestamp(seconds: seconds).description == prefix + "01T00:00:00Z")
                #expect(Timestamp(rfc3339: prefix + "01T00:00:00Z")?.seconds == seconds)
                #expect(Timestamp(seconds: last).description == prefix + "\(count)T00:00:00Z")
                #expect(Timestamp(rfc3339: prefix + "\(count)T00:00:00Z")?.seconds == last)
                #expect(Timestamp(rfc3339: prefix + "\(count + 1)T00:00:00Z") == nil)
                seconds += Int64(count) * 86_400
            }
        }
        #expect(Timestamp(seconds: seconds).description == "2400-01-01T00:00:00Z")
    }

    @Test(
        arguments: [
            ("2026-11-21T09:00:00+00:00", 1_795_251_600_000), ("2026-11-21T09:00:00-00:00", 1_795_251_600_000),
            ("2026-11-21T10:00:00+01:00", 1_795_251_600_000), ("2026-11-21T03:30:00-05:30", 1_795_251_600_000),
            ("2026-11-22T08:59:00+23:59", 1_795_251_600_000), ("2026-11-20T09:01:00-23:59", 1_795_251_600_000),
            ("2027-01-01T00:30:00+01:00", 1_798_759_800_000), ("2026-12-31T23:30:00-01:00", 1_798_763_400_000),
            ("2024-02-29T23:00:00-01:00", 1_709_251_200_000), ("2026-11-21t09:00:00z", 1_795_251_600_000),
            ("2026-11-21T09:00:00.0Z", 1_795_251_600_000), ("2026-11-21T09:00:00.5Z", 1_795_251_600_500),
            ("2026-11-21T09:00:00.05Z", 1_795_251_600_050), ("2026-11-21T09:00:00.005Z", 1_795_251_600_005),
            ("2026-11-21T09:00:00.0005Z", 1_795_251_600_000),
            ("2026-11-21T09:00:00.9999999999999999999Z", 1_795_251_600_999),
            ("2026-11-21T10:00:00.123+01:00", 1_795_251_600_123), ("1969-12-31T23:59:59.999Z", -1),
            ("1969-12-31T23:59:59.001Z", -999),
        ] as [(String, Int64)])
    func `any offset and any fraction is read`(text: String, milliseconds: Int64) {
        #expect(Timestamp(rfc3339: text)?.milliseconds == milliseconds)
    }

    @Test(arguments: [
        "", "2026", "2026-11-21", "2026-11-21T09:00:00", "2026-11-21T09:00Z", "2026-11-21 09:00:00Z",
        "2026-11-21T09:00:00 Z", " 2026-11-21T09:00:00Z", "2026-11-21T09:00:00Z ", "2026-11-21T09:00:00ZZ",
        "2026-00-21T09:00:00Z", "2026-13-21T09:00:00Z", "2026-11-00T09:00:00Z", "2026-11-31T09:00:00Z",
        "2026-02-29T00:00:00Z", "2024-02-30T00:00:00Z", "1900-02-29T00:00:00Z", "2100-02-29T00:00:00Z",
        "2026-11-21T24:00:00Z", "2026-11-21T09:60:00Z", "2026-11-21T09:00:60Z", "2016-12-31T23:59:60Z",
        "2026-11-21T09:00:00.Z", "2026-11-21T09:00:00,5Z", "2026-11-21T09:00:00.5", "2026-11-21T09:00:00.-5Z",
        "2026-11-21T09:00:00+0100", "2026-11-21T09:00:00+01", "2026-11-21T09:00:00+01:0", "2026-11-21T09:00:00+24:00",
        "2026-11-21T09:00:00+00:60", "2026-11-21T09:00:00+01:00Z", "2026-11-21T09:00:00+1:00",
        "2026-11-21T09:00:00++1:00", "26-11-21T09:00:00Z", "+2026-11-21T09:00:00Z", "12026-11-21T09:00:00Z",
        "2026-1-21T09:00:00Z", "2026-11-2T09:00:00Z", "2026/11/21T09:00:00Z", "20261121T090000Z",
        "2026-W47-6T09:00:00Z",
        "-026-11-21T09:00:00Z", "2026-11-21T-9:00:00Z", "\u{662}026-11-21T09:00:00Z", "1795251600",
        "Sat, 21 Nov 2026 09:00:00 GMT",
    ])
    func `anything else is refused`(text: String) {
        #expect(Timestamp(rfc3339: text) == nil)
    }

    @Test(arguments: [
        ("9999-12-31T23:59:59Z", true), ("9999-12-31T23:59:59.999Z", true), ("9999-12-31T23:59:59-00:01", false),
        ("9999-12-31T23:59:59+00:01", true), ("0000-01-01T00:00:00Z", true), ("0000-01-01T00:00:00+00:01", false),
        ("0000-01-01T00:00:00-00:01", true),
    ])
    func `a time whose year in UTC does not have four digits is refused`(text: String, isRead: Bool) {
        #expect((Timestamp(rfc3339: text) != nil) == isRead)
    }

    @Test(
        arguments: [
            (0, 0), (1, 0), (999, 0), (1000, 1), (1001, 1), (-1, -1), (-999, -1), (-1000, -1), (-1001, -2),
            (.max, 9_223_372_036_854_775), (.min, -9_223_372_036_854_776),
        ] as [(Int64, Int64)])
    func `seconds are rounded down`(milliseconds: Int64, seconds: Int64) {
        #expect(Timestamp(milliseconds: milliseconds).seconds == seconds)
    }

    @Test func `milliseconds are omitted when a time is written`() {
        #expect(Timestamp(milliseconds: 1_795_251_600_999).description == "2026-11-21T09:00:00Z")
        #expect(Timestamp(milliseconds: -1).description == "1969-12-31T23:59:59Z")
    }

    @Test(
        arguments: [
            (Duration.zero, 1_000_000), (.milliseconds(1), 1_000_001), (.milliseconds(-1), 999_999),
            (.seconds(60), 1_060_000), (.seconds(-60), 940_000), (.microseconds(999), 1_000_000),
            (.milliseconds(-500), 999_500),
        ] as [(Duration, Int64)])
    func `advances by whole milliseconds`(duration: Duration, milliseconds: Int64) {
        #expect(Timestamp(seconds: 1000).advanced(by: duration).milliseconds == milliseconds)
    }

    @Test(arguments: [
        Duration.seconds(253_402_300_799), .seconds(Int64.max), .seconds(9_223_372_036_854_775),
        .seconds(9_223_372_036_854_776), .seconds(9_223_372_036_854_775) + .milliseconds(999),
    ])
    func `never advances past the year 9999`(duration: Duration) {
        #expect(Sample.now.advanced(by: duration) == .latest)
        #expect(Timestamp.latest.advanced(by: duration) == .latest)
    }

    @Test(arguments: [
        Duration.seconds(Int64.min), .seconds(-9_223_372_036_854_776),
        .seconds(-9_223_372_036_854_775)
            - .milliseconds(999),
    ])
    func `going back saturates at the smallest value`(duration: Duration) {
        let earliest = Timestamp(seconds: -1).advanced(by: duration)
        #expect(earliest == Timestamp(milliseconds: .min))
    }

    @Test func `the time between two timestamps is exact, however far they are apart`() {
        #expect(Timestamp(milliseconds: 1).duration(to: Timestamp(milliseconds: 61)) == .milliseconds(60))
        #expect(Timestamp(milliseconds: 61).duration(to: Timestamp(milliseconds: 1)) == .milliseconds(-60))
        let far = Timestamp(milliseconds: .min).duration(to: Timestamp(milliseconds: .max))
        #expect(far == .milliseconds(Int64.max) - .milliseconds(Int64.min))
        #expect(far > .zero)
    }

    @Test func `an earlier time is less`() {
        #expect(Timestamp(milliseconds: 1) < Timestamp(milliseconds: 2))
        #expect(!(Timestamp(milliseconds: 2) < Timestamp(milliseconds: 2)))
        #expect(Timestamp.latest.description == "9999-12-31T23:59:59Z")
    }

    @Test(arguments: [Duration.zero, .seconds(1), .seconds(-300), .seconds(1 << 62), .seconds(-(1 << 62))])
    func `never is later than every time and does not change when advanced`(duration: Duration) {
        #expect(Timestamp.never > .latest)
        #expect(Timestamp.never.advanced(by: duration) == .never)
        #expect(Timestamp.latest.advanced(by: duration) != .never)
        #expect(TokenLifetime.unlimited.end(from: .latest) == .never)
        #expect(Timestamp(seconds: 0).duration(to: .never) > .seconds(Timestamp.latest.seconds))
    }
}
