package import OAuth
package import Reactor

/// The clocks of a broker, as a parameter: tests advance them by hand.
package protocol Time: Sendable {
    /// The time of day, UTC.
    var now: Timestamp { get }

    /// A clock that only runs forward: for ages and deadlines inside this process.
    var monotonic: MonotonicInstant { get }

    /// Both clocks, in one reading where the time of day is derived from the other clock.
    var clocks: (now: Timestamp, monotonic: MonotonicInstant) { get }

    /// Waits. Throws only when the task is cancelled.
    func sleep(for duration: Duration) async throws(CancellationError)

    /// Waits between two rounds of a background job. A test that moves time does not count it among its sleepers. Cancellation
    /// does not end it.
    func tick(for duration: Duration) async
}

extension Time {
    package func tick(for duration: Duration) async { try? await sleep(for: duration) }
}

extension Time {
    /// The time of day at an instant that has passed.
    package func timeOfDay(at instant: MonotonicInstant) -> Timestamp {
        let (now, monotonic) = clocks
        return now.advanced(by: .zero - max(.zero, instant.duration(to: monotonic)))
    }
}

extension Time {
    package var clocks: (now: Timestamp, monotonic: MonotonicInstant) { (now, monotonic) }
}

/// The system's clocks. Their time of day is the machine's wall clock, for the log. Times that are compared with stored ones
/// come from `SharedTime`.
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
