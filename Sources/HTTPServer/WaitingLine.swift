internal import Reactor

/// Connections that wait for their turn on a loop, by their slots, in the order of their arrival.
///
/// First come is first served, for as long as nobody in a crowd has waited for too long. From then on the newest goes
/// first, and the oldest only now and then: what is served is served in time, where otherwise everybody would be served
/// late. Who waited for too long is to be refused, which costs about as much as serving, and so it is done at a pace that
/// leaves most of the time to the others. Without a crowd nobody is refused: those few are served sooner than they would
/// come again.
struct WaitingLine {
    struct Entry: Equatable {
        let slot: Int
        /// When it began to wait.
        let since: MonotonicInstant
    }

    struct Turn: Equatable {
        let slot: Int
        let since: MonotonicInstant
        let isRefused: Bool
    }

    /// A ring: `count` entries from `first` on.
    private var entries: [Entry] = []
    private var first = 0
    private(set) var count = 0
    private var turns = 0
    private var standingSince: MonotonicInstant?

    /// So many are a crowd.
    static let leastCrowd = 64
    /// Of so many turns, one is the oldest's where the newest go first.
    static let turnsForOldest = 16

    mutating func append(_ entry: Entry) {
        if count == entries.count { grow() }
        entries[(first &+ count) & (entries.count &- 1)] = entry
        count &+= 1
    }

    /// Takes note of a turn of the loop, and returns since when the line has been a crowd whose oldest waited for too long;
    /// nil where it is none.
    /// - Parameter limit: who began to wait before has waited for too long.
    mutating func standing(at time: MonotonicInstant, limit: MonotonicInstant) -> MonotonicInstant? {
        standingSince = isTooLong(limit) ? standingSince ?? time : nil
        return standingSince
    }

    /// Takes out whose turn it is; nil where nobody waits.
    /// - Parameter limit: who began to wait before has waited for too long.
    mutating func next(limit: MonotonicInstant) -> Turn? {
        if count == 0 { return nil }
        let isTooLong = isTooLong(limit)
        if isTooLong { turns &+= 1 }
        let isNewestFirst = isTooLong && !turns.isMultiple(of: Self.turnsForOldest)
        count &-= 1
        let entry = entries[isNewestFirst ? (first &+ count) & (entries.count &- 1) : first]
        if !isNewestFirst { first = (first &+ 1) & (entries.count &- 1) }
        return Turn(slot: entry.slot, since: entry.since, isRefused: isTooLong && entry.since < limit)
    }

    /// Whether a crowd waits whose oldest has waited for too long.
    private func isTooLong(_ limit: MonotonicInstant) -> Bool {
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
