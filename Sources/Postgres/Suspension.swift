internal import Reactor
internal import Synchronization

/// One suspended caller. An answer, its deadline or the cancellation of its task resumes it, whichever comes first.
///
/// `wait`, `extend` and `resume` run on the loop's thread; a cancellation is forwarded to that thread. The mutex shows
/// the compiler that no state is shared without a lock. It is never contended.
final class Suspension<Answer: Sendable>: Sendable {
    typealias Outcome = Result<Answer, PostgresError>

    // `@safe`: the continuation is resumed once, by the call of `resume` that stores the outcome.
    @safe private struct State {
        var continuation: UnsafeContinuation<Outcome, Never>?
        var outcome: Outcome?
        var limit: (deadline: MonotonicInstant, overdue: PostgresError)?
        var deadline: ScheduledAction?
    }

    private let loop: EventLoop
    private let state = Mutex(State())

    init(on loop: EventLoop) {
        self.loop = loop
    }

    /// Suspends until resumed. Returns at once when `resume` was called before. To be called once, on the loop.
    /// - Parameter overdue: the error to throw when `deadline` passes first.
    func wait(
        until deadline: MonotonicInstant, overdue: PostgresError, isolation: isolated (any Actor)? = #isolation
    ) async throws(PostgresError) -> Answer {
        loop.checkIsolated()
        if let outcome = state.withLock({ $0.outcome }) { return try outcome.get() }
        let outcome = await withTaskCancellationHandler {
            // The standard library takes the closure as nonisolated. Capturing the actor keeps the closure on the loop.
            _ = isolation
            return await unsafe withUnsafeContinuation { continuation in
                // Entering the closure can take a turn of the loop, in which an answer or a cancellation arrives.
                let outcome = state.withLock { state -> Outcome? in
                    if let outcome = state.outcome { return outcome }
                    unsafe state.continuation = continuation
                    if state.limit == nil { state.limit = (deadline, overdue) }
                    return nil
                }
                if let outcome { unsafe continuation.resume(returning: outcome) } else { scheduleLimit() }
            }
        } onCancel: {
            loop.execute { self.resume(with: .failure(.cancelled)) }
        }
        return try outcome.get()
    }

    /// Replaces the deadline of the current wait, or of the next wait if none has begun.
    func extend(until deadline: MonotonicInstant, overdue: PostgresError) {
        loop.checkIsolated()
        let isWaiting = state.withLock { state in
            if state.outcome != nil { return false }
            state.limit = (deadline, overdue)
            return unsafe state.continuation != nil
        }
        if isWaiting { scheduleLimit() }
    }

    /// Ends the wait, also one that has not begun.
    /// - Returns: false when the wait had ended already; the caller does not get this outcome.
    @discardableResult
    func resume(with outcome: Outcome) -> Bool {
        loop.checkIsolated()
        let before = state.withLock { state -> State? in
            if state.outcome != nil { return nil }
            let before = state
            state.outcome = outcome
            unsafe state.continuation = nil
            state.deadline = nil
            return before
        }
        guard let before else { return false }
        if let deadline = before.deadline { loop.cancel(deadline) }
        unsafe before.continuation?.resume(returning: outcome)
        return true
    }

    private func scheduleLimit() {
        let (limit, earlier) = state.withLock { ($0.limit, $0.deadline) }
        if let earlier { loop.cancel(earlier) }
        guard let limit else { return }
        let scheduled = loop.schedule(at: limit.deadline) { self.resume(with: .failure(limit.overdue)) }
        state.withLock { $0.deadline = scheduled }
    }
}
