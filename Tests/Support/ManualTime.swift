import BrokerCore
package import OAuth
package import Reactor
import Synchronization
import Testing
import TokenBroker

/// Time that a test moves. Either every sleep ends at once and moves the clock by its length, or sleeps last until the
/// test has moved the clock far enough.
package final class ManualTime: Time {
    private struct Sleeper {
        let due: Duration
        let length: Duration
        var isTick = false
        let continuation: CheckedContinuation<Bool, Never>
    }

    private struct State {
        var elapsed: Duration = .zero
        /// By how much the wall clock was set without time passing.
        var moved: Duration = .zero
        var skipsSleeps: Bool
        var holdsTicks = false
        var slept: [Duration] = []
        var sleepers: [UInt64: Sleeper] = [:]
        var cancelled: Set<UInt64> = []
        var lastSleeper: UInt64 = 0
        /// How many sleeps have begun.
        var begun = 0
        var arrivals: [UInt64: Arrival] = [:]
        var lastArrival: UInt64 = 0
        /// The waits for sleeps that ended before they had begun.
        var left: Set<UInt64> = []

        /// Removes the sleepers whose time has come, and returns them.
        mutating func takeDue() -> [Sleeper] {
            let due = sleepers.filter { $0.value.due <= elapsed && !($0.value.isTick && holdsTicks) }
            for id in due.keys { sleepers[id] = nil }
            return Array(due.values)
        }

        /// The lengths of the sleeps that are waited for, the earliest first.
        var lengths: [Duration] {
            sleepers.filter { !$0.value.isTick }.sorted { $0.key < $1.key }.map(\.value.length)
        }

        var countOfSleepers: Int { sleepers.values.count { !$0.isTick } }
    }

    /// A wait for sleeps to begin.
    private struct Arrival {
        let isThere: @Sendable (State) -> Bool
        let continuation: CheckedContinuation<Bool, Never>
    }

    /// The line of a test that waits.
    private struct Caller {
        let fileID: String
        let filePath: String
        let line: Int
    }

    /// How long a test waits for sleeps to begin: longer than a busy machine needs, and less than a suite's time limit.
    private static let patience: Duration = .seconds(50)

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

    /// Suspends until sleeps of all these lengths have begun and have not ended, or until the task is cancelled. Records an
    /// issue when they do not begin within 50 s.
    package func sleepers(
        of lengths: SleepLength..., fileID: String = #fileID, filePath: String = #filePath, line: Int = #line
    ) async {
        await sleepers(of: lengths, fileID: fileID, filePath: filePath, line: line)
    }

    package func sleepers(
        of lengths: [SleepLength], fileID: String = #fileID, filePath: String = #filePath, line: Int = #line
    ) async {
        await wait("sleeps of \(lengths)", Caller(fileID: fileID, filePath: filePath, line: line)) {
            SleepLength.areAll(lengths, among: $0.lengths)
        }
    }

    /// Suspends until any sleep has begun and has not ended.
    package func sleeper(fileID: String = #fileID, filePath: String = #filePath, line: Int = #line) async {
        await wait("a sleep", Caller(fileID: fileID, filePath: filePath, line: line)) { $0.countOfSleepers > 0 }
    }

    /// How many sleeps have begun since the beginning.
    package var sleepsBegun: Int { state.withLock { $0.begun } }

    /// Suspends until a sleep has begun after the first `count`.
    package func sleep(
        after count: Int, fileID: String = #fileID, filePath: String = #filePath, line: Int = #line
    ) async {
        await wait("a sleep after the first \(count)", Caller(fileID: fileID, filePath: filePath, line: line)) {
            $0.begun > count
        }
    }

    private func wait(
        _ expectation: String, _ caller: Caller, until isThere: @escaping @Sendable (State) -> Bool
    ) async {
        let id = state.withLock { state in
            state.lastArrival += 1
            return state.lastArrival
        }
        let limit = Task {
            // The limit is cancelled when the sleeps have begun.
            guard (try? await Task.sleep(for: Self.patience)) != nil else { return }
            leave(id)
        }
        let areThere = await withTaskCancellationHandler {
            await withCheckedContinuation { (continuation: CheckedContinuation<Bool, Never>) in
                let outcome: Bool? = state.withLock { state in
                    if state.left.remove(id) != nil { return false }
                    if isThere(state) { return true }
                    state.arrivals[id] = Arrival(isThere: isThere, continuation: continuation)
                    return nil
                }
                if let outcome { continuation.resume(returning: outcome) }
            }
        } onCancel: {
            leave(id)
        }
        limit.cancel()
        if !areThere, !Task.isCancelled {
            let found = state.withLock { $0.lengths }
            Issue.record(
                "\(found) instead of \(expectation)",
                sourceLocation: SourceLocation(
                    fileID: caller.fileID, filePath: caller.filePath, line: caller.line, column: 1))
        }
    }

    /// Ends a wait for sleeps.
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
                    due: state.elapsed + duration, length: duration, isTick: true, continuation: continuation)
            }
        }
    }

    private func enter(_ id: UInt64, _ duration: Duration, _ continuation: CheckedContinuation<Bool, Never>) {
        let (outcome, arrived) = state.withLock { state -> (Bool?, [CheckedContinuation<Bool, Never>]) in
            if state.cancelled.remove(id) != nil { return (false, []) }
            state.slept.append(duration)
            state.begun += 1
            if state.skipsSleeps || duration <= .zero {
                state.elapsed += max(duration, .zero)
                return (true, state.takeDue().map(\.continuation))
            }
            state.sleepers[id] = Sleeper(
                due: state.elapsed + duration, length: duration, continuation: continuation)
            let arrived = state.arrivals.filter { [state] in $0.value.isThere(state) }
            for id in arrived.keys { state.arrivals[id] = nil }
            return (nil, arrived.values.map(\.continuation))
        }
        if let outcome { continuation.resume(returning: outcome) }
        for waiter in arrived { waiter.resume(returning: true) }
    }
}

extension ManualTime {
    /// Moves the clock in steps of half a second. After each step, waits until as many sleeps are waited for as before the
    /// first one: what wakes up has done its work and sleeps again.
    package func pass(
        _ duration: Duration, fileID: String = #fileID, filePath: String = #filePath, line: Int = #line
    ) async {
        await Self.pass(duration, on: self, fileID: fileID, filePath: filePath, line: line)
    }

    /// Moves several clocks together.
    package static func pass(
        _ duration: Duration, on clocks: ManualTime..., fileID: String = #fileID, filePath: String = #filePath,
        line: Int = #line
    ) async {
        let counts = clocks.map { clock in clock.state.withLock { $0.countOfSleepers } }
        var remaining = duration
        while remaining > .zero {
            let step = min(remaining, .milliseconds(500))
            for clock in clocks { clock.advance(by: step) }
            for (clock, count) in zip(clocks, counts) {
                await clock.wait("\(count) sleeps", Caller(fileID: fileID, filePath: filePath, line: line)) {
                    $0.countOfSleepers >= count
                }
            }
            remaining -= step
        }
    }
}
