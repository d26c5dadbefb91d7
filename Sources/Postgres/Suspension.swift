import Reactor
import Synchronization
import Waiting

/// One suspended caller. An answer, its deadline or the cancellation of its task resumes it, whichever comes first.
///
/// `wait`, `extend` and `resume` run on the loop's thread; a cancellation is forwarded to that thread. The mutex shows
/// the compiler that no state is shared without a lock. It is never contended.
final class Suspension<Answer: Sendable>: Sendable {
    typealias Outcome = Result<Answer, PostgresError>

    private struct Limit {
        var end: (deadline: MonotonicInstant, overdue: PostgresError)?
        /// The action at the end; nil while there is no wait.
        var scheduled: ScheduledAction?
    }

    private let loop: EventLoop
    private let waiter = Waiter<Outcome>()
    private let limit = Mutex(Limit())

    init(on loop: EventLoop) {
        self.loop = loop
    }

    /// Suspends until resumed. To be called once, on the loop.
    /// - Parameter overdue: the error to throw when `deadline` passes first.
    func wait(
        until deadline: MonotonicInstant, overdue: PostgresError, isolation: isolated (any Actor)? = #isolation
    ) async throws(PostgresError) -> Answer {
        loop.checkIsolated()
        let end = limit.withLock { $0.end } ?? (deadline, overdue)
        schedule(end)
        let outcome = await waiter.value { self.loop.execute { self.resume(with: .failure(.cancelled)) } }
        let scheduled = limit.withLock { limit in
            defer { limit.scheduled = nil }
            return limit.scheduled
        }
        if let scheduled { loop.cancel(scheduled) }
        return try outcome.get()
    }

    /// Replaces the deadline of the current wait, or of the next wait if none has begun.
    func extend(until deadline: MonotonicInstant, overdue: PostgresError) {
        loop.checkIsolated()
        if let scheduled = limit.withLock({ $0.scheduled }) {
            loop.cancel(scheduled)
            schedule((deadline, overdue))
        } else {
            limit.withLock { $0.end = (deadline, overdue) }
        }
    }

    /// Ends the wait, also one that has not begun.
    /// - Returns: false when the wait had ended already; the caller does not get this outcome.
    @discardableResult
    func resume(with outcome: Outcome) -> Bool {
        loop.checkIsolated()
        return waiter.resume(returning: outcome)
    }

    private func schedule(_ end: (deadline: MonotonicInstant, overdue: PostgresError)) {
        let scheduled = loop.schedule(at: end.deadline) { self.resume(with: .failure(end.overdue)) }
        limit.withLock { $0.scheduled = scheduled }
    }
}
