/// When a request that failed is tried again.
///
/// | retry            | 1     | 2   | 3   | 4   | 5   |
/// |------------------|-------|-----|-----|-----|-----|
/// | wait before it   | 0.5 s | 1 s | 2 s | 4 s | 8 s |
/// | waited in all    | 0.5 s | 1.5 | 3.5 | 7.5 | 15.5 s |
///
/// - Source: TIDAL's Auth design: five more tries, each after twice the last wait.
package struct BackoffSchedule: Sendable, Equatable {
    package static let standard = BackoffSchedule()

    package static let retries = 5

    /// A wait that a provider asks for is kept inside one call up to this; a longer one is the caller's to keep.
    package static let longestWait: Duration = .seconds(30)

    /// What to wait before the given retry.
    /// - Parameters:
    ///   - retry: 1 for the first one.
    ///   - retryAfter: what the failed answer asked for; honoured when it is longer than the schedule.
    /// - Returns: nil when there is no such retry, or when the provider asks for more than `longestWait`.
    package func wait(before retry: Int, retryAfter: Duration?) -> Duration? {
        guard (1...Self.retries).contains(retry) else { return nil }
        let scheduled = Duration.milliseconds(500) * (1 << (retry - 1))
        guard let retryAfter, retryAfter > scheduled else { return scheduled }
        return retryAfter <= Self.longestWait ? retryAfter : nil
    }
}
