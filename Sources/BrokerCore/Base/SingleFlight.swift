internal import Reactor
internal import Synchronization

/// One piece of work per key at a time, for any number of callers.
///
/// A caller joins the work or starts it. Whoever stops waiting leaves the work running for the others.
package final class SingleFlight<Key: Hashable & Sendable, Value: Sendable>: Sendable {
    private final class Flight: Sendable {
        struct State {
            var result: Value?
            var waiters: [UInt64: CheckedContinuation<Value?, Never>] = [:]
            var lastWaiter: UInt64 = 0
            /// Those whose patience ended before they had begun to wait.
            var left: Set<UInt64> = []
        }
        let state = Mutex(State())
    }

    private struct Registry {
        var flights: [Key: (flight: Flight, task: Task<Void, Never>)] = [:]
        var idleWaiters: [CheckedContinuation<Void, Never>] = []
    }

    private let registry = Mutex(Registry())
    private let executor: (any TaskExecutor)?

    /// - Parameter executor: where the work and the limits run, as far as they do not say so themselves; nil for where
    ///   all tasks do.
    package init(on executor: (any TaskExecutor)? = nil) {
        self.executor = executor
    }

    /// The result of the work for `key`, and whether this call started it.
    ///
    /// - Parameters:
    ///   - limit: suspends until it is over and ends the wait, not the work; nil waits as long as the work takes.
    ///   - work: must end by itself; it is not cancelled with the caller, but by `cancelAll`.
    /// - Returns: nil when the caller's patience or its task ended first.
    package func run(
        _ key: Key, within limit: (@Sendable () async -> Void)?, _ work: @escaping @Sendable () async -> Value
    ) async -> (value: Value, isOwn: Bool)? {
        let (flight, isNew) = registry.withLock { registry in
            if let known = registry.flights[key] { return (known.flight, false) }
            let flight = Flight()
            // Begun under the lock, so that whoever cancels finds it. It cannot land before the lock is free.
            let task = Task(executorPreference: executor) {
                let value = await work()
                self.land(flight, key, value)
            }
            registry.flights[key] = (flight, task)
            return (flight, true)
        }
        let value = await withDefaultTaskExecutor(executor) { await wait(for: flight, within: limit) }
        return value.map { ($0, isNew) }
    }

    /// Suspends until no work is in flight.
    package func finish() async {
        await withCheckedContinuation { continuation in
            let isIdle = registry.withLock { registry in
                if registry.flights.isEmpty { return true }
                registry.idleWaiters.append(continuation)
                return false
            }
            if isIdle { continuation.resume() }
        }
    }

    /// Cancels the work that is in flight, so that it waits for nothing any more and comes to its end.
    package func cancelAll() {
        let tasks = registry.withLock { $0.flights.values.map(\.task) }
        for task in tasks { task.cancel() }
    }

    package var count: Int { registry.withLock { $0.flights.count } }

    private func land(_ flight: Flight, _ key: Key, _ value: Value) {
        // Out of the registry first: a caller that comes now starts anew instead of joining what is over.
        let idle = registry.withLock { registry in
            registry.flights[key] = nil
            guard registry.flights.isEmpty else { return [CheckedContinuation<Void, Never>]() }
            defer { registry.idleWaiters = [] }
            return registry.idleWaiters
        }
        let waiters = flight.state.withLock { state in
            state.result = value
            defer { state.waiters = [:] }
            return state.waiters
        }
        for waiter in waiters.values { waiter.resume(returning: value) }
        for waiter in idle { waiter.resume() }
    }

    private func wait(for flight: Flight, within limit: (@Sendable () async -> Void)?) async -> Value? {
        let waiter = flight.state.withLock { state in
            state.lastWaiter += 1
            return state.lastWaiter
        }
        let timer = limit.map { limit in
            // Where the work runs, which this call has just woken or finds awake, and not on one more thread.
            Task(executorPreference: executor) {
                await limit()
                Self.leave(flight, waiter)
            }
        }
        defer { timer?.cancel() }
        return await withTaskCancellationHandler {
            await withCheckedContinuation { continuation in
                let settled: Value?? = flight.state.withLock { state in
                    if let result = state.result { return .some(result) }
                    if Task.isCancelled || state.left.remove(waiter) != nil { return .some(nil) }
                    state.waiters[waiter] = continuation
                    return nil
                }
                if let settled { continuation.resume(returning: settled) }
            }
        } onCancel: {
            Self.leave(flight, waiter)
        }
    }

    private static func leave(_ flight: Flight, _ waiter: UInt64) {
        let continuation = flight.state.withLock { state in
            let continuation = state.waiters.removeValue(forKey: waiter)
            if continuation == nil, state.result == nil { state.left.insert(waiter) }
            return continuation
        }
        continuation?.resume(returning: nil)
    }
}
