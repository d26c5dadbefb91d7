package import Reactor
import Synchronization

/// For how long a cache may use an entry that was read from the store.
///
/// Where this process alone writes to the store, an entry never expires. Where other processes write to it, an entry is
/// valid for `lifetime`. It is valid for up to `longestLifetime` while the store's change feed covers it: the entry was read
/// after the feed had begun to report every change, and the feed was seen alive a short time ago. Takes no lock.
package final class CacheValidity: Sendable {
    /// For how long an entry is valid that no feed covers, and for how long a feed counts as alive after it was seen alive.
    /// So a change that the feed does not report is served for no longer than this. Nil where no other process writes.
    package let lifetime: Duration?
    /// For how long an entry is valid that the feed covers. A process that dies between a commit and its notification leaves
    /// a change that the feed never reports; `CacheRevalidation` finds it within this time.
    static let longestLifetime: Duration = .seconds(60)
    /// In nanoseconds: since when the feed has reported every change; `.max` while there is no feed.
    private let feedStart = Atomic<Int64>(.max)
    /// In nanoseconds: the last value of `feedStart` other than `.max`. It stays when the feed is lost.
    private let lastFeedStart = Atomic<Int64>(.max)
    /// In nanoseconds: when the feed was last seen alive.
    private let seenAlive = Atomic<Int64>(.min)
    /// In nanoseconds, since every cache hit needs them; nil where no other process writes.
    private let lifetimes: (uncovered: Int64, covered: Int64)?

    /// - Parameter lifetime: 0 or more; nil where no other process writes to the store.
    package init(lifetime: Duration?) {
        self.lifetime = lifetime
        lifetimes = lifetime.map { ($0.nanoseconds, max($0, Self.longestLifetime).nanoseconds) }
    }

    /// From `now` on the feed reports every change. Earlier changes may not have been reported, so an entry that was read
    /// before is not valid any more.
    package func feedStarted(at now: MonotonicInstant) {
        lastFeedStart.store(now.nanoseconds, ordering: .sequentiallyConsistent)
        // `isFeedAlive` reads these two in the opposite order.
        feedStart.store(now.nanoseconds, ordering: .sequentiallyConsistent)
        seenAlive.store(now.nanoseconds, ordering: .sequentiallyConsistent)
    }

    /// The feed was seen alive: it has reported every change that was committed by `now`.
    package func feedSeenAlive(at now: MonotonicInstant) {
        seenAlive.store(now.nanoseconds, ordering: .sequentiallyConsistent)
    }

    /// The feed reports no changes any more.
    package func feedLost() {
        feedStart.store(.max, ordering: .sequentiallyConsistent)
    }

    /// The feed has reported a change without saying of what: no entry that was read before is valid any more. Without a
    /// feed this changes nothing, since entries then expire within `lifetime`.
    package func invalidateAll(at now: MonotonicInstant) {
        if feedStart.load(ordering: .sequentiallyConsistent) == .max { return }
        lastFeedStart.store(now.nanoseconds, ordering: .sequentiallyConsistent)
        feedStart.store(now.nanoseconds, ordering: .sequentiallyConsistent)
    }

    /// Whether the feed reports every change at present.
    package func isFeedAlive(at now: MonotonicInstant) -> Bool {
        guard let lifetimes else { return false }
        return feed(lifetimes.uncovered).aliveUntil > now
    }

    /// Whether an entry is valid.
    /// - Parameter checked: taken before the store was asked for the entry.
    package func isValid(_ checked: MonotonicInstant, at now: MonotonicInstant) -> Bool {
        end(ofEntryChecked: checked, at: now) > now
    }

    /// Until when an entry is valid. An end that is not later than `now` means that the entry has expired. The end moves
    /// later when the feed is seen alive again.
    /// - Parameter checked: taken before the store was asked for the entry.
    package func end(ofEntryChecked checked: MonotonicInstant, at now: MonotonicInstant) -> MonotonicInstant {
        guard let lifetimes else { return .distantFuture }
        let feed = feed(lifetimes.uncovered)
        let uncovered = checked.advanced(byNanoseconds: lifetimes.uncovered)
        guard let start = feed.start else { return uncovered }
        if checked < start { return MonotonicInstant(nanoseconds: .min) }
        guard feed.aliveUntil > now else { return uncovered }
        return max(uncovered, min(checked.advanced(byNanoseconds: lifetimes.covered), feed.aliveUntil))
    }

    /// The latest time at which the store is known to have had the content of an entry: when the entry was read, or when a
    /// feed that covered it was last seen alive, even if that feed is lost by now. This decides for how long the entry is
    /// used while the store does not answer.
    package func lastConfirmed(ofEntryChecked checked: MonotonicInstant) -> MonotonicInstant {
        guard let lifetimes else { return .distantFuture }
        let seen = MonotonicInstant(nanoseconds: seenAlive.load(ordering: .sequentiallyConsistent))
        let start = MonotonicInstant(nanoseconds: lastFeedStart.load(ordering: .sequentiallyConsistent))
        let isCovered = checked >= start && checked.advanced(byNanoseconds: lifetimes.covered) >= seen
        return isCovered ? max(checked, seen) : checked
    }

    /// The check times of the entries that the feed covers now and that expire by `end` unless they are revalidated; nil
    /// where there can be none.
    ///
    /// Entries that were read before the feed started, or started again, are not among them, whatever version the store has
    /// now: a store that was restored from a backup, or that has lost its last commits, gives the same versions to other
    /// contents.
    func checksExpiring(by end: MonotonicInstant, at now: MonotonicInstant) -> Range<MonotonicInstant>? {
        guard let lifetimes else { return nil }
        let feed = feed(lifetimes.uncovered)
        guard let start = feed.start, feed.aliveUntil > now else { return nil }
        let first = max(start, now.advanced(byNanoseconds: 1 - lifetimes.covered))
        let last = end.advanced(byNanoseconds: -lifetimes.covered)
        return first <= last ? first..<last.advanced(byNanoseconds: 1) : nil
    }

    /// Since when the feed has reported every change, nil where there is no feed, and until when it counts as alive.
    private func feed(_ lifetime: Int64) -> (start: MonotonicInstant?, aliveUntil: MonotonicInstant) {
        // `seenAlive` is read first: when a new feed has set it, the start that is read next is that of the new feed or of a
        // later one, never that of the lost feed.
        let seen = MonotonicInstant(nanoseconds: seenAlive.load(ordering: .sequentiallyConsistent))
        let start = feedStart.load(ordering: .sequentiallyConsistent)
        if start == .max { return (nil, MonotonicInstant(nanoseconds: .min)) }
        return (MonotonicInstant(nanoseconds: start), seen.advanced(byNanoseconds: lifetime))
    }
}
