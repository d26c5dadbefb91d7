package import Waiting

extension Waiter {
    /// Suspends until `resume` is called, until `deadline`, or until the task is cancelled; the first of them wins. A
    /// list that the waiter stands in still has it after a throw.
    /// - Precondition: the caller runs on `loop`.
    package func value<Success: Sendable>(
        on loop: EventLoop, until deadline: MonotonicInstant, isolation: isolated (any Actor)? = #isolation
    ) async throws(WaitInterrupted) -> Success where Value == Result<Success, WaitInterrupted> {
        let timer = loop.schedule(at: deadline) { self.resume(returning: .failure(.deadlineExceeded)) }
        let outcome = await value { self.resume(returning: .failure(.cancelled)) }
        loop.cancel(timer)
        return try outcome.get()
    }
}
