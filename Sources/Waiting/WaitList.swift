import Containers

/// The tasks that wait for something, in the order of their arrival, each with what it waits for.
///
/// It is a part of the state of its owner and is changed under the owner's lock, in the same step in which the owner
/// decides that a task has to wait, and for what. The code that removes a waiter from the list resumes it after the lock
/// is free: with a value, after a cancellation, or at a deadline. A waiter is removed once, so it is resumed once.
///
///     let waiter = state.withLock { $0.isOpen ? nil : $0.waiters.enter() }
///     await waiter?.value { self.state.withLock { $0.waiters.remove(waiter) }?.resume() }
///
/// Every operation on one waiter takes constant time.
package struct WaitList<Subject: Sendable, Value: Sendable>: Sendable {
    private var entries = LinkedList<(subject: Subject, waiter: Waiter<Value>)>()

    package init() {}

    package var count: Int { entries.count }
    package var isEmpty: Bool { entries.isEmpty }

    /// Adds a waiter at the end. The caller then suspends in the waiter's `value`.
    package mutating func enter(_ subject: Subject) -> Waiter<Value> {
        let waiter = Waiter<Value>(place: entries.nextPlace)
        entries.append((subject, waiter))
        return waiter
    }

    /// Takes a waiter out. Returns nil where it is not in the list: then it has been taken out before.
    package mutating func remove(_ waiter: Waiter<Value>) -> Waiter<Value>? {
        guard entries[waiter.place]?.waiter === waiter else { return nil }
        return entries.remove(at: waiter.place)?.waiter
    }

    /// Takes out the waiter that has waited the longest.
    package mutating func popFirst() -> (subject: Subject, waiter: Waiter<Value>)? { entries.popFirst() }

    /// Takes out all waiters.
    package mutating func removeAll() -> [Waiter<Value>] {
        let waiters = entries.map { $0.element.waiter }
        entries.removeAll()
        return waiters
    }

    /// Takes out the waiters for whose subject `isOver` is true.
    package mutating func removeAll(where isOver: (Subject) -> Bool) -> [Waiter<Value>] {
        var waiters: [Waiter<Value>] = []
        for (place, entry) in entries where isOver(entry.subject) {
            entries.remove(at: place)
            waiters.append(entry.waiter)
        }
        return waiters
    }
}

extension WaitList where Subject == Void {
    package mutating func enter() -> Waiter<Value> { enter(()) }
}
