import Reactor

/// How much a loop does for one connection before other connections have their turn.
struct TimeSlice {
    /// How often the connection was read from.
    var reads = 0
    /// How many of its requests were begun.
    var requests = 0
    private var end: MonotonicInstant?

    private static let mostReads = 4
    /// In nanoseconds, from the second request on.
    private static let time: Int64 = 25_000

    mutating func isSpent(on loop: EventLoop) -> Bool {
        if reads >= Self.mostReads { return true }
        if requests == 0 { return false }
        let now = loop.now
        if let end { return now >= end }
        end = now.advanced(byNanoseconds: Self.time)
        return false
    }
}
