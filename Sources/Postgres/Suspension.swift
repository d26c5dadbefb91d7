internal import Reactor

/// One suspended caller, resumed by an answer, by its deadline or by its cancellation, whichever comes first.
///
/// Unchecked, because its state is only touched on the loop's thread: `wait` and `resume` check that, the deadline
/// fires there, and a cancellation is sent there. Its continuation is let go of when it is resumed, once.
@safe final class Suspension<Answer: Sendable>: @unchecked Sendable {
    typealias Outcome = Result<Answer, PostgresError>

    private let loop: EventLoop
    private var continuation: UnsafeContinuation<Outcome, Never>?
    private var outcome: Outcome?
    private var limit: (deadline: MonotonicInstant, overdue: PostgresError)?
    private var deadline: ScheduledAction?

    init(on loop: EventLoop) {
        self.loop = loop
    }

    /// Suspends until resumed; not at all when that has happened already. To be called once, on the loop.
    /// - Parameter overdue: what is thrown when `deadline` passes first.
    func wait(
        until deadline: MonotonicInstant, overdue: PostgresError, isolation: isolated (any Actor)? = #isolation
    ) async throws(PostgresError) -> Answer {
        loop.checkIsolated()
        if let outcome { return try outcome.get() }
        let outcome = await withTaskCancellationHandler {
            // Capturing the actor keeps the closure, which the standard library takes as nonisolated, on the loop.
            _ = isolation
            return await unsafe withUnsafeContinuation { continuation in
                // An answer or a cancellation may have come between the look above and here: entering the closure can
                // take a turn of the loop.
                if let outcome = self.outcome { return unsafe continuation.resume(returning: outcome) }
                unsafe self.continuation = continuation
                if limit == nil { limit = (deadline, overdue) }
                scheduleLimit()
            }
        } onCancel: {
            loop.execute { self.resume(.failure(.cancelled)) }
        }
        return try outcome.get()
    }

    /// Gives the wait another deadline than it was called with, or will be.
    func extend(until deadline: MonotonicInstant, overdue: PostgresError) {
        loop.checkIsolated()
        if outcome != nil { return }
        limit = (deadline, overdue)
        if unsafe continuation != nil { scheduleLimit() }
    }

    /// Ends the wait, or spares it. Returns false when it has ended already: the answer did not arrive.
    @discardableResult
    func resume(_ outcome: Outcome) -> Bool {
        loop.checkIsolated()
        if self.outcome != nil { return false }
        self.outcome = outcome
        if let deadline { loop.cancel(deadline) }
        deadline = nil
        unsafe continuation?.resume(returning: outcome)
        unsafe continuation = nil
        return true
    }

    private func scheduleLimit() {
        guard let limit else { return }
        if let deadline { loop.cancel(deadline) }
        deadline = loop.schedule(at: limit.deadline) { self.resume(.failure(limit.overdue)) }
    }
}
