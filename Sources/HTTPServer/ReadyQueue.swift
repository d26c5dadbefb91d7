import Reactor

/// Ready connections of one loop, by their slots, in the order in which they became ready.
///
/// The queue is first in, first out, until a crowd waits in it and its oldest entry has waited for too long. From then on
/// it is mostly last in, first out: the newest connections are served in time, where otherwise all would be served late.
/// An entry that waited for too long is refused. Refusing costs about as much as serving, so the oldest entry is taken
/// only once in `turnsForOldest` turns, and most of the time is left to the newest. Without a crowd no entry is refused:
/// so few are served sooner than their clients would try again.
struct ReadyQueue {
    struct Entry: Equatable {
        let slot: Int
        /// When the connection became ready.
        let since: MonotonicInstant
    }

    struct Turn: Equatable {
        let slot: Int
        let since: MonotonicInstant
        let isRefused: Bool
    }

    /// A ring buffer: `count` entries from `first` on.
    private var entries: [Entry] = []
    private var first = 0
    private(set) var count = 0
    private var turns = 0
    private var overloadBegan: MonotonicInstant?

    /// The least number of entries that is a crowd.
    static let leastCrowd = 64
    /// While the newest entries go first, one of this many turns is the oldest entry's.
    static let turnsForOldest = 16

    mutating func append(_ entry: Entry) {
        if count == entries.count { grow() }
        entries[(first &+ count) & (entries.count &- 1)] = entry
        count &+= 1
    }

    /// Takes note of a turn of the loop.
    /// - Parameter limit: an entry from before this has waited for too long.
    /// - Returns: the turn since which a crowd whose oldest entry has waited for too long was found in every turn; nil
    ///   when none is found now.
    mutating func overload(at time: MonotonicInstant, limit: MonotonicInstant) -> MonotonicInstant? {
        overloadBegan = isOverloaded(limit) ? overloadBegan ?? time : nil
        return overloadBegan
    }

    /// Removes the entry whose turn it is; nil when the queue is empty.
    /// - Parameter limit: an entry from before this has waited for too long.
    mutating func next(limit: MonotonicInstant) -> Turn? {
        if count == 0 { return nil }
        let isOverloaded = isOverloaded(limit)
        if isOverloaded { turns &+= 1 }
        let isNewestFirst = isOverloaded && !turns.isMultiple(of: Self.turnsForOldest)
        count &-= 1
        let entry = entries[isNewestFirst ? (first &+ count) & (entries.count &- 1) : first]
        if !isNewestFirst { first = (first &+ 1) & (entries.count &- 1) }
        return Turn(slot: entry.slot, since: entry.since, isRefused: isOverloaded && entry.since < limit)
    }

    private func isOverloaded(_ limit: MonotonicInstant) -> Bool {
        count >= Self.leastCrowd && entries[first].since < limit
    }

    private mutating func grow() {
        // A power of two, so that a position is found by masking.
        var larger = [Entry](repeating: Entry(slot: -1, since: .distantFuture), count: max(64, entries.count * 2))
        for index in 0..<count { larger[index] = entries[(first + index) & (entries.count - 1)] }
        entries = larger
        first = 0
    }
}
