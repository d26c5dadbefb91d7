package import Reactor
import Synchronization

/// Measures what an event loop's thread spends of processor time, from within the loop.
package final class LoopMeter: Sendable {
    private struct State {
        /// The thread's time at the end of the turn before.
        var last: Int64?
        var longest: Int64 = 0
        var isStopping = false
        var stopped: CheckedContinuation<Int64, Never>?
    }

    private let loop: EventLoop
    private let state = Mutex(State())

    /// Measures from now on.
    package init(_ loop: EventLoop) {
        self.loop = loop
        loop.execute { self.tick() }
    }

    /// Once in every turn of the loop: what is put into its mailbox by an action waits for the next turn.
    private func tick() {
        let now = ReadingCost.threadTime
        let stopped: CheckedContinuation<Int64, Never>? = state.withLock { state in
            if let last = state.last { state.longest = max(state.longest, now - last) }
            // After the turn's end: what this costs itself is not measured.
            state.last = ReadingCost.threadTime
            return state.isStopping ? state.stopped.take() : nil
        }
        if let stopped {
            stopped.resume(returning: state.withLock { $0.longest })
        } else {
            loop.execute { self.tick() }
        }
    }

    /// Ends the measurement.
    /// - Returns: the longest stretch of work without a look at other connections, in nanoseconds of processor time.
    package func stop() async -> Int64 {
        await withCheckedContinuation { continuation in
            state.withLock { state in
                state.isStopping = true
                state.stopped = continuation
            }
        }
    }

    /// The processor time that the loop's thread has used so far, in nanoseconds.
    package static func time(of loop: EventLoop) async -> Int64 {
        await withCheckedContinuation { continuation in
            loop.execute { continuation.resume(returning: ReadingCost.threadTime) }
        }
    }
}
