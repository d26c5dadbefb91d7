internal import CLinux
internal import Glibc

/// Why a wait on the loop ended without what it waited for.
package enum WaitInterrupted: Error, Equatable {
    /// The deadline passed first. Retrying helps only with a later deadline.
    case deadlineExceeded
    /// The waiting task was cancelled.
    case cancelled
    /// The descriptor cannot be watched.
    case system(SystemError)
}

extension EventLoop {
    /// Suspends until `descriptor` is ready for one of `interests`, and says for which.
    ///
    /// All that non-blocking OpenSSL and libpq need: each of their steps becomes a `while` with one `await`. The
    /// registration is made anew for each wait and ends with it, since libpq may close and reopen its socket under
    /// the same number while it connects. Readable includes "the peer finished" and errors: the next read tells.
    /// - Precondition: the caller runs on this loop (an actor whose executor it is).
    package func ready(
        _ descriptor: CInt, _ interests: Readiness, until deadline: MonotonicInstant,
        isolation: isolated (any Actor)? = #isolation
    ) async throws(WaitInterrupted) -> Readiness {
        checkIsolated()
        let wait = Wait(loop: self)
        let result = await withTaskCancellationHandler {
            // The standard library takes a closure that would leave the loop's thread. Capturing the actor keeps it.
            _ = isolation
            return await unsafe withUnsafeContinuation { continuation in
                unsafe wait.begin(continuation, descriptor: descriptor, interests: interests, deadline: deadline)
            }
        } onCancel: {
            self.execute { wait.finish(.failure(.cancelled)) }
        }
        return try result.get()
    }

    /// Suspends until `deadline`. A cancelled task is woken at once.
    /// - Precondition: the caller runs on this loop.
    package func sleep(
        until deadline: MonotonicInstant, isolation: isolated (any Actor)? = #isolation
    ) async throws(WaitInterrupted) {
        do throws(WaitInterrupted) {
            _ = try await ready(-1, [], until: deadline)
        } catch .deadlineExceeded {
            return
        }
    }
}

/// One suspended wait. The loop's thread only, once begun.
///
/// Its continuation is unchecked, since a checked one is an object more for each wait; it is let go of when it is resumed,
/// once.
@safe private final class Wait: ReadinessHandler, @unchecked Sendable {
    typealias Outcome = Result<Readiness, WaitInterrupted>

    private let loop: EventLoop
    private var continuation: UnsafeContinuation<Outcome, Never>?
    private var registration: Registration?
    private var deadline: ScheduledAction?
    private var isCancelled = false

    init(loop: EventLoop) {
        self.loop = loop
    }

    func begin(
        _ continuation: UnsafeContinuation<Outcome, Never>, descriptor: CInt, interests: Readiness,
        deadline due: MonotonicInstant
    ) {
        unsafe self.continuation = continuation
        if isCancelled { return finish(.failure(.cancelled)) }
        if descriptor >= 0 {
            var events = CLINUX_ONESHOT
            if interests.contains(.readable) { events |= CLINUX_IN | CLINUX_RDHUP }
            if interests.contains(.writable) { events |= CLINUX_OUT }
            do throws(SystemError) {
                registration = try loop.register(descriptor, events: events, self)
            } catch {
                return finish(.failure(.system(error)))
            }
        }
        if due < .distantFuture {
            deadline = loop.schedule(at: due) { self.finish(.failure(.deadlineExceeded)) }
        }
    }

    func becameReady(_ readiness: Readiness, tag: Int) {
        finish(.success(readiness))
    }

    func finish(_ outcome: Outcome) {
        guard let continuation = unsafe continuation else {
            // Cancelled before `begin`, or finished before the cancellation arrived.
            isCancelled = true
            return
        }
        unsafe self.continuation = nil
        // The slot is freed and the descriptor stays in the epoll set: its one event has disarmed it, or a late event
        // will name a generation that is over. The next wait re-arms it with one call instead of two.
        if let registration { _ = loop.release(registration) }
        if let deadline { loop.cancel(deadline) }
        unsafe continuation.resume(returning: outcome)
    }
}
