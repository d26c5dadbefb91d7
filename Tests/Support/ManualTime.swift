internal import BrokerCore
package import OAuth
package import Reactor
internal import Synchronization
internal import Testing
internal import TokenBroker

/// Time that a test moves. Either every sleep is over at once and moves the clock by its length, or sleepers wait until
/// the test has moved the clock far enough.
package final class ManualTime: Time {
    private struct Sleeper {
        let due: Duration
        var isTick = false
        let continuation: CheckedContinuation<Bool, Never>
    }

    private struct State {
        var elapsed: Duration = .zero
        /// By how much the clock was moved without time's having passed.
        var moved: Duration = .zero
        var skipsSleeps: Bool
        var holdsTicks = false
        var slept: [Duration] = []
        var sleepers: [UInt64: Sleeper] = [:]
        var cancelled: Set<UInt64> = []
        var lastSleeper: UInt64 = 0
        var arrivals: [UInt64: Arrival] = [:]
        var lastArrival: UInt64 = 0
        /// The waits that ended before they had begun.
        var left: Set<UInt64> = []

        /// Those whose time has come.
        mutating func takeDue() -> [Sleeper] {
            let due = sleepers.filter { $0.value.due <= elapsed && !($0.value.isTick && holdsTicks) }
            for id in due.keys { sleepers[id] = nil }
            return Array(due.values)
        }

        var countOfSleepers: Int { sleepers.values.count { !$0.isTick } }
    }

    private struct Arrival {
        let count: Int
        let continuation: CheckedContinuation<Bool, Never>
    }

    /// How long a test waits for sleepers: far more than a busy machine needs, and far less than a suite's limit.
    private static let patience: Duration = .seconds(60)

    /// 2026-11-21T09:00:00Z.
    package static let beginning = Timestamp(rfc3339: "2026-11-21T09:00:00Z")!

    private let state: Mutex<State>

    /// - Parameter skipsSleeps: sleeps end at once and move the clock.
    package init(skipsSleeps: Bool = true) {
        state = Mutex(State(skipsSleeps: skipsSleeps))
    }

    package var now: Timestamp { Self.beginning.advanced(by: state.withLock { $0.elapsed + $0.moved }) }

    package var monotonic: MonotonicInstant {
        MonotonicInstant(nanoseconds: 1).advanced(by: state.withLock { $0.elapsed })
    }

    /// The sleeps asked for so far, in order.
    package var slept: [Duration] { state.withLock { $0.slept } }

    /// Whether sleeps end at once.
    package var skipsSleeps: Bool { state.withLock { $0.skipsSleeps } }

    package func forgetSleeps() { state.withLock { $0.slept = [] } }

    /// From now on sleepers wait for `advance`.
    package func holdSleeps() { state.withLock { $0.skipsSleeps = false } }

    /// From now on work in the background stands still, as in a process that is held up.
    package func holdTicks() { state.withLock { $0.holdsTicks = true } }

    /// Sets the time of day, as an operator does; no time passes.
    package func moveClock(by duration: Duration) { state.withLock { $0.moved += duration } }

    package func advance(by duration: Duration) {
        let due = state.withLock { state in
            state.elapsed += duration
            return state.takeDue()
        }
        for sleeper in due { sleeper.continuation.resume(returning: true) }
    }

    /// Suspends until at least `count` sleeps are being waited for, or until the task is cancelled. Where they do not
    /// come within a minute, the test has failed.
    package func sleepers(
        atLeast count: Int, fileID: String = #fileID, filePath: String = #filePath, line: Int = #line,
        column: Int = #column
    ) async {
        let id = state.withLock { state in
            state.lastArrival += 1
            return state.lastArrival
        }
        let limit = Task {
            // A limit that is not needed any more is cancelled.
            guard (try? await Task.sleep(for: Self.patience)) != nil else { return }
            leave(id)
        }
        let areThere = await withTaskCancellationHandler {
            await withCheckedContinuation { (continuation: CheckedContinuation<Bool, Never>) in
                let outcome: Bool? = state.withLock { state in
                    if state.left.remove(id) != nil { return false }
                    if state.countOfSleepers >= count { return true }
                    state.arrivals[id] = Arrival(count: count, continuation: continuation)
                    return nil
                }
                if let outcome { continuation.resume(returning: outcome) }
            }
        } onCancel: {
            leave(id)
        }
        limit.cancel()
        if !areThere, !Task.isCancelled {
            let found = state.withLock { $0.countOfSleepers }
            Issue.record(
                "\(found) instead of \(count) sleepers after a minute",
                sourceLocation: SourceLocation(fileID: fileID, filePath: filePath, line: line, column: column))
        }
    }

    /// Ends a wait for sleepers.
    private func leave(_ id: UInt64) {
        let arrival = state.withLock { state in
            let arrival = state.arrivals.removeValue(forKey: id)
            if arrival == nil { state.left.insert(id) }
            return arrival
        }
        arrival?.continuation.resume(returning: false)
    }

    package func sleep(for duration: Duration) async throws(CancellationError) {
        let id = state.withLock { state in
            state.lastSleeper += 1
            return state.lastSleeper
        }
        let isOver = await withTaskCancellationHandler {
            await withCheckedContinuation { (continuation: CheckedContinuation<Bool, Never>) in
                enter(id, duration, continuation)
            }
        } onCancel: {
            let sleeper = state.withLock { state in
                let sleeper = state.sleepers.removeValue(forKey: id)
                if sleeper == nil { state.cancelled.insert(id) }
                return sleeper
            }
            sleeper?.continuation.resume(returning: false)
        }
        if !isOver { throw CancellationError() }
    }

    package func tick(for duration: Duration) async {
        _ = await withCheckedContinuation { (continuation: CheckedContinuation<Bool, Never>) in
            state.withLock { state in
                state.lastSleeper += 1
                state.sleepers[state.lastSleeper] = Sleeper(
                    due: state.elapsed + duration, isTick: true, continuation: continuation)
            }
        }
    }

    private func enter(_ id: UInt64, _ duration: Duration, _ continuation: CheckedContinuation<Bool, Never>) {
        let (outcome, arrived) = state.withLock { state -> (Bool?, [CheckedContinuation<Bool, Never>]) in
            if state.cancelled.remove(id) != nil { return (false, []) }
            state.slept.append(duration)
            if state.skipsSleeps || duration <= .zero {
                state.elapsed += max(duration, .zero)
                return (true, state.takeDue().map(\.continuation))
            }
            state.sleepers[id] = Sleeper(due: state.elapsed + duration, continuation: continuation)
            let arrived = state.arrivals.filter { $0.value.count <= state.countOfSleepers }
            for id in arrived.keys { state.arrivals[id] = nil }
            return (nil, arrived.values.map(\.continuation))
        }
        if let outcome { continuation.resume(returning: outcome) }
        for waiter in arrived { waiter.resume(returning: true) }
    }
}
