internal import Synchronization

/// A value that one task on a loop waits for and that any thread delivers. The wait also ends at a deadline and when
/// the task is cancelled.
///
/// The first outcome wins: a value, the deadline or the cancellation.
package final class Promise<Value: Sendable>: Sendable {
    private struct State {
        var outcome: Result<Value, WaitInterrupted>?
        var continuation: CheckedContinuation<Result<Value, WaitInterrupted>, Never>?
    }

    private let state = Mutex(State())

    package init() {}

    /// Delivers the value. Returns false when the wait has already ended, so that the caller can keep the value or pass
    /// it on.
    @discardableResult
    package func fulfill(_ value: Value) -> Bool { settle(.success(value)) }

    /// Suspends until the value has been delivered.
    /// - Precondition: the caller runs on `loop`, and no other task waits for this value.
    package func wait(
        on loop: EventLoop, until deadline: MonotonicInstant, isolation: isolated (any Actor)? = #isolation
    ) async throws(WaitInterrupted) -> Value {
        let timer = loop.schedule(at: deadline) { _ = self.settle(.failure(.deadlineExceeded)) }
        let outcome = await withTaskCancellationHandler {
            // The closure would run outside the loop's thread if it did not capture the isolating actor.
            _ = isolation
            return await withCheckedContinuation { continuation in
                let settled = state.withLock { state in
                    if state.outcome == nil { state.continuation = continuation }
                    return state.outcome
                }
                if let settled { continuation.resume(returning: settled) }
            }
        } onCancel: {
            _ = settle(.failure(.cancelled))
        }
        loop.cancel(timer)
        return try outcome.get()
    }

    private func settle(_ outcome: Result<Value, WaitInterrupted>) -> Bool {
        let (won, continuation) = state.withLock { state in
            if state.outcome != nil {
                return (false, nil as CheckedContinuation<Result<Value, WaitInterrupted>, Never>?)
            }
            state.outcome = outcome
            defer { state.continuation = nil }
            return (true, state.continuation)
        }
        continuation?.resume(returning: outcome)
        return won
    }
}
