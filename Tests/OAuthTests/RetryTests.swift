import ExternalText
import HTTPCodec
import OAuth
import Testing

@Suite struct `Backoff schedule` {
    // T10 T57 K24 H091
    @Test(
        arguments: [
            (Int.min, nil), (-1, nil), (0, nil), (1, .milliseconds(500)), (2, .seconds(1)), (3, .seconds(2)),
            (4, .seconds(4)), (5, .seconds(8)), (6, nil), (Int.max, nil),
        ] as [(Int, Duration?)])
    func `five retries, each after twice the previous wait`(retry: Int, wait: Duration?) {
        #expect(BackoffSchedule.standard.wait(before: retry, retryAfter: nil) == wait)
    }

    @Test func `waits 15.5 seconds in all`() {
        let waits = (1...BackoffSchedule.standard.retries).compactMap {
            BackoffSchedule.standard.wait(before: $0, retryAfter: nil)
        }
        #expect(waits.count == 5)
        #expect(waits.reduce(.zero, +) == .milliseconds(15_500))
        #expect(BackoffSchedule.standard.waits == waits)
        #expect(BackoffSchedule.standard.total == .milliseconds(15_500))
        #expect(BackoffSchedule.standard.tries == 6)
    }

    private static func settings(_ change: (inout RetrySettings) -> Void) -> RetrySettings {
        var settings = RetrySettings()
        change(&settings)
        return settings
    }

    @Test(
        arguments: [
            (2, 500, 2, 8000, [500]), (3, 100, 10, 30_000, [100, 1000]), (4, 100, 1, 100, [100, 100, 100]),
            (4, 333, 1.5, 8000, [333, 500, 749]), (5, 1000, 3, 3000, [1000, 3000, 3000, 3000]),
            (10, 10_000, 10, 30_000, [10_000, 30_000, 30_000, 30_000, 30_000, 30_000, 30_000, 30_000, 30_000]),
        ] as [(Int, Int64, Double, Int64, [Int64])])
    func `other settings give other waits`(
        tries: Int, firstPause: Int64, factor: Double, longestPause: Int64, waits: [Int64]
    ) {
        let schedule = BackoffSchedule(
            Self.settings {
                ($0.tries, $0.factor) = (tries, factor)
                ($0.firstPause, $0.longestPause) = (.milliseconds(firstPause), .milliseconds(longestPause))
            })
        #expect(schedule.waits == waits.map { Duration.milliseconds($0) })
        #expect(schedule.wait(before: tries, retryAfter: nil) == nil)
        #expect(schedule.wait(before: tries - 1, retryAfter: nil) == schedule.waits.last)
    }

    @Test func `a tenant's settings replace the preset's, one by one`() {
        let preset = Self.settings { ($0.tries, $0.factor, $0.followsRetryAfter) = (3, 4, false) }
        let tenant = Self.settings { ($0.tries, $0.rateLimitRetries) = (5, 1) }
        let both = Self.settings {
            ($0.tries, $0.factor, $0.followsRetryAfter, $0.rateLimitRetries) = (5, 4, false, 1)
        }
        #expect(preset.replaced(by: tenant) == both)
        #expect(preset.replaced(by: nil) == preset)
        #expect(BackoffSchedule(both).followsRetryAfter == false)
    }

    @Test(
        arguments: [
            (nil, 0, 0, 1, false), (0, 0, 0, 1, false), (1, 0, 0, 30, true), (1, 0, 0, 31, false), (1, 1, 0, 1, false),
            (5, 4, 29, 1, true), (5, 4, 29, 2, false), (5, 5, 0, 1, false),
        ] as [(Int?, Int, Int, Int, Bool)])
    func `a limit of rate is waited for as often as allowed, for half a minute in all`(
        allowed: Int?, count: Int, waited: Int, wait: Int, waits: Bool
    ) {
        let schedule = BackoffSchedule(Self.settings { $0.rateLimitRetries = allowed })
        #expect(schedule.waits(.seconds(wait), afterRateLimit: count, waited: .seconds(waited)) == waits)
    }

