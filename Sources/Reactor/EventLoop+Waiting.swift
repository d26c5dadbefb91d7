import CLinux
import Glibc

/// Why a wait on the loop ended before its descriptor was ready.
package enum WaitInterrupted: Error, Equatable {
    /// The deadline passed. Retrying helps only with a later deadline.
    case deadlineExceeded
    /// The waiting task was cancelled.
    case cancelled
    /// The descriptor cannot be watched.
    case system(SystemError)
}

extension EventLoop {
    /// Suspends until `descriptor` is ready for one of `interests`, and returns what it is ready for.
    ///
    /// Non-blocking OpenSSL and libpq need nothing else: each of their operations is a `while` loop with one `await`.
    /// Each wait registers the descriptor anew, because libpq may close its socket while it connects and open another
    /// with the same number. `readable` includes the end of the peer's stream and errors; the next read returns which
    /// of them it was.
    /// - Precondition: the caller runs on this loop, as an actor does whose executor is this loop.
    package func ready(
        _ descriptor: CInt, for interests: Readiness, until deadline: MonotonicInstant,
        isolation: isolated (any Actor)? = #isolation
    ) async throws(WaitInterrupted) -> Readiness {
        checkIsolated()
        let wait = Wait(loop: self)
        let result = await withTaskCancellationHandler {
            // The closure would run outside the loop's thread if it did not capture the isolating actor.
            _ = isolation
            return await unsafe withUnsafeContinuation { continuation in
                unsafe wait.begin(continuation, descriptor: descriptor, interests: interests, deadline: deadline)
            }
        } onCancel: {
            self.execute { wait.finish(.failure(.cancelled)) }
        }
        return try result.get()
    }

    /// Suspends until `deadline`. Cancelling the task ends the wait at once.
    /// - Precondition: the caller runs on this loop.
    package func sleep(
        until deadline: MonotonicInstant, isolation: isolated (any Actor)? = #isolation
    ) async throws(WaitInterrupted) {
        do throws(WaitInterrupted) {
            _ = try await ready(-1, for: [], until: deadline)
        } catch .deadlineExceeded {
            return
        }
    }
}

/// One suspended wait.
///
/// `@unchecked Sendable`: after `begin`, only the loop's thread touches the stored properties. The continuation is an
/// unsafe one because a checked continuation allocates one more object for each wait. `finish` sets it to nil before it
/// resumes it, so it is resumed exactly once.
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
                registration = try loop.register(descriptor, events: events, handler: self)
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
            // `begin` has not run yet, or the wait ended before the cancellation arrived.
            isCancelled = true
            return
        }
        unsafe self.continuation = nil
        // This frees the slot and leaves the descriptor in the epoll set. That is harmless: either its one event has
        // disarmed it (EPOLLONESHOT), or a late event carries an old generation and is dropped. The next wait then
        // re-arms the descriptor with one call instead of two.
        if let registration { _ = loop.release(registration) }
        if let deadline { loop.cancel(deadline) }
        unsafe continuation.resume(returning: outcome)
    }
}
