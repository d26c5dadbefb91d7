import Reactor

/// Limits the log lines about one kind of event: the first line is written at once, a further one only after a pause, with the
/// number of events since the last line.
struct LineBound {
    private var last: MonotonicInstant?
    /// How many events there were since the last line.
    private(set) var untold = 0

    /// Counts an event.
    /// - Parameter pause: the shortest time between two lines.
    /// - Returns: the number of events for a line that is due now; nil where none is due.
    mutating func met(at now: MonotonicInstant, pause: Duration) -> Int? {
        untold += 1
        if let last, last.advanced(by: pause) > now { return nil }
        last = now
        return told()
    }

    /// Resets the count, because a line of another kind has it.
    /// - Returns: the number of events since the last line.
    mutating func told() -> Int {
        defer { untold = 0 }
        return untold
    }
}
