/// When a failed request is retried.
///
/// | retry            | 1     | 2   | 3   | 4   | 5   |
/// |------------------|-------|-----|-----|-----|-----|
/// | wait before it   | 0.5 s | 1 s | 2 s | 4 s | 8 s |
/// | total wait       | 0.5 s | 1.5 s | 3.5 s | 7.5 s | 15.5 s |
///
/// - Source: TIDAL's Auth design: five retries, each after twice the previous wait.
package struct BackoffSchedule: Sendable, Equatable {
    package static let standard = BackoffSchedule()

    package static let retries = 5

    /// The longest `Retry-After` that is waited for within one call. A longer wait is left to the caller.
    package static let longestWait: Duration = .seconds(30)

    /// How long to wait before a retry.
    /// - Parameters:
    ///   - retry: the number of the retry, starting at 1.
    ///   - retryAfter: the wait that the failed response asks for. It is used when it is longer than the schedule's
    ///     wait.
    /// - Returns: nil when the schedule has no such retry, or when the provider asks for more than `longestWait`.
    package func wait(before retry: Int, retryAfter: Duration?) -> Duration? {
        guard (1...Self.retries).contains(retry) else { return nil }
        let scheduled = Duration.milliseconds(500) * (1 << (retry - 1))
        guard let retryAfter, retryAfter > scheduled else { return scheduled }
        return retryAfter <= Self.longestWait ? retryAfter : nil
    }
}
