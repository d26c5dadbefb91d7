package import Reactor
import Synchronization

/// A clock of event loops that shows a new time only when a test moves it.
package final class ManualLoopClock: LoopClock {
    private let time = Atomic<Int64>(MonotonicInstant.now.nanoseconds)
    private let step: Int64
    private let loops = Mutex<[EventLoop]>([])

    /// - Parameter step: how much time passes with each reading, so that work which watches the clock ends its turn.
    package init(step: Duration = .zero) {
        self.step = step.nanoseconds
    }

    package var now: MonotonicInstant {
        if step == 0 { return MonotonicInstant(nanoseconds: time.load(ordering: .sequentiallyConsistent)) }
        return MonotonicInstant(nanoseconds: time.add(step, ordering: .sequentiallyConsistent).newValue)
    }

    /// Makes `advance` run the due actions of these loops, which read this clock.
    package func drive(_ loops: [EventLoop]) {
        self.loops.withLock { $0 += loops }
    }

    /// Moves the time without waking a loop. For code that runs on a loop's thread.
    package func move(by duration: Duration) {
        time.add(duration.nanoseconds, ordering: .sequentiallyConsistent)
    }

    /// Moves the time. Returns when each loop has handled the input that had arrived before, at the old time, and has run
    /// the actions that are due at the new time.
    package func advance(by duration: Duration) async {
        await handleInput()
        move(by: duration)
        await handleInput()
    }

    /// Returns when each loop has handled the input that had arrived before the call.
    package func handleInput() async {
        for loop in loops.withLock({ $0 }) {
            // The first action may run at the end of a turn that began before. It schedules the second one, which runs at
            // the end of the next turn.
            await withCheckedContinuation { continuation in
                loop.execute { loop.execute { continuation.resume() } }
            }
        }
    }
}
