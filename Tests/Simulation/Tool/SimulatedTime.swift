import BrokerCore
import OAuth
import Reactor

/// A replica's clocks: the machine's wall clock, which can be wrong and be set, and the one that only runs forward.
///
/// Unchecked: everything of a world runs on one thread.
final class SimulatedTime: Time, @unchecked Sendable {
    /// When a world begins: 2026-11-21T09:00:00Z.
    static let beginning = Timestamp(milliseconds: 1_795_251_600_000)

    private let executor: Executor
    private let process: SimulatedProcess
    /// What the machine's monotonic clock showed at the world's beginning.
    private let origin: Int64
    /// By how much the wall clock differs from the world's time, in nanoseconds.
    var error: () -> Int64

    init(_ executor: Executor, _ process: SimulatedProcess, origin: Int64, error: @escaping () -> Int64) {
        self.executor = executor
        self.process = process
        self.origin = origin
        self.error = error
    }

    /// The world's own time of day.
    static func time(at now: Int64) -> Timestamp {
        Timestamp(milliseconds: beginning.milliseconds + (now >= 0 ? now : now - 999_999) / 1_000_000)
    }

    var now: Timestamp { Self.time(at: executor.now + error()) }

    var monotonic: MonotonicInstant { MonotonicInstant(nanoseconds: origin + executor.now) }

    /// One wait, which its end or a cancellation ends.
    ///
    /// Unchecked: everything of a world runs on one thread.
    @safe private final class Wait: @unchecked Sendable {
        var continuation: UnsafeContinuation<Void, Never>?
        var isOver = false
        var isCancelled = false

        func end() {
            if isOver { return }
            isOver = true
            unsafe continuation?.resume()
            unsafe continuation = nil
        }
    }

    func sleep(for duration: Duration) async throws(CancellationError) {
        if Task.isCancelled { throw CancellationError() }
        if duration <= .zero { return }
        let wait = Wait()
        await withTaskCancellationHandler {
            await unsafe withUnsafeContinuation { (continuation: UnsafeContinuation<Void, Never>) in
                if wait.isCancelled {
                    wait.isOver = true
                    unsafe continuation.resume()
                    return
                }
                unsafe wait.continuation = continuation
                executor.after(duration.nanoseconds, process) { wait.end() }
            }
        } onCancel: {
            wait.isCancelled = true
            if unsafe wait.continuation != nil { wait.end() }
        }
        if wait.isCancelled { throw CancellationError() }
    }
}
