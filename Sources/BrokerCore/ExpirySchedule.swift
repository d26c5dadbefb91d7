internal import OAuth
internal import Reactor

/// When something is to be done about a token that is about to expire: its due marks.
///
/// A mark means that listeners have yet to be told of the expiry. The mark goes in the commit that tells them, so that a
/// record has none from then on, whatever the settings of the process that looks.
struct ExpirySchedule: Sendable {
    /// How long ahead of a token's expiry listeners are told of it. Not negative.
    let notice: Duration

    /// The time between two attempts to renew a token, at least: as long as most attempts take.
    static let shortestWait: Duration = .seconds(30)

    func noticeTime(of held: HeldCredentials) -> Timestamp { held.expires.advanced(by: .zero - notice) }

    /// The mark of a token that is written now.
    ///
    /// A renewal ahead of time begins before the notice would be told, since it makes that needless, and by lot up to a
    /// fifth earlier, so that tokens of one moment are not renewed in one. Half of a token's life is always left alone,
    /// that fifth excepted: a provider whose tokens live shorter than the lead would be asked without end.
    /// - Parameter lead: how long ahead of its expiry the tenant has a token renewed; nil for not at all.
    func firstMark(of held: HeldCredentials, lead: Duration?, now: Timestamp) -> Timestamp {
        guard let lead, held.canBeRefreshed else { return noticeTime(of: held) }
        let life = now.duration(to: held.expires)
        let ahead = min(max(lead, notice), life / 2)
        let jitter = Duration.milliseconds(Int64.random(in: 0...max(0, ahead.milliseconds / 5)))
        let mark = max(held.expires.advanced(by: .zero - ahead - jitter), now.advanced(by: Self.shortestWait))
        return isWorthRenewing(held, now: mark) ? mark : noticeTime(of: held)
    }

    /// Whether enough is left of a token for a renewal that is ahead of its time.
    func isWorthRenewing(_ held: HeldCredentials, now: Timestamp) -> Bool {
        now.advanced(by: Self.shortestWait) <= held.expires
    }

    /// The mark that goes with an attempt to renew a token: should its owner die, somebody looks again then.
    func nextMark(of held: HeldCredentials, now: Timestamp) -> Timestamp {
        let half = now.advanced(by: max(Self.shortestWait, now.duration(to: held.expires) / 2))
        let notice = noticeTime(of: held)
        return notice > now ? max(now.advanced(by: Self.shortestWait), min(half, notice)) : half
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
