package import OAuth
package import Reactor

/// The time of day and the passing of time, as a parameter: tests advance them by hand.
package protocol Time: Sendable {
    /// The time of day, UTC.
    var now: Timestamp { get }

    /// The clock that only runs forward: for ages and deadlines inside this process.
    var monotonic: MonotonicInstant { get }

    /// Both clocks: one reading where the time of day follows from the other clock.
    var clocks: (now: Timestamp, monotonic: MonotonicInstant) { get }

    /// Waits. Throws only when the task is cancelled.
    func sleep(for duration: Duration) async throws(CancellationError)

    /// Waits between two looks of work in the background. A test that moves time does not count it among its sleepers.
    /// Not to be cancelled.
    func tick(for duration: Duration) async
}

extension Time {
    package func tick(for duration: Duration) async { try? await sleep(for: duration) }
}

extension Time {
    package var clocks: (now: Timestamp, monotonic: MonotonicInstant) { (now, monotonic) }
}

/// The system's clocks. Their time of day is the machine's wall clock: for the log. What is compared with stored times
/// goes by `SharedTime`.
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
