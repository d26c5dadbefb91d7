import Reactor

/// The reads that travel in one pipeline: those that arrived while no connection was free, or in one turn of the loop.
///
/// Not Sendable: belongs to one pool, which is an actor.
final class ReadBatch {
    /// The statement of one caller, and its wait for the answer.
    final class Read {
        let command: PostgresCommand
        let deadline: MonotonicInstant
        let answer: Suspension<PostgresResult>
        fileprivate(set) var isWaitedFor = true

        init(_ command: PostgresCommand, until deadline: MonotonicInstant, on loop: EventLoop) {
            self.command = command
            self.deadline = deadline
            answer = Suspension(on: loop)
        }
    }

    private(set) var reads: [Read] = []
    private var waitedFor = 0
    private var isRunning = false
    /// The task that borrows a connection and runs the batch on it. It belongs to none of the callers, so that a caller
    /// which is cancelled does not take the answers of the others with it.
    var runner: Task<Void, Never>?

    func add(_ read: Read) {
        reads.append(read)
        waitedFor += 1
    }

    /// Notes that a caller has its answer, or has stopped waiting.
    ///
    /// When no caller waits any more, a batch that is still in the queue for a connection leaves the queue. A running
    /// batch whose time is up is not cancelled: it ends at its own deadline, the latest one of its reads, and that
    /// timeout tells the pool that the server is silent.
    /// - Parameter error: why the caller stopped waiting; nil for an answer.
    /// - Returns: whether the batch was cancelled, so that no read may join it any more.
    func callerLeft(_ read: Read, after error: PostgresError?) -> Bool {
        read.isWaitedFor = false
        waitedFor -= 1
        guard waitedFor == 0, let error, !isRunning || error == .cancelled else { return false }
        runner?.cancel()
        return true
    }

    /// Takes the reads to run. From here on the deadline of each read counts, and no longer the limit of the wait for a
    /// connection.
    func begin() -> [Read] {
        isRunning = true
        let begun = reads.filter(\.isWaitedFor)
        for read in begun { read.answer.extend(until: read.deadline, overdue: .timedOut) }
        return begun
    }
}
