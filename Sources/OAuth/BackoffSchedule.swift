/// When a failed request is retried.
///
/// The standard schedule:
///
/// | retry            | 1     | 2   | 3   | 4   | 5   |
/// |------------------|-------|-----|-----|-----|-----|
/// | wait before it   | 0.5 s | 1 s | 2 s | 4 s | 8 s |
/// | total wait       | 0.5 s | 1.5 s | 3.5 s | 7.5 s | 15.5 s |
///
/// - Source: TIDAL's Auth design: five retries, each after twice the previous wait.
package struct BackoffSchedule: Sendable, Equatable {
    package static let standard = BackoffSchedule(RetrySettings())

    /// How often a request is sent at most.
    package let tries: Int
    package let firstPause: Duration
    package let factor: Double
    package let longestPause: Duration
    /// See `RetrySettings`.
    package let rateLimitRetries: Int?
    /// Whether a `Retry-After` counts.
    package let followsRetryAfter: Bool

    /// The longest `Retry-After` that is waited for within one call, and the longest total of a schedule's waits. A longer wait is
    /// left to the caller.
    package static let longestWait: Duration = .seconds(30)

    /// - Parameter settings: where a member is nil, that of the standard schedule counts.
    package init(_ settings: RetrySettings) {
        tries = settings.tries ?? 6
        firstPause = settings.firstPause ?? .milliseconds(500)
        factor = settings.factor ?? 2
        longestPause = settings.longestPause ?? .seconds(8)
        rateLimitRetries = settings.rateLimitRetries
        followsRetryAfter = settings.followsRetryAfter ?? true
    }

    package var retries: Int { tries - 1 }

    /// The waits before the retries.
    package var waits: [Duration] { (1...retries).map(scheduled) }

    /// The total of the waits.
    package var total: Duration { waits.reduce(.zero, +) }

    /// How long to wait before a retry.
    /// - Parameters:
    ///   - retry: the number of the retry, starting at 1.
    ///   - retryAfter: the wait that the failed response asks for. It is used when it is longer than the schedule's
    ///     wait.
    /// - Returns: nil when the schedule has no such retry, or when the provider asks for more than `longestWait`.
    package func wait(before retry: Int, retryAfter: Duration?) -> Duration? {
        guard (1...retries).contains(retry) else { return nil }
        let scheduled = scheduled(retry)
        guard let retryAfter, retryAfter > scheduled else { return scheduled }
        return retryAfter <= Self.longestWait ? retryAfter : nil
    }

    /// - Parameter retry: at least 1.
    private func scheduled(_ retry: Int) -> Duration {
        let (seconds, attoseconds) = firstPause.components
        var milliseconds = Double(seconds * 1000 + attoseconds / 1_000_000_000_000_000)
        for _ in 1..<retry { milliseconds *= factor }
        return min(.milliseconds(Int64(milliseconds.rounded())), longestPause)
    }

    /// Whether a request that is limited is sent again after the wait that the provider asks for.
    /// - Parameters:
    ///   - count: how often it was sent again for that reason.
    ///   - waited: for how long in all.
    package func waits(_ wait: Duration, afterRateLimit count: Int, waited: Duration) -> Bool {
        count < rateLimitRetries ?? 0 && waited + wait <= Self.longestWait
    }
}
