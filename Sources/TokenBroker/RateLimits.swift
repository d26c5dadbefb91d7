package import BrokerCore
internal import Reactor

/// The rates of expensive operations that one API key may use. Nil means no limit. The operator's keys have no limits.
package struct Rates: Sendable {
    /// New logins.
    package var logins: Rate? = Rate(perSecond: 50)
    /// New device logins. The broker polls the provider for each of them until it ends.
    package var deviceLogins: Rate? = Rate(perSecond: 20)
    /// Writes: setting and removing credentials, and refreshes that the caller forces.
    package var writes: Rate? = Rate(perSecond: 200)
    /// All requests, except reads of credentials that are answered from memory within the turn.
    package var requests: Rate?
    /// Requests without a valid key, for each source.
    package var authenticationFailures: Rate? = Rate(perSecond: 20, burst: 20)

    package init() {}
}

extension Rate {
    /// Allows a burst of four times the rate.
    package init(perSecond: Int) {
        self.init(perSecond: perSecond, burst: 4 * perSecond)
    }
}

/// Limits each API key to the rates. A check takes a lock and a look-up; without a limit it takes nothing.
final class RateLimits: Sendable {
    private let buckets: [Quota: TokenBuckets<String>]
    private let time: any Time

    /// The most keys that have buckets of their own; more keys share them. No installation uses as many keys within
    /// four seconds.
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

    /// Counts one operation of the caller.
    /// - Throws: `too_many_requests` if the caller exceeds its rate. Retrying helps after `Retry-After`.
    func spend(_ quota: Quota, _ caller: Caller?) throws(BrokerError) {
        guard case .key(let key)? = caller, let buckets = buckets[quota] else { return }
        if case .refused(let retryAfter) = buckets.take(key.id, now: time.monotonic) {
            throw quota.exceeded(retryAfter: retryAfter)
        }
    }
}
