import Synchronization

/// One task that waits, and the value that ends its wait.
///
/// Any thread may call `resume`, before the task suspends or after. The first call wins, and the task is resumed exactly
/// once. So it does not matter how a cancellation, a deadline and a value race with each other and with the beginning of
/// the wait.
package final class Waiter<Value: Sendable>: Sendable {
    private enum Phase {
        case entered
        case suspended(CheckedContinuation<Value, Never>)
        case resumed(Value)
    }

    /// Where it stands in its list.
    let place: Int
    private let phase = Mutex(Phase.entered)

    /// A waiter in no list: its owner alone resumes it.
    package convenience init() {
        self.init(place: 0)
    }

    init(place: Int) {
        self.place = place
    }

    /// Ends the wait with `value`, also one that has not begun.
    /// - Returns: false when the wait had ended already; the task does not get this value.
    @discardableResult
    package func resume(returning value: Value) -> Bool {
        let (isFirst, continuation) = phase.withLock { phase -> (Bool, CheckedContinuation<Value, Never>?) in
            switch phase {
            case .entered:
                phase = .resumed(value)
                return (true, nil)
            case .suspended(let continuation):
                phase = .resumed(value)
                return (true, continuation)
            case .resumed: return (false, nil)
            }
        }
        continuation?.resume(returning: value)
        return isFirst
    }

    /// Suspends until `resume` is called, whether the task is cancelled or not. One task may call it, once.
    package func value(isolation: isolated (any Actor)? = #isolation) async -> Value {
        await withCheckedContinuation { continuation in
            let value = phase.withLock { phase -> Value? in
                switch phase {
                case .entered: phase = .suspended(continuation)
                case .suspended: preconditionFailure("a waiter is one task's")
                case .resumed(let value): return value
                }
                return nil
            }
            if let value { continuation.resume(returning: value) }
        }
    }

    /// Suspends until `resume` is called. One task may call it, once.
    /// - Parameter leave: called when the task is cancelled, at once where it is cancelled already. It ends the wait by
    ///   `resume`, unless another thread has taken the waiter out of its list and is about to do so.
    package func value(
        isolation: isolated (any Actor)? = #isolation, leave: @Sendable () -> Void
    ) async -> Value {
        await withTaskCancellationHandler {
            // The closure would leave the actor if it did not capture it.
            await value(isolation: isolation)
        } onCancel: {
            leave()
        }
    }
}

extension Waiter where Value == Void {
    @discardableResult
    package func resume() -> Bool { resume(returning: ()) }
}
