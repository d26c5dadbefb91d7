/// When a device login asks next, and when it is over (RFC 8628 §3.5). No clock: the caller says how long the code
/// still lives, and keeps the two numbers of the state between polls.
package struct DevicePolling: Sendable, Equatable {
    /// What came of one poll.
    package enum Outcome: Sendable, Equatable {
        /// A usable token.
        case granted
        /// An HTTP answer without a usable token, whatever its status.
        /// - retryAfter: its `Retry-After`, if it has a readable one.
        case answered(status: Int, TokenErrorResponse, retryAfter: Duration?)
        /// No answer: the connection could not be made, was lost, or timed out.
        case unreachable
    }

    package enum Step: Sendable, Equatable {
        /// Poll again after this; always less than the code still lives.
        case wait(Duration)
        case granted
        /// The code is over after this: at once when the provider says so, else when its life ends, because no poll
        /// is due before that.
        case expired(after: Duration)
        case failed(Failure)
    }

    /// Why there will be no token. Only a new login helps.
    package enum Failure: Sendable, Equatable {
        /// The user said no.
        case authorizationError
        /// The provider answered with what ends the polling for another reason.
        case tokenResponseError
    }

    /// What to wait between polls, in seconds: 1...1000000. It only grows.
    package private(set) var intervalSeconds: Int64
    /// How many polls in a row have failed for a reason that may pass: 0...`BackoffSchedule.retries`.
    package private(set) var retries: Int

    /// What one `slow_down` adds, for good (RFC 8628 §3.5).
    package static let slowDownSeconds: Int64 = 5

    private static let bounds: ClosedRange<Int64> = 1...1_000_000

    /// A login's first state.
    /// - Parameter interval: what the provider asked for, in whole seconds.
    package init(interval: Duration) {
        intervalSeconds = Self.bounded(interval.components.seconds)
        retries = 0
    }

    private static func bounded(_ seconds: Int64) -> Int64 { min(max(seconds, bounds.lowerBound), bounds.upperBound) }

    /// A state that was kept. Nil for numbers that no state has.
    package init?(intervalSeconds: Int64, retries: Int) {
        guard Self.bounds.contains(intervalSeconds), (0...BackoffSchedule.retries).contains(retries) else {
            return nil
        }
        self.intervalSeconds = intervalSeconds
        self.retries = retries
    }

    package var interval: Duration { .seconds(intervalSeconds) }

    /// What follows a poll.
    /// - Parameter remaining: how long the code still lives.
    package mutating func next(after outcome: Outcome, remaining: Duration) -> Step {
        switch outcome {
        case .granted:
            retries = 0
            return .granted
        case .unreachable:
            return waitForRecovery(nil, remaining)
        case .answered(429, _, let retryAfter):
            retries = 0
            // A limit on the rate is about the moment; `slow_down` is about this login.
            return wait(max(retryAfter ?? .zero, interval + .seconds(Self.slowDownSeconds)), remaining)
        case .answered(500..., _, let retryAfter):
            // Whatever error its body names: a server that fails has decided nothing.
            return waitForRecovery(retryAfter, remaining)
        case .answered(400...499, let answer, _) where answer.error == "authorization_pending":
            retries = 0
            return wait(interval, remaining)
        case .answered(400...499, let answer, _) where answer.error == "slow_down":
            retries = 0
            intervalSeconds = Self.bounded(intervalSeconds + Self.slowDownSeconds)
            return wait(interval, remaining)
        case .answered(400...499, let answer, _) where answer.error == "expired_token":
            return .expired(after: .zero)
        case .answered(400...499, let answer, _) where answer.error == "access_denied":
            return .failed(.authorizationError)
        case .answered(400...401, let answer, _) where answer.subStatus == "11003":
            // TIDAL's way to say that the device code has expired.
            return .expired(after: .zero)
        case .answered:
            return .failed(.tokenResponseError)
        }
    }

    /// The schedule of retries; once it is used up one interval, and then the schedule anew, until the code expires.
    private mutating func waitForRecovery(_ retryAfter: Duration?, _ remaining: Duration) -> Step {
        let scheduled: Duration
        if let backoff = BackoffSchedule.standard.wait(before: retries + 1, retryAfter: nil) {
            retries += 1
            scheduled = backoff
        } else {
            retries = 0
            scheduled = interval
        }
        // Nobody is kept waiting meanwhile, so that the schedule's bound on a provider's wish does not count here.
        return wait(max(retryAfter ?? .zero, scheduled), remaining)
    }

    private func wait(_ duration: Duration, _ remaining: Duration) -> Step {
        // At the instant of its expiry the code is over.
        duration < remaining ? .wait(duration) : .expired(after: max(.zero, remaining))
    }
}
