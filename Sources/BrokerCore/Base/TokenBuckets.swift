package import Reactor
import Synchronization

/// A rate limit: the average number of operations in a second, and the number of operations at once after a pause.
package struct Rate: Sendable, Equatable {
    /// 1 to 1,000,000.
    package let perSecond: Int
    /// How many tokens a full bucket holds; 1 or more.
    package let burst: Int

    package init(perSecond: Int, burst: Int) {
        precondition((1...1_000_000).contains(perSecond) && burst >= 1, "a rate lets something be done")
        self.perSecond = perSecond
        self.burst = burst
    }

    /// The time in which one token is added, in nanoseconds.
    fileprivate var interval: Int64 { 1_000_000_000 / Int64(perSecond) }
}

/// A token bucket for each key, in a table of bounded size.
///
/// A bucket is one number: the time at which it will be full again. A full bucket need not be stored, so full buckets are removed
/// first. While the table has no room and no full bucket, the keys without a bucket of their own share one.
package final class TokenBuckets<Key: Hashable & Sendable>: Sendable {
    /// The result of a request for a token.
    package enum Outcome: Sendable, Equatable {
        /// The token is taken. It may be used after that time, which is zero unless the caller was willing to wait.
        case taken(after: Duration)
        /// Nothing is taken. There is a token after that time, unless another caller takes it.
        case refused(retryAfter: Duration)
    }

    private struct State {
        /// When each bucket will be full again, in nanoseconds of the monotonic clock.
        var fullAt: [Key: Int64] = [:]
        /// The bucket of the keys that have none of their own.
        var sharedFullAt = Int64.min
        /// When the table may next be searched for full buckets, since a search visits all buckets.
        var nextSearch = Int64.min

        mutating func forgetFullBuckets(at now: Int64) {
            guard now >= nextSearch else { return }
            nextSearch = now + 1_000_000_000
            fullAt = fullAt.filter { $0.value > now }
        }
    }

    private let rate: Rate
    private let capacity: Int
    private let state = Mutex(State())

    /// - Parameter capacity: how many keys have a bucket of their own.
    package init(_ rate: Rate, capacity: Int) {
        precondition(capacity > 0, "a table holds something")
        self.rate = rate
        self.capacity = capacity
    }

    /// How many buckets there are.
    package var count: Int { state.withLock { $0.fullAt.count } }

    /// Takes a token out of the bucket of `key`.
    /// - Parameter waiting: how many tokens may be taken in advance, by callers that then wait for theirs.
    package func take(_ key: Key, now: MonotonicInstant, waiting: Int = 0) -> Outcome {
        let now = now.nanoseconds
        let interval = rate.interval
        // The time that a bucket with one token needs until it is full.
        let tolerance = interval * Int64(rate.burst - 1)
        return state.withLock { state in
            var isOwn = true
            if state.fullAt[key] == nil, state.fullAt.count >= capacity {
                state.forgetFullBuckets(at: now)
                isOwn = state.fullAt.count < capacity
            }
            let fullAt = max(now, isOwn ? state.fullAt[key] ?? now : state.sharedFullAt)
            let wait = max(0, fullAt - tolerance - now)
            if wait > interval * Int64(waiting) { return .refused(retryAfter: .nanoseconds(wait)) }
            if isOwn { state.fullAt[key] = fullAt + interval } else { state.sharedFullAt = fullAt + interval }
            return .taken(after: .nanoseconds(wait))
        }
    }
}
