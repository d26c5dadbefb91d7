package import BrokerCore
internal import Reactor

/// How often one API key may do what costs the broker something. Nil is no limit. The operator's keys have none: what they
/// do, only the operator could bound.
package struct Rates: Sendable {
    /// Logins begun.
    package var logins: Rate? = Rate(perSecond: 50)
    /// Device logins begun: each is polled at its provider until it ends.
    package var deviceLogins: Rate? = Rate(perSecond: 20)
    /// Credentials set and removed, and refreshes that the caller forces.
    package var writes: Rate? = Rate(perSecond: 200)
    /// Requests of any kind, but for reads of credentials that are answered from memory in one turn.
    package var requests: Rate?
    /// Requests without a valid key, by their source.
    package var authenticationFailures: Rate? = Rate(perSecond: 20, burst: 20)

    package init() {}
}

extension Rate {
    /// With a burst of four seconds' worth.
    package init(perSecond: Int) {
        self.init(perSecond: perSecond, burst: 4 * perSecond)
    }
}

/// Holds each API key to the rates. Takes no more than a lock and a look-up, and nothing where there is no limit.
final class RateLimits: Sendable {
    private let buckets: [Quota: TokenBuckets<String>]
    private let time: any Time

    /// More than any installation has keys in use within four seconds; beyond that, keys share a bucket.
    private static let capacity = 65_536

    init(_ rates: Rates, time: any Time) {
        let limits: [(Quota, Rate?)] = [
            (.logins, rates.logins), (.deviceLogins, rates.deviceLogins), (.writes, rates.writes),
            (.requests, rates.requests),
        ]
        var buckets: [Quota: TokenBuckets<String>] = [:]
        for case (let quota, let rate?) in limits { buckets[quota] = TokenBuckets(rate, capacity: Self.capacity) }
        self.buckets = buckets
        self.time = time
    }

    /// Counts one use by the caller.
    /// - Throws: `too_many_requests` where that is too often.
    func spend(_ quota: Quota, _ caller: Caller?) throws(BrokerError) {
        guard case .key(let key)? = caller, let buckets = buckets[quota] else { return }
        if case .refused(let retryAfter) = buckets.take(key.id, now: time.monotonic) {
            throw quota.exceeded(retryAfter: retryAfter)
        }
    }
}
