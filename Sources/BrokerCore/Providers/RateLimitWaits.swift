internal import OAuth

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
