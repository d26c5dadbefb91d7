import Synchronization

/// Calls a function that suspends from a thread that may block, such as one that reads a configuration.
package enum BlockingCall {
    private final class Outcome<Value: Sendable>: Sendable {
        let value = Mutex<Value?>(nil)
        let isThere = Semaphore()
    }

    /// Blocks until `body` has returned; `body` limits how long that takes. Not to be called by a task or on an event loop, whose
    /// thread `body` may need.
    package static func result<Value: Sendable>(_ body: @escaping @Sendable () async -> Value) -> Value {
        let outcome = Outcome<Value>()
        Task {
            let value = await body()
            outcome.value.withLock { $0 = value }
            outcome.isThere.signal()
        }
        outcome.isThere.wait()
        guard let value = outcome.value.withLock(\.self) else {
            preconditionFailure("a value is there once it is signalled")
        }
        return value
    }
}
