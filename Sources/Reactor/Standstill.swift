/// What a loop knows of the times at which its process stood still: stopped by a signal, frozen, or with its virtual machine. What
/// came meanwhile waited in the sockets, and the loop reads it as if it had come afterwards.
struct Standstill {
    /// A loop that has not gone on for this long has stood still, in nanoseconds. It is more than a turn takes on a busy machine.
    static let shortest: Int64 = 3_000_000_000
    /// For how long after it what is read may have waited, in nanoseconds: for as long as it took, since a peer that gets no
    /// acknowledgement sends again after pauses that double each time (RFC 6298 §5.5), within these bounds.
    static let aftermath: ClosedRange<Int64> = 5_000_000_000...60_000_000_000

    private var began = MonotonicInstant(nanoseconds: 0)
    /// When the loop went on.
    private var ended = MonotonicInstant(nanoseconds: .min)
    /// When what is read has no more to do with it.
    private var over = MonotonicInstant(nanoseconds: .min)

    /// The loop was at work at `start`, and is again at `end`.
    @inline(__always)
    mutating func note(from start: MonotonicInstant, to end: MonotonicInstant) {
        if end.nanoseconds &- start.nanoseconds >= Self.shortest { noteStandstill(from: start, to: end) }
    }

    @inline(never)
    private mutating func noteStandstill(from start: MonotonicInstant, to end: MonotonicInstant) {
        // What waited during the one before may not be read yet.
        if start >= over { began = start }
        let length = end.nanoseconds - start.nanoseconds
        let rest = min(max(length, Self.aftermath.lowerBound), Self.aftermath.upperBound)
        over = max(over, end.advanced(byNanoseconds: rest))
        ended = end
    }

    /// Since when what is read at `now` may have waited; nil where it has come just now.
    /// - Parameters:
    ///   - turnBegan: when the loop's turn began, which is not over yet.
    ///   - quietSince: when all had been read that waited at the place that is read from.
    func arrival(
        at now: MonotonicInstant, turnBegan: MonotonicInstant, quietSince: MonotonicInstant
    ) -> MonotonicInstant? {
        var present = self
        present.note(from: turnBegan, to: now)
        return now < present.over && quietSince < present.ended ? present.began : nil
    }
}
