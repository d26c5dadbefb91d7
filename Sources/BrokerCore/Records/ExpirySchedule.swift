internal import OAuth
internal import Reactor

/// When something is to be done about a token that is about to expire: its due marks.
///
/// A mark means that listeners have yet to be told of the expiry, or that the token is to be renewed without a request:
/// that is tried until it succeeds or the session has ended. Where the tenant does not want it, the mark goes in the commit
/// that tells them.
struct ExpirySchedule: Sendable {
    /// How long ahead of a token's expiry listeners are told of it. Not negative.
    let notice: Duration

    /// The time between two attempts to renew a token, at least: as long as most attempts take.
    static let shortestWait: Duration = .seconds(30)
    /// At most, once the token has expired.
    private static let longestWait: Duration = .seconds(900)

    func noticeTime(of held: HeldCredentials) -> Timestamp { held.expires.advanced(by: .zero - notice) }

    /// The mark of a token that is written now.
    ///
    /// A renewal ahead of time begins before the notice would be told, since it makes that needless, and by lot up to a
    /// fifth earlier, so that tokens of one moment are not renewed in one. Half of a token's life is always left alone,
    /// that fifth excepted: a provider whose tokens live shorter than the lead would be asked without end.
    /// - Parameter lead: how long ahead of its expiry the tenant has a token renewed; nil for not at all.
    /// - Returns: nil for a token that does not expire.
    func firstMark(of held: HeldCredentials, lead: Duration?, now: Timestamp) -> Timestamp? {
        if held.expiry == nil { return nil }
        guard let lead, held.canBeRefreshed else { return noticeTime(of: held) }
        let life = now.duration(to: held.expires)
        let ahead = min(max(lead, notice), life / 2)
        let jitter = Duration.milliseconds(Int64.random(in: 0...max(0, ahead.milliseconds / 5)))
        let mark = max(held.expires.advanced(by: .zero - ahead - jitter), now.advanced(by: Self.shortestWait))
        if isWorthRenewing(held, now: mark) { return mark }
        // It lives too short to be renewed ahead of its expiry.
        return max(noticeTime(of: held), min(held.expires, now.advanced(by: Self.shortestWait)))
    }

    /// Whether enough is left of a token for a renewal that is ahead of its time.
    func isWorthRenewing(_ held: HeldCredentials, now: Timestamp) -> Bool {
        now.advanced(by: Self.shortestWait) <= held.expires
    }

    /// The mark that goes with an attempt to renew a token: should its owner die, somebody looks again then.
    func nextMark(of held: HeldCredentials, now: Timestamp) -> Timestamp {
        if !isWorthRenewing(held, now: now) { return laterMark(of: held, now: now) }
        let half = now.advanced(by: max(Self.shortestWait, now.duration(to: held.expires) / 2))
        let notice = noticeTime(of: held)
        return notice > now ? max(now.advanced(by: Self.shortestWait), min(half, notice)) : half
    }

    /// The mark of a token that could not be renewed and that listeners were told of. After its expiry the waits grow to a
    /// quarter of an hour: a provider that was away for long is asked again soon after its return, and one that refuses for
    /// good is not asked every minute.
    func laterMark(of held: HeldCredentials, now: Timestamp) -> Timestamp {
        let wait = min(max(held.expires.duration(to: now) / 4, Self.shortestWait), Self.longestWait)
        let jitter = Duration.milliseconds(Int64.random(in: 1...wait.milliseconds / 5))
        return now.advanced(by: wait + jitter)
    }

    /// The mark of a token that nobody can renew at the moment.
    func postponedMark(of held: HeldCredentials, now: Timestamp) -> Timestamp {
        let later = now.advanced(by: Self.shortestWait + .milliseconds(Int64.random(in: 0...30_000)))
        return min(later, max(now, noticeTime(of: held)))
    }
}

extension HeldCredentials {
    var canBeRefreshed: Bool { level == .user && refreshToken != nil }
}
