import Reactor
import Testing

@Suite struct `Monotonic instant` {
    @Test func `runs forward`() {
        let first = MonotonicInstant.now
        let second = MonotonicInstant.now
        #expect(first <= second)
        #expect(first.duration(to: second) >= .zero)
    }

    @Test(
        arguments: [
            (0, .nanoseconds(1), 1), (0, .seconds(1), 1_000_000_000), (10, .nanoseconds(-3), 7),
            (.max - 1, .nanoseconds(1), .max), (.max, .nanoseconds(1), .max), (1, .seconds(Int64.max), .max),
            (.min + 1, .nanoseconds(-1), .min), (.min, .nanoseconds(-1), .min), (-1, .seconds(Int64.min), .min),
        ] as [(Int64, Duration, Int64)])
    func `advancing saturates at the ends of the range`(start: Int64, duration: Duration, end: Int64) {
        #expect(MonotonicInstant(nanoseconds: start).advanced(by: duration) == MonotonicInstant(nanoseconds: end))
    }

    @Test(
        arguments: [(0, 5, 5), (5, 0, -5), (0, .max, .max), (-1, .max, .max), (1, .min, .min), (0, .min, .min)]
            as [(Int64, Int64, Int64)])
    func `the duration to another instant saturates`(start: Int64, end: Int64, nanoseconds: Int64) {
        let way = MonotonicInstant(nanoseconds: start).duration(to: MonotonicInstant(nanoseconds: end))
        #expect(way == .nanoseconds(nanoseconds))
    }

    @Test(
        arguments: [
            (.zero, 0), (.milliseconds(1), 1_000_000), (.nanoseconds(-1), -1), (.seconds(-1), -1_000_000_000),
            (.seconds(9_223_372_036), 9_223_372_036_000_000_000), (.seconds(9_223_372_037), .max),
            (.seconds(-9_223_372_036), -9_223_372_036_000_000_000), (.seconds(-9_223_372_037), .min),
            (.seconds(Int64.max), .max), (.seconds(Int64.min), .min),
        ] as [(Duration, Int64)])
    func `counts a duration in nanoseconds, at most 292 years of them`(duration: Duration, nanoseconds: Int64) {
        #expect(duration.nanoseconds == nanoseconds)
    }
}
