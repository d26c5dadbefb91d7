import Cryptography
import OAuth
import Reactor

/// The due marks of a token: when something is to be done about it before it expires.
///
/// A mark means that listeners were not yet notified of the expiry, or that the token is to be renewed before a caller asks,
/// because the tenant wants that or because what renews it would end unused.
/// Such a renewal is tried until it succeeds or the session has ended. For a tenant that does not want it, the commit that
/// notifies the listeners removes the mark.
struct ExpirySchedule: Sendable {
    /// How long before a token's expiry listeners are notified. Not negative.
    let notice: Duration

    /// The shortest time between two attempts to renew a token: as long as most attempts take.
    static let shortestWait: Duration = .seconds(30)
    /// The time between two attempts to verify a set of credentials that waits for the provider's keys.
    static let verificationInterval: Duration = .seconds(30)
    /// The time between two attempts to exchange the token of a login for one that lives longer.
    private static let exchangeInterval: Duration = .seconds(60)
    /// The longest such time, once the token has expired.
    private static let longestWait: Duration = .seconds(900)
    /// The longest such time for a renewal that has days left.
    private static let longestUpkeepWait: Duration = .seconds(6 * 3600)

    func noticeTime(of held: HeldCredentials) -> Timestamp { held.expires.advanced(by: .zero - notice) }

    /// The mark of a token that is written now.
    ///
    /// A renewal begins before listeners would be notified, since it makes the notice needless, and up to a fifth earlier by a
    /// random amount, so that tokens of one moment are not renewed in one moment. Apart from that fifth, a token is never
    /// renewed in the first half of its lifetime: otherwise a provider whose tokens live shorter than the lead would be asked
    /// all the time.
    /// - Parameters:
    ///   - lead: how long before its expiry the tenant has a token renewed; nil for not at all.
    ///   - upkeep: when it is renewed in any case; nil for never.
    /// - Returns: nil where nothing is to be done: for a token that does not expire, or that no caller has had, unless what renews it
    ///   would end unused.
    func firstMark(
        of held: HeldCredentials, lead: Duration?, upkeep: TenantConfiguration.Upkeep? = nil, now: Timestamp
    ) -> Timestamp? {
        if held.awaitsExchange { return now }
        let mark = usualMark(of: held, lead: lead, now: now)
        guard let upkeep else { return mark }
        let kept = max(self.mark(of: upkeep), now.advanced(by: Self.shortestWait))
        return mark.map { min($0, kept) } ?? kept
    }

    /// When credentials are renewed that end unused, so that those of one moment are not renewed in one moment.
    func mark(of upkeep: TenantConfiguration.Upkeep) -> Timestamp {
        let spread = max(upkeep.from.duration(to: upkeep.end), .zero) / 5
        return upkeep.from.advanced(by: .milliseconds(Int64.random(in: 0...spread.milliseconds)))
    }

    private func usualMark(of held: HeldCredentials, lead: Duration?, now: Timestamp) -> Timestamp? {
        if held.expiry == nil { return nil }
        guard let lead, held.canBeRefreshed else {
            // Of a token that no caller has had, no listener is told that it expires.
            return held.accessToken.isEmpty ? nil : noticeTime(of: held)
        }
        let life = now.duration(to: held.expires)
        let ahead = min(max(lead, notice), life / 2)
        let jitter = Duration.milliseconds(Int64.random(in: 0...max(0, ahead.milliseconds / 5)))
        let mark = max(held.expires.advanced(by: .zero - ahead - jitter), now.advanced(by: Self.shortestWait))
        if isWorthRenewing(held, now: mark) { return mark }
        // It lives too short to be renewed before it expires.
        return max(noticeTime(of: held), min(held.expires, now.advanced(by: Self.shortestWait)))
    }

    /// Whether a token lives long enough for a renewal before it expires.
    func isWorthRenewing(_ held: HeldCredentials, now: Timestamp) -> Bool {
        now.advanced(by: Self.shortestWait) <= held.expires
    }

    /// The mark that is written when an attempt to renew a token begins. If the attempt's process dies, another replica tries
    /// again at that time.
    /// - Parameter upkeep: because of which it is renewed; nil for none.
    func nextMark(
        of held: HeldCredentials, upkeep: TenantConfiguration.Upkeep? = nil, now: Timestamp
    ) -> Timestamp {
        if held.awaitsExchange, held.expires > now { return now.advanced(by: Self.exchangeInterval) }
        guard let upkeep, upkeep.from <= now else { return usualNextMark(of: held, now: now) }
        // The token may live on for longer than what renews it.
        let rest = now.duration(to: upkeep.end)
        let wait =
            rest > .zero ? min(max(rest / 4, Self.shortestWait), Self.longestUpkeepWait) : Self.longestWait
        return min(now.advanced(by: Self.spread(wait)), usualNextMark(of: held, now: now))
    }

    private func usualNextMark(of held: HeldCredentials, now: Timestamp) -> Timestamp {
        if held.expiry == nil { return laterMark(of: held, now: now) }
        if !isWorthRenewing(held, now: now) { return laterMark(of: held, now: now) }
        let half = now.advanced(by: max(Self.shortestWait, now.duration(to: held.expires) / 2))
        let notice = noticeTime(of: held)
        return notice > now ? max(now.advanced(by: Self.shortestWait), min(half, notice)) : half
    }

    /// The mark of a token that could not be renewed and whose expiry listeners were notified of. After the expiry, the waits
    /// grow to a quarter of an hour: a provider that is reachable again after a long outage is asked soon, and one that refuses
    /// for good is not asked every minute.
    func laterMark(of held: HeldCredentials, now: Timestamp) -> Timestamp {
        let overdue = held.expiry.map { $0.duration(to: now) / 4 } ?? Self.longestWait
        return now.advanced(by: Self.spread(min(max(overdue, Self.shortestWait), Self.longestWait)))
    }

    /// Up to a fifth longer, so that marks of one moment do not come up in one moment.
    private static func spread(_ wait: Duration) -> Duration {
        wait + .milliseconds(Int64.random(in: 1...wait.milliseconds / 5))
    }

    /// The mark of a token that cannot be renewed at the moment.
    func postponedMark(of held: HeldCredentials, now: Timestamp) -> Timestamp {
        let later = now.advanced(by: Self.shortestWait + .milliseconds(Int64.random(in: 0...30_000)))
        return min(later, max(now, noticeTime(of: held)))
    }
}

extension HeldCredentials {
    /// Whether listeners are told that the token expires: not where it does not, or where no caller has had it.
    var isExpiryTold: Bool { expiry != nil && !accessToken.isEmpty }

    var canBeRefreshed: Bool { level == .user && refreshToken != nil }
}
