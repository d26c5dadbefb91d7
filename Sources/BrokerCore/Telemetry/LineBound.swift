internal import Reactor

/// Bounds the lines of the log that tell of one thing by time: the first is written at once, and a further one not before a
/// pause is over, with how often it was met since the last line.
struct LineBound {
    private var last: MonotonicInstant?
    /// How often it was met since the last line.
    private(set) var untold = 0

    /// It was met once more.
    /// - Parameter pause: the least time between two lines.
    /// - Returns: what the line that is due tells, which is how often it was met since the last one; nil for no line.
    mutating func met(at now: MonotonicInstant, pause: Duration) -> Int? {
        untold += 1
        if let last, last.advanced(by: pause) > now { return nil }
        last = now
        return told()
    }

    /// A line of another kind tells of what is untold.
    /// - Returns: how often it was met since the last line.
    mutating func told() -> Int {
        defer { untold = 0 }
        return untold
    }
}
