import Synchronization

/// Lets one task at a time work for each key, in the order in which they came.
package final class Turns<Key: Hashable & Sendable>: Sendable {
    /// The tasks that wait behind the one that works. A key without a list has no task.
    private let waiting = Mutex<[Key: WaitList<Void, Void>]>([:])

    package init() {}

    /// Runs `body` when the earlier tasks of `key` have ended theirs. A cancellation does not end the wait.
    /// - Parameter body: must end by itself, and must not take a turn of the same key.
    package func take<R, E: Error>(_ key: Key, _ body: () async throws(E) -> R) async throws(E) -> R {
        let waiter = waiting.withLock { waiting -> Waiter<Void>? in
            guard waiting[key] != nil else {
                waiting[key] = WaitList()
                return nil
            }
            return waiting[key]?.enter()
        }
        await waiter?.value()
        defer { pass(key) }
        return try await body()
    }

    private func pass(_ key: Key) {
        let next = waiting.withLock { waiting -> Waiter<Void>? in
            let next = waiting[key]?.popFirst()?.waiter
            if next == nil { waiting[key] = nil }
            return next
        }
        next?.resume(returning: ())
    }
}