    @Test(
        arguments: [
            (1, .seconds(-1), .milliseconds(500)), (1, .zero, .milliseconds(500)),
            (1, .milliseconds(499), .milliseconds(500)), (1, .milliseconds(500), .milliseconds(500)),
            (1, .milliseconds(501), .milliseconds(501)), (1, .seconds(1), .seconds(1)),
            (3, .milliseconds(1999), .seconds(2)), (3, .seconds(2), .seconds(2)),
            (3, .milliseconds(2001), .milliseconds(2001)), (5, .milliseconds(7999), .seconds(8)),
            (5, .seconds(8), .seconds(8)), (5, .seconds(9), .seconds(9)), (1, .seconds(29), .seconds(29)),
            (1, .seconds(30), .seconds(30)), (1, .milliseconds(30_001), nil), (5, .seconds(30), .seconds(30)),
            (5, .seconds(31), nil), (2, .seconds(3600), nil), (0, .seconds(1), nil), (6, .seconds(1), nil),
        ] as [(Int, Duration, Duration?)])
    func `a longer Retry-After is used, up to half a minute`(retry: Int, retryAfter: Duration, wait: Duration?) {
        #expect(BackoffSchedule.standard.wait(before: retry, retryAfter: retryAfter) == wait)
    }
}

@Suite struct `Retry-After` {
    // H092
    @Test(
        arguments: [
            ("0", .zero), ("1", .seconds(1)), ("5", .seconds(5)), ("007", .seconds(7)), ("3599", .seconds(3599)),
            ("3600", .seconds(3600)), ("3601", .seconds(3600)), ("1000000000", .seconds(3600)),
            ("9223372036854775807", .seconds(3600)), ("9223372036854775808", .seconds(3600)),
            ("99999999999999999999999999999999", .seconds(3600)),
        ] as [(String, Duration)])
    func `seconds are read and bounded to an hour`(text: String, duration: Duration) {
        #expect(RetryAfter.parse(WireText(text), status: 429, now: Sample.now) == duration)
    }

