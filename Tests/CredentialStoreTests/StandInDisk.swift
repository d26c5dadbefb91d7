internal import Synchronization

@testable internal import CredentialStore

/// Stands between a file store and the disk: notes every step, and lets those fail that a test wants to.
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

    /// The steps since the start, or since `fail` or `heal`.
    var steps: [FileStep] { state.withLock { $0.steps } }

    var hasFailed: Bool { state.withLock { $0.hasFailed } }

    /// Counts from 0 again, and lets the steps with these numbers fail.
    func fail(_ failing: Range<Int>, number: CInt) {
        state.withLock { $0 = State(failing: failing, number: number) }
    }

    /// Counts from 0 again, and lets every step be done.
    func heal() { fail(0..<0, number: 0) }
}
