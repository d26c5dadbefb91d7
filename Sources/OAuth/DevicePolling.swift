/// Decides when a device login polls next and when it ends (RFC 8628 §3.5). It has no clock: the caller passes the
/// remaining lifetime of the code, and keeps the two numbers of this state between polls.
package struct DevicePolling: Sendable, Equatable {
    /// The outcome of one poll.
    package enum Outcome: Sendable, Equatable {
        /// The provider granted a usable token.
        case granted
        /// An HTTP response without a usable token, whatever its status.
        /// - retryAfter: its `Retry-After`, if it has a readable one.
        case answered(status: Int, TokenErrorResponse, retryAfter: Duration?)
        /// No response: the connection failed, was lost, or timed out.
        case unreachable
    }

    package enum Step: Sendable, Equatable {
        /// Poll again after this time, which is always shorter than the remaining lifetime of the code.
        case wait(Duration)
        case granted
        /// The code expires after this time: at once when the provider says so, otherwise at the end of its lifetime,
        /// because no poll is due before that.
        case expired(after: Duration)
        case failed(Failure)
    }

    /// Why no token will be granted. Only a new login helps.
    package enum Failure: Sendable, Equatable {
        /// The user refused.
        case authorizationError
        /// The provider's response ends the login for another reason.
        case tokenResponseError
    }

    /// Seconds between polls: 1...1000000. The number never decreases.
    package private(set) var intervalSeconds: Int64
    /// The number of consecutive polls that failed for a transient reason: 0...`BackoffSchedule.standard.retries`.
    package private(set) var retries: Int

    /// One `slow_down` adds this to the interval permanently (RFC 8628 §3.5).
    package static let slowDownSeconds: Int64 = 5

    private static let bounds: ClosedRange<Int64> = 1...1_000_000

    /// The initial state of a login.
    /// - Parameter interval: the interval that the provider asks for, in whole seconds.
    package init(interval: Duration) {
        intervalSeconds = Self.bounded(interval.components.seconds)
        retries = 0
    }

    private static func bounded(_ seconds: Int64) -> Int64 { min(max(seconds, bounds.lowerBound), bounds.upperBound) }

    /// Restores a saved state. Nil for numbers that are out of range.
    package init?(intervalSeconds: Int64, retries: Int) {
        guard Self.bounds.contains(intervalSeconds), (0...BackoffSchedule.standard.retries).contains(retries) else {
            return nil
        }
        self.intervalSeconds = intervalSeconds
        self.retries = retries
    }

    package var interval: Duration { .seconds(intervalSeconds) }

    /// Decides what follows a poll.
    /// - Parameter remaining: the remaining lifetime of the code.
    package mutating func next(after outcome: Outcome, remaining: Duration) -> Step {
        switch outcome {
        case .granted:
            retries = 0
            return .granted
        case .unreachable:
            return waitForRecovery(nil, remaining)
        case .answered(429, _, let retryAfter):
            retries = 0
            // A rate limit applies at the moment; `slow_down` applies to this login.
            return wait(max(retryAfter ?? .zero, interval + .seconds(Self.slowDownSeconds)), remaining)
        case .answered(500..., _, let retryAfter):
            // The error in the body does not matter: a failing server has decided nothing.
            return waitForRecovery(retryAfter, remaining)
        case .answered(400...499, let answer, _) where answer.error == "authorization_pending":
            retries = 0
            return wait(interval, remaining)
        case .answered(400...499, let answer, _) where answer.error == "slow_down":
            retries = 0
            intervalSeconds = Self.bounded(intervalSeconds + Self.slowDownSeconds)
            return wait(interval, remaining)
        case .answered(408, _, let retryAfter), .answered(425, _, let retryAfter):
            return waitForRecovery(retryAfter, remaining)
        case .answered(400...499, let answer, let retryAfter) where answer.isPassing:
            return waitForRecovery(retryAfter, remaining)
        case .answered(400...499, let answer, _) where answer.error == "expired_token":
            return .expired(after: .zero)
        case .answered(400...499, let answer, _) where answer.error == "access_denied":
            return .failed(.authorizationError)
        case .answered(400...401, let answer, _) where answer.subStatus == "11003":
            // TIDAL's way of saying that the device code has expired.
            return .expired(after: .zero)
        case .answered:
            return .failed(.tokenResponseError)
        }
    }

    /// The waits of the retry schedule, then one interval, then the schedule again, until the code expires.
    private mutating func waitForRecovery(_ retryAfter: Duration?, _ remaining: Duration) -> Step {
        let scheduled: Duration
        if let backoff = BackoffSchedule.standard.wait(before: retries + 1, retryAfter: nil) {
            retries += 1
            scheduled = backoff
        } else {
            retries = 0
            scheduled = interval
        }
        // No caller waits for this poll, so the schedule's limit on `Retry-After` does not apply.
        return wait(max(retryAfter ?? .zero, scheduled), remaining)
    }

    private func wait(_ duration: Duration, _ remaining: Duration) -> Step {
        // The code is expired at the instant of its expiry.
        duration < remaining ? .wait(duration) : .expired(after: max(.zero, remaining))
    }
}
