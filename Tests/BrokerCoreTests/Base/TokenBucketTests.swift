import BrokerCore
import Reactor
import Testing

@Suite struct `Token buckets` {
    private static func instant(_ milliseconds: Int64) -> MonotonicInstant {
        MonotonicInstant(nanoseconds: 5_000_000_000_000 + milliseconds * 1_000_000)
    }

    /// The outcome of taking one token.
    private func take(
        _ buckets: TokenBuckets<String>, _ key: String = "a", at milliseconds: Int64, waiting: Int = 0
    ) -> TokenBuckets<String>.Outcome {
        buckets.take(key, now: Self.instant(milliseconds), waiting: waiting)
    }

    @Test func `give a burst at once, then one token in each interval`() {
        let buckets = TokenBuckets<String>(Rate(perSecond: 10, burst: 3), capacity: 8)
        for _ in 0..<3 { #expect(take(buckets, at: 0) == .taken(after: .zero)) }
        #expect(take(buckets, at: 0) == .refused(retryAfter: .milliseconds(100)))
        // What is refused costs no token.
        #expect(take(buckets, at: 99) == .refused(retryAfter: .milliseconds(1)))
        #expect(take(buckets, at: 100) == .taken(after: .zero))
        #expect(take(buckets, at: 100) == .refused(retryAfter: .milliseconds(100)))
        #expect(take(buckets, at: 200) == .taken(after: .zero))
    }

    @Test func `are full again after a rest, and hold no more than a burst`() {
        let buckets = TokenBuckets<String>(Rate(perSecond: 10, burst: 3), capacity: 8)
        for _ in 0..<3 { _ = take(buckets, at: 0) }
        for _ in 0..<3 { #expect(take(buckets, at: 60_000) == .taken(after: .zero)) }
        #expect(take(buckets, at: 60_000) == .refused(retryAfter: .milliseconds(100)))
    }

    @Test func `belong to one key each`() {
        let buckets = TokenBuckets<String>(Rate(perSecond: 1, burst: 1), capacity: 8)
        #expect(take(buckets, "a", at: 0) == .taken(after: .zero))
        #expect(take(buckets, "a", at: 0) == .refused(retryAfter: .seconds(1)))
        #expect(take(buckets, "b", at: 0) == .taken(after: .zero))
    }

    @Test func `lend tokens to those who wait, each its own`() {
        let buckets = TokenBuckets<String>(Rate(perSecond: 20, burst: 1), capacity: 8)
        let outcomes = (0..<4).map { _ in take(buckets, at: 0, waiting: 2) }
        #expect(
            outcomes == [
                .taken(after: .zero), .taken(after: .milliseconds(50)), .taken(after: .milliseconds(100)),
                .refused(retryAfter: .milliseconds(150)),
            ])
        #expect(take(buckets, at: 50, waiting: 2) == .taken(after: .milliseconds(100)))
    }

    @Test func `do not outgrow the table, and those who find no place share a bucket`() {
        let buckets = TokenBuckets<String>(Rate(perSecond: 1, burst: 1), capacity: 2)
        for key in ["a", "b"] { #expect(take(buckets, key, at: 0) == .taken(after: .zero)) }
        #expect(take(buckets, "c", at: 1) == .taken(after: .zero))
        #expect(take(buckets, "d", at: 1) == .refused(retryAfter: .seconds(1)))
        // One that has a bucket keeps it.
        #expect(take(buckets, "a", at: 1) == .refused(retryAfter: .milliseconds(999)))
        #expect(buckets.count == 2)
        // Full buckets give way.
        for key in ["c", "d"] { #expect(take(buckets, key, at: 1001) == .taken(after: .zero)) }
        #expect(buckets.count == 2)
    }

    @Test func `serve a hundred thousand keys from a table of a thousand`() {
        let buckets = TokenBuckets<Int>(Rate(perSecond: 20, burst: 20), capacity: 1000)
        for key in 0..<100_000 { _ = buckets.take(key, now: Self.instant(Int64(key / 100))) }
        #expect(buckets.count <= 1000)
    }
}
