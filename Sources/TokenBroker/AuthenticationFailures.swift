internal import BrokerCore
internal import Reactor
internal import Synchronization

/// Slows down those who try keys: a source that has had its share of refusals waits for the next ones.
///
/// It is asked only when a request has turned out to have no valid key, so a valid one is never delayed, whatever else comes
/// from its source.
final class AuthenticationFailures: Sendable {
    private let buckets: TokenBuckets<NetworkSource>?
    private let metrics: Metrics
    private let time: any Time
    private let waiting = Atomic<Int>(0)

    /// How many requests of one source wait for their refusal: at 20 a second, one second's worth.
    static let waitingPerSource = 20
    /// How many requests wait in all.
    static let waitingInAll = 1000
    /// How many sources have a bucket of their own.
    static let capacity = 65_536

    /// - Parameter rate: of each source; nil delays nothing.
    init(_ rate: Rate?, metrics: Metrics, time: any Time) {
        buckets = rate.map { TokenBuckets($0, capacity: Self.capacity) }
        self.metrics = metrics
        self.time = time
    }

    /// Suspends until a request of that source may be told that it has no valid key.
    /// - Throws: `too_many_requests` at once where too many wait already.
    func admit(_ source: NetworkSource) async throws(BrokerError) {
        guard let buckets, source != .unknown else { return metrics.authenticationFailed(.answered) }
        switch buckets.take(source, now: time.monotonic, waiting: Self.waitingPerSource) {
        case .taken(after: .zero): metrics.authenticationFailed(.answered)
        case .taken(let delay):
            defer { waiting.subtract(1, ordering: .relaxed) }
            guard waiting.add(1, ordering: .relaxed).newValue <= Self.waitingInAll else { throw refusal(delay) }
            // A client that has gone needs no answer, and is counted as one that was told.
            try? await time.sleep(for: delay)
            metrics.authenticationFailed(.delayed)
        case .refused(let delay): throw refusal(delay)
        }
    }

    private func refusal(_ delay: Duration) -> BrokerError {
        metrics.authenticationFailed(.refused)
        return Quota.authenticationFailures.exceeded(retryAfter: delay)
    }
}
