package import Reactor
internal import Synchronization

/// Says whether what was read from the store at some time may be believed now.
///
/// A store of one writer is always believed. With others who write, what was read is believed for a short time, and
/// longer while the store's change feed vouches for it: it was read after the feed had begun to tell of every change,
/// and the feed was seen alive a short time ago. Reading takes no lock.
package final class Trust: Sendable {
    /// For how long what was read is believed while no feed vouches for it, and for how long a feed that was seen alive
    /// is taken to be so: a change that nobody tells of is served no longer than this. Nil where nobody else writes.
    package let validity: Duration?
    /// How long the feed is relied on for one reading: a process that dies with its connection between a commit and the
    /// word of it leaves a change that nobody tells of. What is in use is looked at again before; see `BeliefRenewal`.
    static let longestBelief: Duration = .seconds(60)
    /// In nanoseconds: since when every change is told of; `.max` while that is not so.
    private let following = Atomic<Int64>(.max)
    /// In nanoseconds: the last value of `following` but `.max`. It outlasts the feed's loss.
    private let lastFollowing = Atomic<Int64>(.max)
    /// In nanoseconds: when the feed was last seen to work.
    private let alive = Atomic<Int64>(.min)
    /// In nanoseconds, since every reading of the cache needs them; nil where nobody else writes.
    private let spans: (validity: Int64, longest: Int64)?

    package init(validity: Duration?) {
        self.validity = validity
        spans = validity.map { ($0.nanoseconds, max($0, Self.longestBelief).nanoseconds) }
    }

    /// From `now` on every change is told of; earlier ones may not have been, so nothing read before is believed until
    /// it was looked at again.
    package func follow(_ now: MonotonicInstant) {
        lastFollowing.store(now.nanoseconds, ordering: .sequentiallyConsistent)
        // In this order, as `isFollowing` reads them in the other one.
        following.store(now.nanoseconds, ordering: .sequentiallyConsistent)
        alive.store(now.nanoseconds, ordering: .sequentiallyConsistent)
    }

    /// The feed was seen to work.
    package func beAlive(_ now: MonotonicInstant) {
        alive.store(now.nanoseconds, ordering: .sequentiallyConsistent)
    }

    /// Nobody tells of changes any more.
    package func lose() {
        following.store(.max, ordering: .sequentiallyConsistent)
    }

    /// Something changed, and nobody knows what.
    package func distrust(_ now: MonotonicInstant) {
        if following.load(ordering: .sequentiallyConsistent) == .max { return }
        lastFollowing.store(now.nanoseconds, ordering: .sequentiallyConsistent)
        following.store(now.nanoseconds, ordering: .sequentiallyConsistent)
    }

    /// Whether every change is told of at present.
    package func isFollowing(_ now: MonotonicInstant) -> Bool {
        guard let spans else { return false }
        return feed(spans.validity).aliveUntil > now
    }

    /// Whether what was read may be believed.
    /// - Parameter checked: taken before the store was asked.
    package func believes(_ checked: MonotonicInstant, _ now: MonotonicInstant) -> Bool {
        end(of: checked, now) > now
    }

    /// Until when what was read may be believed; what is not after `now` is over already.
    /// It may come to be believed for longer, when the feed shows again that it is alive.
    /// - Parameter checked: taken before the store was asked.
    package func end(of checked: MonotonicInstant, _ now: MonotonicInstant) -> MonotonicInstant {
        guard let spans else { return .distantFuture }
        let feed = feed(spans.validity)
        let alone = checked.advanced(byNanoseconds: spans.validity)
        guard let start = feed.start else { return alone }
        if checked < start { return MonotonicInstant(nanoseconds: .min) }
        guard feed.aliveUntil > now else { return alone }
        return max(alone, min(checked.advanced(byNanoseconds: spans.longest), feed.aliveUntil))
    }

    /// Until when the store is known to have said, by itself or by its feed, what was read at `checked`: for how long that
    /// is used while the store cannot be asked.
    ///
    /// A feed that is lost has vouched until it was last seen alive.
    package func lastVouched(for checked: MonotonicInstant) -> MonotonicInstant {
        guard let spans else { return .distantFuture }
        let seen = MonotonicInstant(nanoseconds: alive.load(ordering: .sequentiallyConsistent))
        let start = MonotonicInstant(nanoseconds: lastFollowing.load(ordering: .sequentiallyConsistent))
        let isVouchedFor = checked >= start && checked.advanced(byNanoseconds: spans.longest) >= seen
        return isVouchedFor ? max(checked, seen) : checked
    }

    /// When those were checked which the feed vouches for now, and which are believed no longer at `end` unless they are
    /// checked again; nil where there can be none.
    ///
    /// What was read before the feed began, or began again, is not among them, whatever version the store shows now: a
    /// store that was put back to an earlier state, or has lost its last commits, gives the same versions to other
    /// contents.
    func checksRunningOut(at end: MonotonicInstant, _ now: MonotonicInstant) -> Range<MonotonicInstant>? {
        guard let spans else { return nil }
        let feed = feed(spans.validity)
        guard let start = feed.start, feed.aliveUntil > now else { return nil }
        let first = max(start, now.advanced(byNanoseconds: 1 - spans.longest))
        let last = end.advanced(byNanoseconds: -spans.longest)
        return first <= last ? first..<last.advanced(byNanoseconds: 1) : nil
    }

    /// Since when the feed tells of every change, nil where it does not, and until when it is taken to be alive.
    private func feed(_ validity: Int64) -> (start: MonotonicInstant?, aliveUntil: MonotonicInstant) {
        // Seen alive first: with the sign of life of a feed that has just begun again goes its own beginning, or a later
        // one, never that of the feed which was lost.
        let seen = MonotonicInstant(nanoseconds: alive.load(ordering: .sequentiallyConsistent))
        let start = following.load(ordering: .sequentiallyConsistent)
        if start == .max { return (nil, MonotonicInstant(nanoseconds: .min)) }
        return (MonotonicInstant(nanoseconds: start), seen.advanced(byNanoseconds: validity))
    }
}
