internal import Reactor

/// How much one connection may do before others have their turn.
struct TurnBudget {
    /// How often the connection was read from.
    var reads = 0
    /// How many of its requests were begun.
    var requests = 0
    private var end: MonotonicInstant?

    private static let mostReads = 4
    /// In nanoseconds, from the second request on.
    private static let time: Int64 = 25_000

    mutating func isSpent() -> Bool {
        if reads >= Self.mostReads { return true }
        if requests == 0 { return false }
        let now = MonotonicInstant.now
        if let end { return now >= end }
        end = now.advanced(byNanoseconds: Self.time)
        return false
    }
}
