package import OAuth
package import Reactor

/// The time of day and the passing of time, as a parameter: tests advance them by hand.
package protocol Time: Sendable {
    /// The wall clock, UTC.
    var now: Timestamp { get }

    /// The clock that only runs forward: for ages and deadlines inside this process.
    var monotonic: MonotonicInstant { get }

    /// Waits. Throws only when the task is cancelled.
    func sleep(for duration: Duration) async throws(CancellationError)
}

/// The system's clocks.
package struct SystemTime: Time {
    package init() {}

    package var now: Timestamp { Timestamp(milliseconds: WallClock.milliseconds) }

    package var monotonic: MonotonicInstant { .now }

    package func sleep(for duration: Duration) async throws(CancellationError) {
        do {
            try await Task.sleep(for: duration, clock: .continuous)
        } catch {
            throw CancellationError()
        }
    }
}
