package import BrokerCore
import OAuth
import Reactor

/// The rates of requests with an API key. Nil means no limit. The operator's keys have no limits.
package struct Rates: Sendable {
    /// New logins.
    package var logins: Rate? = Rate(perSecond: 50)
    /// New device logins. The broker polls the provider for each of them until it ends.
    package var deviceLogins: Rate? = Rate(perSecond: 20)
    /// Writes: setting and removing credentials, and refreshes that the caller forces.
    package var writes: Rate? = Rate(perSecond: 200)
    /// All requests of one API key, except reads of credentials that are answered from memory within the turn.
    package var requests: Rate?
    /// The same requests of all API keys of one tenant.
    package var requestsOfTenant: Rate?
    /// The same requests from one IPv4 address or IPv6 /64 prefix.
    package var requestsFromAddress: Rate?
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

/// Limits API keys, tenants and addresses to the rates. A check takes a lock and a look-up; without a limit it takes nothing.
final class RateLimits: Sendable {
    private let buckets: [Quota: TokenBuckets<String>]
    private let tenants: TokenBuckets<TenantName>?
    private let addresses: TokenBuckets<NetworkSource>?
    private let time: any Time

    /// The most keys, tenants and addresses that have buckets of their own; more of them share one. No installation has as
    /// many API keys in use within four seconds.
    private static let capacity = 65_536

    init(_ rates: Rates, time: any Time) {
        let limits: [(Quota, Rate?)] = [
            (.logins, rates.logins), (.deviceLogins, rates.deviceLogins), (.writes, rates.writes),
            (.requests, rates.requests),
        ]
        var buckets: [Quota: TokenBuckets<String>] = [:]
        for case (let quota, let rate?) in limits { buckets[quota] = TokenBuckets(rate, capacity: Self.capacity) }
        self.buckets = buckets
        tenants = rates.requestsOfTenant.map { TokenBuckets($0, capacity: Self.capacity) }
        addresses = rates.requestsFromAddress.map { TokenBuckets($0, capacity: Self.capacity) }
        self.time = time
    }

    /// Counts one operation of the caller.
    /// - Throws: `too_many_requests` if the caller exceeds its rate. Retrying helps after `Retry-After`.
    func spend(_ quota: Quota, _ caller: Caller?) throws(BrokerError) {
        guard case .key(let key)? = caller else { return }
        try take(key.id, from: buckets[quota], quota)
    }

    /// Counts one request of the caller: for its key, its tenant and its address. A request that one limit refuses counts for
    /// those that were asked before it.
    /// - Parameter source: where the request comes from. Requests of an unknown source have no limit for addresses.
    /// - Throws: `too_many_requests` if one of them exceeds its rate. Retrying helps after `Retry-After`.
    func admit(_ caller: Caller?, from source: NetworkSource) throws(BrokerError) {
        guard case .key(let key)? = caller else { return }
        try take(key.id, from: buckets[.requests], .requests)
        if source != .unknown { try take(source, from: addresses, .requestsFromAddress) }
        if !key.isWithoutTenant { try take(key.tenant, from: tenants, .requestsOfTenant) }
    }

    private func take<Key>(_ key: Key, from buckets: TokenBuckets<Key>?, _ quota: Quota) throws(BrokerError) {
        guard let buckets else { return }
        if case .refused(let retryAfter) = buckets.take(key, now: time.monotonic) {
            throw quota.exceeded(retryAfter: retryAfter)
        }
    }
}
