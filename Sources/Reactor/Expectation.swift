internal import Synchronization

/// A value that one task on a loop waits for and any thread delivers, with a deadline and cancellation.
///
/// Settled once: what comes second finds it settled and is told so.
package final class Expectation<Value: Sendable>: Sendable {
    private struct State {
        var outcome: Result<Value, WaitInterrupted>?
        var continuation: CheckedContinuation<Result<Value, WaitInterrupted>, Never>?
    }

    private let state = Mutex(State())

    package init() {}

    /// Delivers the value. False when the wait is over already, so that what was to be given away can be kept.
    @discardableResult
    package func fulfil(_ value: Value) -> Bool { settle(.success(value)) }

    /// Suspends until the value is there.
    /// - Precondition: the caller runs on `loop`, and nobody else waits.
    package func wait(
        on loop: EventLoop, until deadline: MonotonicInstant, isolation: isolated (any Actor)? = #isolation
    ) async throws(WaitInterrupted) -> Value {
        let timer = loop.schedule(at: deadline) { _ = self.settle(.failure(.deadlineExceeded)) }
        let outcome = await withTaskCancellationHandler {
            // The standard library takes a closure that would leave the loop's thread. Capturing the actor keeps it.
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
