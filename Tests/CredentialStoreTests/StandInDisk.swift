import Synchronization

@testable import CredentialStore

/// A layer between a file store and the disk, which records every call and lets chosen calls fail.
final class StandInDisk: Sendable {
    private struct State {
        var steps: [FileStep] = []
        var failing: Range<Int> = 0..<0
        var number: CInt = 0
        var hasFailed = false
    }

    private let state = Mutex(State())

    var fault: FileFault {
        { step in
            self.state.withLock { state in
                state.steps.append(step)
                guard state.failing.contains(state.steps.count - 1) else { return nil }
                state.hasFailed = true
                return state.number
            }
        }
    }

    /// The calls since the start or since the last `fail` or `heal`.
    var steps: [FileStep] { state.withLock { $0.steps } }

    var hasFailed: Bool { state.withLock { $0.hasFailed } }

    /// Restarts counting at 0, and lets the calls with these numbers fail.
    func fail(_ failing: Range<Int>, number: CInt) {
        state.withLock { $0 = State(failing: failing, number: number) }
    }

    /// Restarts counting at 0, and lets every call succeed.
    func heal() { fail(0..<0, number: 0) }
}
