import OAuth
import Reactor

/// How often, and for how long in all, one call has waited because the provider limits its rate.
struct RateLimitWaits {
    private let schedule: BackoffSchedule
    private let least: Int
    private var count = 0
    private var waited: Duration = .zero

    /// - Parameter least: how often the call is repeated whatever the schedule says.
    init(_ schedule: BackoffSchedule, atLeast least: Int = 0) {
        self.schedule = schedule
        self.least = least
    }

    /// Whether the call waits again and is repeated. If so, the wait is counted.
    mutating func allow(_ wait: Duration) -> Bool {
        guard
            schedule.waits(wait, afterRateLimit: count, waited: waited)
                || count < least && waited + wait <= BackoffSchedule.longestWait
        else { return false }
        count += 1
        waited += wait
        return true
    }
}

/// How often one call was repeated, and how long it may still wait: its waits together are no longer than
/// `BackoffSchedule.longestWait`, however often the provider asks for one. A caller waits for them.
final class CallWaits {
    private let schedule: BackoffSchedule
    private var limits: RateLimitWaits
    private var retry = 0
    private var rest = BackoffSchedule.longestWait
    /// The wait that comes next.
    private(set) var next: Duration = .zero
    /// The key of the pauses that lengthen a wait; nil for none.
    let pause: ProviderClient.User?

    init(_ schedule: BackoffSchedule, heeding pause: ProviderClient.User?) {
        self.schedule = schedule
        self.pause = pause
        limits = RateLimitWaits(schedule)
    }

    /// Whether the call is repeated, after the `next` wait.
    /// - Parameters:
    ///   - retryAfter: the wait that the provider asks for; nil for none.
    ///   - limit: the wait that counts where the provider limits the rate, and the tenant says how often that is waited for; nil
    ///     for other failures.
    func repeats(retryAfter: Duration?, limit: Duration? = nil) -> Bool {
        retry += 1
        if let limit, !limits.allow(limit) { return false }
        guard let wait = schedule.wait(before: retry, retryAfter: retryAfter), wait <= rest else { return false }
        next = wait
        return true
    }

    /// When the wait that begins now is over at the latest.
    func latestEnd(now: MonotonicInstant) -> MonotonicInstant { now.advanced(by: rest) }

    /// Counts a wait.
    func count(_ waited: Duration) { rest -= waited }
}