    // H092
    @Test(
        arguments: [
            ("Sat, 21 Nov 2026 09:00:00 GMT", .zero), ("Sat, 21 Nov 2026 09:00:01 GMT", .seconds(1)),
            ("Sat, 21 Nov 2026 08:59:59 GMT", .zero), ("Sun, 06 Nov 1994 08:49:37 GMT", .zero),
            ("Thu, 01 Jan 1970 00:00:00 GMT", .zero), ("Sat, 21 Nov 2026 09:59:59 GMT", .seconds(3599)),
            ("Sat, 21 Nov 2026 10:00:00 GMT", .seconds(3600)), ("Sat, 21 Nov 2026 10:00:01 GMT", .seconds(3600)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", .seconds(3600)),
        ] as [(String, Duration)])
    func `a date means the time until then, or zero when it is past`(text: String, duration: Duration) {
        #expect(RetryAfter.parse(WireText(text), status: 429, now: Sample.now) == duration)
    }

    /// A 429 is bounded to an hour.
    // H092
    @Test(arguments: [
        ("59", 59), ("60", 60), ("61", 60), ("3600", 60), ("99999999999999999999", 60),
        ("Sat, 21 Nov 2026 09:00:59 GMT", 59), ("Sat, 21 Nov 2026 09:01:00 GMT", 60),
        ("Sat, 21 Nov 2026 09:01:01 GMT", 60),
    ])
    func `counts for a minute at most when the status is not 429`(text: String, seconds: Int64) {
        for status in [301, 400, 428, 430, 500, 503] {
            #expect(RetryAfter.parse(WireText(text), status: status, now: Sample.now) == .seconds(seconds))
        }
    }

    @Test func `the time until a date is counted in milliseconds`() {
        let now = Sample.now.advanced(by: .milliseconds(1))
        #expect(RetryAfter.parse("Sat, 21 Nov 2026 09:00:01 GMT", status: 429, now: now) == .milliseconds(999))
    }

    // H092
    @Test(arguments: [
        "", " ", "-1", "+5", "5.5", "1e9", "0x10", "5s", " 5", "5 ", "5, 6", "soon", "\u{665}", "2026-11-21T09:00:05Z",
        "Sat, 21 Nov 2026 09:00:05", "NaN", "infinity",
    ])
    func `any other text counts as absent`(text: String) {
        #expect(RetryAfter.parse(WireText(text), status: 429, now: Sample.now) == nil)
    }
}

@Suite struct `HTTP date` {
    @Test(arguments: [
        ("Sun, 06 Nov 1994 08:49:37 GMT", "1994-11-06T08:49:37Z"),
        ("Sat, 01 Jan 2000 00:00:00 GMT", "2000-01-01T00:00:00Z"),
        ("Tue, 29 Feb 2000 23:59:59 GMT", "2000-02-29T23:59:59Z"),
        ("Sun, 01 Mar 2026 12:30:45 GMT", "2026-03-01T12:30:45Z"),
        ("Wed, 01 Apr 2026 12:30:45 GMT", "2026-04-01T12:30:45Z"),
        ("Fri, 01 May 2026 12:30:45 GMT", "2026-05-01T12:30:45Z"),
        ("Mon, 01 Jun 2026 12:30:45 GMT", "2026-06-01T12:30:45Z"),
        ("Wed, 01 Jul 2026 12:30:45 GMT", "2026-07-01T12:30:45Z"),
        ("Sat, 01 Aug 2026 12:30:45 GMT", "2026-08-01T12:30:45Z"),
        ("Tue, 01 Sep 2026 12:30:45 GMT", "2026-09-01T12:30:45Z"),
        ("Thu, 01 Oct 2026 12:30:45 GMT", "2026-10-01T12:30:45Z"),
        ("Thu, 31 Dec 2026 23:59:59 GMT", "2026-12-31T23:59:59Z"),
    ])
    func `the fixed form is read`(text: String, rfc3339: String) {
        #expect(HTTPDate.parse(WireText(text))?.description == rfc3339)
    }

    @Test(arguments: [
        "", "Sun, 6 Nov 1994 08:49:37 GMT", "Sun, 006 Nov 1994 08:49:37 GMT", "Sun, 06 nov 1994 08:49:37 GMT",
        "Sun, 06 November 1994 08:49:37 GMT", "Sun, 06 11 1994 08:49:37 GMT", "Sun, 06 Nov 94 08:49:37 GMT",
        "Sun, 06 Nov 1994 8:49:37 GMT", "Sun, 06 Nov 1994 08:49 GMT", "Sun, 06 Nov 1994 24:00:00 GMT",
        "Sun, 06 Nov 1994 08:60:00 GMT", "Sun, 06 Nov 1994 08:49:37 UTC", "Sun, 06 Nov 1994 08:49:37 +0000",
        "Sun, 06 Nov 1994 08:49:37", "Sun,  06 Nov 1994 08:49:37 GMT", "06 Nov 1994 08:49:37 GMT",
        "Sunday, 06 Nov 1994 08:49:37 GMT", "Sun 06 Nov 1994 08:49:37 GMT", "Sun, 31 Nov 1994 08:49:37 GMT",
        "Sun, 29 Feb 2026 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37.5 GMT", "Sun, 06 Nov 1994 08:49:37+01:00 GMT",
        "Sun, 06 Nov 1994 08:49:37 GMT ", "Sun, 06 Nov -994 08:49:37 GMT",
    ])
    func `anything else is refused`(text: String) {
        #expect(HTTPDate.parse(WireText(text)) == nil)
    }
}
