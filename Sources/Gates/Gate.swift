import Synchronization

/// Holds tasks until it is opened, and lets a test wait until one has arrived.
package final class Gate: Sendable {
    private struct State {
        var isOpen = false
        var arrived = 0
        var held: [CheckedContinuation<Void, Never>] = []
        var watchers: [(count: Int, continuation: CheckedContinuation<Void, Never>)] = []
    }

    private let state = Mutex(State())

    package init() {}

    package func open() {
        let held = state.withLock { state in
            state.isOpen = true
            defer { state.held = [] }
            return state.held
        }
        for continuation in held { continuation.resume() }
    }

    package func arrive() {
        let watchers = state.withLock { state in
            state.arrived += 1
            let due = state.watchers.filter { $0.count <= state.arrived }
            state.watchers.removeAll { $0.count <= state.arrived }
            return due
        }
        for watcher in watchers { watcher.continuation.resume() }
    }

    package func opened() async {
        await withCheckedContinuation { continuation in
            let isOpen = state.withLock { state in
                if state.isOpen { return true }
                state.held.append(continuation)
                return false
            }
            if isOpen { continuation.resume() }
        }
    }

    /// Suspends until `count` tasks have come to the gate.
    package func arrivals(_ count: Int = 1) async {
        await withCheckedContinuation { continuation in
            let areThere = state.withLock { state in
                if state.arrived >= count { return true }
                state.watchers.append((count, continuation))
                return false
            }
            if areThere { continuation.resume() }
        }
    }
}
