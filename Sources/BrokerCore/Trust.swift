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
    /// word of it leaves a change that nobody tells of.
    static let longestBelief: Duration = .seconds(60)
    /// In nanoseconds: since when every change is told of; `.max` while that is not so.
    private let following = Atomic<Int64>(.max)
    /// In nanoseconds: when the feed was last seen to work.
    private let alive = Atomic<Int64>(.min)

    package init(validity: Duration?) {
        self.validity = validity
    }

    /// From `now` on every change is told of; earlier ones may not have been, so nothing read before is believed until
    /// it was looked at again.
    package func follow(_ now: MonotonicInstant) {
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
        if following.load(ordering: .sequentiallyConsistent) != .max {
            following.store(now.nanoseconds, ordering: .sequentiallyConsistent)
        }
    }

    /// Whether every change is told of at present.
    package func isFollowing(_ now: MonotonicInstant) -> Bool {
        guard let validity else { return false }
        return since(now, validity).isAlive
    }

    /// Whether what was read may be believed.
    /// - Parameter checked: taken before the store was asked.
    package func believes(_ checked: MonotonicInstant, _ now: MonotonicInstant) -> Bool {
        guard let validity else { return true }
        let feed = since(now, validity)
        if let start = feed.start {
            if checked < start { return false }
            if feed.isAlive { return checked.advanced(by: max(validity, Self.longestBelief)) > now }
        }
        return checked.advanced(by: validity) > now
    }

    /// Since when the feed tells of every change, nil where it does not, and whether it was seen alive.
    private func since(_ now: MonotonicInstant, _ validity: Duration) -> (start: MonotonicInstant?, isAlive: Bool) {
        // Seen alive first: with the sign of life of a feed that has just begun again goes its own beginning, or a later
        // one, never that of the feed which was lost.
        let seen = MonotonicInstant(nanoseconds: alive.load(ordering: .sequentiallyConsistent))
        let start = following.load(ordering: .sequentiallyConsistent)
        if start == .max { return (nil, false) }
        return (MonotonicInstant(nanoseconds: start), seen.advanced(by: validity) > now)
    }
}
