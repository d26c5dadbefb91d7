import Containers
import Synchronization

/// Lets tasks wait until a key is signalled.
package final class KeyedSignal<Key: Hashable & Sendable>: Sendable {
    private struct State {
        var waiters: [Key: WaitList<Void, Void>] = [:]
        /// Rises with every signal.
        var signals: UInt64 = 0
        /// The number of each key's last signal.
        var last = BoundedTable<Key, UInt64>(capacity: 5_000)
        /// Signals up to this number count as signals of every key.
        var horizon: UInt64 = 0
        var isClosed = false

        func wasSignalled(_ key: Key, since ticket: Ticket) -> Bool {
            max(last[key] ?? 0, horizon) > ticket.signals
        }
    }

    /// Says which signals came before a task looked at what it waits for, so that it misses none that comes between its
    /// look and its wait.
    package struct Ticket: Sendable {
        fileprivate let signals: UInt64
    }

    private let state = Mutex(State())

    package init() {}

    package func ticket(_ key: Key) -> Ticket {
        state.withLock { Ticket(signals: $0.signals) }
    }

    /// Resumes all tasks that wait for `key`.
    package func signal(_ key: Key) {
        let waiters = state.withLock { state in
            state.signals += 1
            // A task whose ticket is older than a forgotten signal looks once more than needed.
            if let forgotten = state.last.setNewest(state.signals, forKey: key) { state.horizon = forgotten.value }
            var waiters = state.waiters.removeValue(forKey: key)
            return waiters?.removeAll() ?? []
        }
        for waiter in waiters { waiter.resume() }
    }

    /// Whether waits end at once.
    package var isClosed: Bool { state.withLock { $0.isClosed } }

    /// Resumes all waiting tasks. From now on every wait ends at once.
    package func close() {
        let lists = state.withLock { state in
            state.isClosed = true
            defer { state.waiters = [:] }
            return Array(state.waiters.values)
        }
        for var list in lists {
            for waiter in list.removeAll() { waiter.resume() }
        }
    }

    /// Suspends until `key` is signalled after the ticket was taken, until `limit` returns, or until the task is
    /// cancelled. `limit` is not called where the key has been signalled already, and has returned when the wait ends.
    package func wait(for key: Key, since ticket: Ticket, within limit: @escaping @Sendable () async -> Void) async {
        let waiter = state.withLock { state -> Waiter<Void>? in
            if state.isClosed || state.wasSignalled(key, since: ticket) { return nil }
            return state.waiters[key, default: WaitList()].enter()
        }
        guard let waiter else { return }
        let timer = Task {
            await limit()
            self.leave(key, waiter)
        }
        await waiter.value { self.leave(key, waiter) }
        timer.cancel()
        await timer.value
    }

    private func leave(_ key: Key, _ waiter: Waiter<Void>) {
        let waiter = state.withLock { state in
            let removed = state.waiters[key]?.remove(waiter)
            if state.waiters[key]?.isEmpty == true { state.waiters[key] = nil }
            return removed
        }
        waiter?.resume()
    }
}
