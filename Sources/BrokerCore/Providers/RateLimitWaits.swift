internal import OAuth

/// How often, and for how long in all, one call has waited because the provider limits its rate.
struct RateLimitWaits {
    private let schedule: BackoffSchedule
    private var count = 0
    private var waited: Duration = .zero

    init(_ schedule: BackoffSchedule) {
        self.schedule = schedule
    }

    /// Whether the call waits again and is repeated. If so, the wait is counted.
    mutating func allow(_ wait: Duration) -> Bool {
        guard schedule.waits(wait, afterRateLimit: count, waited: waited) else { return false }
        count += 1
        waited += wait
        return true
    }
}
