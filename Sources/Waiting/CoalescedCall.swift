import Synchronization

/// One call at a time for any number of callers, whose result is never older than their request for it.
///
/// A result that was being obtained when a caller came may lack what was done since the call began. So a caller that
/// comes while the call is under way waits for its end, and then for the next call, which all callers share that came
/// meanwhile.
package final class CoalescedCall<Value: Sendable>: Sendable {
    private struct State {
        /// The callers that get the result of the call under way.
        var current = WaitList<Void, Value?>()
        /// The callers that came after it had begun.
        var next = WaitList<Void, Value?>()
        /// Makes the calls, one after the other, while there are callers.
        var task: Task<Void, Never>?
    }

    private let call: @Sendable () async -> Value
    private let state = Mutex(State())

    /// - Parameter call: must end by itself; it is not cancelled with the callers.
    package init(_ call: @escaping @Sendable () async -> Value) {
        self.call = call
    }

    /// The result of a call that begins after this one: a wait of two calls at most.
    /// - Returns: nil when the caller's task was cancelled first.
    package func value() async -> Value? {
        if Task.isCancelled { return nil }
        let waiter = state.withLock { state in
            // Detached: it goes on for other callers, so it takes no task-local value, such as a trace, from the first.
            if state.task == nil { state.task = Task.detached(priority: Task.currentPriority) { await self.run() } }
            return state.next.enter()
        }
        return await waiter.value {
            let waiter = self.state.withLock { $0.next.remove(waiter) ?? $0.current.remove(waiter) }
            waiter?.resume(returning: nil)
        }
    }

    /// Suspends until no call is under way. A caller that comes later may begin another one.
    package func finish() async {
        await state.withLock { $0.task }?.value
    }

    private func run() async {
        while true {
            let isWanted = state.withLock { state in
                swap(&state.current, &state.next)
                if state.current.isEmpty { state.task = nil }
                return !state.current.isEmpty
            }
            guard isWanted else { return }
            let value = await call()
            for waiter in state.withLock({ $0.current.removeAll() }) { waiter.resume(returning: value) }
        }
    }
}
