internal import Reactor

/// Reads that travel in one pipeline: those that came while no connection was free, or in one turn of the loop.
///
/// Unchecked, because its state is only touched on the loop's thread, by its pool.
final class ReadBatch: @unchecked Sendable {
    /// One caller's statement, and the caller. Unchecked as the batch.
    final class Read: @unchecked Sendable {
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
    /// What borrows a connection and runs the batch on it: nobody's own, so that whoever is cancelled takes no answer
    /// from the others.
    var runner: Task<Void, Never>?

    func add(_ read: Read) {
        reads.append(read)
        waitedFor += 1
    }

    /// The caller has its answer, or has given up. A batch for which nobody waits any more gives its place up; where it
    /// runs and time is up, it ends by its own deadline, which is the latest of its reads', and shows thereby that the
    /// server is silent.
    /// - Returns: whether it has given up, and nobody may join it any more.
    func left(_ read: Read, after error: PostgresError?) -> Bool {
        read.isWaitedFor = false
        waitedFor -= 1
        guard waitedFor == 0, let error, !isRunning || error == .cancelled else { return false }
        runner?.cancel()
        return true
    }

    /// Takes the reads to run. From here on it is their own deadlines that count, not those of the wait for a connection.
    func begin() -> [Read] {
        isRunning = true
        let begun = reads.filter(\.isWaitedFor)
        for read in begun { read.answer.extend(until: read.deadline, overdue: .timedOut) }
        return begun
    }
}
