import Synchronization

/// A clock that stands still until a test moves it: for a provider's delays, and for its time in milliseconds.
package final class ProviderClock: Clock {
    package struct Instant: InstantProtocol, Sendable {
        package var offset: Swift.Duration

        package func advanced(by duration: Swift.Duration) -> Instant { Instant(offset: offset + duration) }
        package func duration(to other: Instant) -> Swift.Duration { other.offset - offset }
        package static func < (left: Instant, right: Instant) -> Bool { left.offset < right.offset }
    }

    private struct Sleeper: Sendable {
        let deadline: Instant
        let continuation: CheckedContinuation<Void, any Error>
    }

    private struct State: Sendable {
        var now = Instant(offset: .zero)
        var lastID = 0
        var sleepers: [Int: Sleeper] = [:]
        var watchers: [(count: Int, continuation: CheckedContinuation<Void, Never>)] = []
    }

    private let state = Mutex(State())
    private let start: Int64

    /// - Parameter start: what `milliseconds` begins at.
    package init(start: Int64 = 1_800_000_000_000) {
        self.start = start
    }

    package var now: Instant { state.withLock { $0.now } }
    package var minimumResolution: Swift.Duration { .nanoseconds(1) }

    /// Milliseconds since 1970.
    package var milliseconds: Int64 { start + Int64(now.offset / .milliseconds(1)) }

    package func advance(by duration: Swift.Duration) {
        let woken = state.withLock { state in
            state.now = state.now.advanced(by: duration)
            let due = state.sleepers.filter { $0.value.deadline <= state.now }
            for id in due.keys { state.sleepers[id] = nil }
            return due.values
        }
        for sleeper in woken { sleeper.continuation.resume() }
    }

    /// Returns once `count` tasks sleep on this clock.
    package func waitForSleepers(_ count: Int) async {
        await withCheckedContinuation { (continuation: CheckedContinuation<Void, Never>) in
            state.withLock { state in
                state.watchers.append((count, continuation))
                Self.notify(&state)
            }
        }
    }

    package func sleep(until deadline: Instant, tolerance: Swift.Duration?) async throws {
        let id = state.withLock { state in
            state.lastID += 1
            return state.lastID
        }
        try await withTaskCancellationHandler {
            try await withCheckedThrowingContinuation { (continuation: CheckedContinuation<Void, any Error>) in
                state.withLock { state in
                    if Task.isCancelled {
                        continuation.resume(throwing: CancellationError())
                    } else if deadline <= state.now {
                        continuation.resume()
                    } else {
                        state.sleepers[id] = Sleeper(deadline: deadline, continuation: continuation)
                        Self.notify(&state)
                    }
                }
            }
        } onCancel: {
            let sleeper = state.withLock { $0.sleepers.removeValue(forKey: id) }
            sleeper?.continuation.resume(throwing: CancellationError())
        }
    }

    private static func notify(_ state: inout State) {
        state.watchers.removeAll { watcher in
            guard state.sleepers.count >= watcher.count else { return false }
            watcher.continuation.resume()
            return true
        }
    }
}
