import BrokerCore
import Reactor
import Synchronization

/// Slows down clients that try keys: a source that has used up its rate of refusals waits for the next ones.
///
/// Only requests without a valid key are counted and delayed. A request with a valid key is never delayed, even if its
/// source sends many without one.
final class AuthenticationFailures: Sendable {
    private let buckets: TokenBuckets<NetworkSource>?
    private let metrics: Metrics
    private let time: any Time
    private let waiting = Atomic<Int>(0)

    /// The most requests of one source that wait for their refusal: those of one second, at 20 a second.
    static let waitingPerSource = 20
    /// The most requests that wait, of all sources together.
    static let waitingInAll = 1000
    /// The most sources that have a bucket of their own.
    static let capacity = 65_536

    /// - Parameter rate: the rate of refusals for each source; nil means that no refusal is delayed.
    init(_ rate: Rate?, metrics: Metrics, time: any Time) {
        buckets = rate.map { TokenBuckets($0, capacity: Self.capacity) }
        self.metrics = metrics
        self.time = time
    }

    /// Suspends until a request of the source may be refused.
    /// - Throws: `too_many_requests` at once, if too many requests wait already.
    func admit(_ source: NetworkSource) async throws(BrokerError) {
        guard let buckets, source != .unknown else { return metrics.authenticationFailed(.answered) }
        switch buckets.take(source, now: time.monotonic, waiting: Self.waitingPerSource) {
        case .taken(after: .zero): metrics.authenticationFailed(.answered)
        case .taken(let delay):
            defer { waiting.subtract(1, ordering: .relaxed) }
            guard waiting.add(1, ordering: .relaxed).newValue <= Self.waitingInAll else { throw refusal(delay) }
            // The sleep ends early if the client has closed its connection. Such a request is counted like one that was
            // answered.
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
