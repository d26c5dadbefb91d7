import Synchronization

/// One piece of work for each key at a time, for any number of callers.
///
/// A caller joins the work or starts it. When a caller stops waiting, the work goes on for the others.
package final class SingleFlight<Key: Hashable & Sendable, Value: Sendable>: Sendable {
    private struct Flight {
        let task: Task<Void, Never>
        var waiters = WaitList<Void, Value?>()
    }

    private struct State {
        var flights: [Key: Flight] = [:]
        /// The tasks that wait until there is no flight.
        var idle = WaitList<Void, Void>()
    }

    private let state = Mutex(State())
    private let executor: (any TaskExecutor)?

    /// - Parameter executor: where the work and the limits run, unless they are bound to an actor; nil for the default
    ///   executor.
    package init(on executor: (any TaskExecutor)? = nil) {
        self.executor = executor
    }

    /// The result of the work for `key`, and whether this call started it.
    ///
    /// - Parameters:
    ///   - limit: suspends until it is over and ends the wait, not the work; nil waits as long as the work takes.
    ///   - work: must end by itself; it is not cancelled with the caller, but by `cancelAll`.
    /// - Returns: nil when the limit or the caller's task ended first.
    package func run(
        _ key: Key, within limit: (@Sendable () async -> Void)?, _ work: @escaping @Sendable () async -> Value
    ) async -> (value: Value, isOwn: Bool)? {
        let (waiter, isNew) = state.withLock { state in
            if let waiter = state.flights[key]?.waiters.enter() { return (waiter, false) }
            // Begun under the lock, so that `cancelAll` finds it. It cannot land before the lock is free.
            var flight = Flight(task: Task(executorPreference: executor) { self.land(key, await work()) })
            let waiter = flight.waiters.enter()
            state.flights[key] = flight
            return (waiter, true)
        }
        // It runs where the work does: that thread is awake already.
        let timer = limit.map { limit in
            Task(executorPreference: executor) {
                await limit()
                self.leave(key, waiter)
            }
        }
        defer { timer?.cancel() }
        return await waiter.value { self.leave(key, waiter) }.map { ($0, isNew) }
    }

    /// Starts the work for `key` and does not wait for it. Does nothing while work for that key is in flight, or `limit`
    /// pieces of work or more are.
    /// - Parameter work: must end by itself; it is cancelled by `cancelAll`.
    package func start(_ key: Key, below limit: Int, _ work: @escaping @Sendable () async -> Value) {
        state.withLock { state in
            guard state.flights[key] == nil, state.flights.count < limit else { return }
            state.flights[key] = Flight(task: Task(executorPreference: executor) { self.land(key, await work()) })
        }
    }

    /// Gives this value to the callers that wait for the work of `key` now. The work goes on, and callers that come later wait for
    /// it.
    package func answer(_ key: Key, with value: Value) {
        let waiters = state.withLock { $0.flights[key]?.waiters.removeAll() ?? [] }
        for waiter in waiters { waiter.resume(returning: value) }
    }

    /// Suspends until no work is in flight.
    package func finish() async {
        await state.withLock { $0.flights.isEmpty ? nil : $0.idle.enter() }?.value()
    }

    /// Cancels the work that is in flight, so that it waits for nothing any more and comes to its end.
    package func cancelAll() {
        let tasks = state.withLock { $0.flights.values.map { $0.task } }
        for task in tasks { task.cancel() }
    }

    /// How many pieces of work are in flight.
    package var count: Int { state.withLock { $0.flights.count } }

    private func land(_ key: Key, _ value: Value) {
        // In one step with the removal of the flight: a caller that comes now starts anew instead of joining what is over.
        let (waiters, idle) = state.withLock { state in
            var flight = state.flights.removeValue(forKey: key)
            return (flight?.waiters.removeAll() ?? [], state.flights.isEmpty ? state.idle.removeAll() : [])
        }
        for waiter in waiters { waiter.resume(returning: value) }
        for waiter in idle { waiter.resume() }
    }

    private func leave(_ key: Key, _ waiter: Waiter<Value?>) {
        state.withLock { $0.flights[key]?.waiters.remove(waiter) }?.resume(returning: nil)
    }
}
