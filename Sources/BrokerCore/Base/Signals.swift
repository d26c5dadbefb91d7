internal import Synchronization

/// Lets tasks wait until something happened to a key.
package final class Signals<Key: Hashable & Sendable>: Sendable {
    private struct State {
        var waiters: [Key: [UInt64: CheckedContinuation<Void, Never>]] = [:]
        /// Rises with every signal.
        var signals: UInt64 = 0
        /// When a key was signalled last, by that count.
        var last: [Key: UInt64] = [:]
        /// Signals up to this one are taken for signals of every key.
        var horizon: UInt64 = 0
        var lastWaiter: UInt64 = 0
        var left: Set<UInt64> = []
        var isClosed = false

        func wasSignalled(_ key: Key, since ticket: Ticket) -> Bool {
            max(last[key] ?? 0, horizon) > ticket.signals
        }
    }

    /// Shows what a waiter has seen already, so that nothing between its look and its wait is missed.
    package struct Ticket: Sendable {
        fileprivate let signals: UInt64
    }

    private let state = Mutex(State())

    package init() {}

    package func ticket(_ key: Key) -> Ticket {
        state.withLock { Ticket(signals: $0.signals) }
    }

    /// Wakes everybody who waits for `key`.
    package func signal(_ key: Key) {
        let waiters = state.withLock { state in
            // Who holds an older ticket than the horizon looks once more than needed; the table stays small for it.
            if state.last.count >= 10_000 {
                state.last.removeAll(keepingCapacity: true)
                state.horizon = state.signals
            }
            state.signals += 1
            state.last[key] = state.signals
            return state.waiters.removeValue(forKey: key) ?? [:]
        }
        for waiter in waiters.values { waiter.resume() }
    }

    /// Whether nobody waits any more.
    var isClosed: Bool { state.withLock { $0.isClosed } }

    /// Wakes everybody who waits for anything. From now on nobody waits.
    package func close() {
        let waiters = state.withLock { state in
            state.isClosed = true
            defer { state.waiters = [:] }
            return state.waiters.values.flatMap(\.values)
        }
        for waiter in waiters { waiter.resume() }
    }

    /// Suspends until `key` is signalled after the ticket was taken, until `limit` returns, or until the task is
    /// cancelled.
    package func wait(for key: Key, since ticket: Ticket, within limit: @escaping @Sendable () async -> Void) async {
        let waiter = state.withLock { state in
            state.lastWaiter += 1
            return state.lastWaiter
        }
        let timer = Task {
            await limit()
            self.leave(key, waiter)
        }
        await withTaskCancellationHandler {
            await withCheckedContinuation { continuation in
                let isOver = state.withLock { state in
                    if state.isClosed || state.left.remove(waiter) != nil { return true }
                    if state.wasSignalled(key, since: ticket) { return true }
                    state.waiters[key, default: [:]][waiter] = continuation
                    return false
                }
                if isOver { continuation.resume() }
            }
        } onCancel: {
            self.leave(key, waiter)
        }
        timer.cancel()
        // The timer may have left after the wait was over; its mark would stay for ever.
        await timer.value
        _ = state.withLock { $0.left.remove(waiter) }
    }

    private func leave(_ key: Key, _ waiter: UInt64) {
        let continuation = state.withLock { state in
            let continuation = state.waiters[key]?.removeValue(forKey: waiter)
            if state.waiters[key]?.isEmpty == true { state.waiters[key] = nil }
            if continuation == nil { state.left.insert(waiter) }
            return continuation
        }
        continuation?.resume()
    }
}
