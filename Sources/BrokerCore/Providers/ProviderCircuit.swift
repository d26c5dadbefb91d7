package import Reactor

/// What the last calls of one client at one token endpoint say about the next one. After `threshold` calls in a row that the
/// provider did not answer, the circuit is open: calls fail at once, so that the provider is spared. After a pause one call is
/// let through as a trial. An answer closes the circuit; until then the pauses get longer.
///
/// A value without a clock. The pauses are short, because users of a provider that has recovered are served within two seconds.
package struct ProviderCircuit: Sendable, Equatable {
    /// How the provider left a call without an answer.
    package enum Failure: Sendable, Equatable {
        /// It answered with status 5xx.
        case serverError
        /// It could not be reached, or did not answer in time.
        case unreachable
    }

    package enum Admission: Sendable, Equatable {
        /// The circuit is closed.
        case free
        /// The circuit is open, and the call is the trial.
        case trial
        case refused(Failure)
    }

    /// How many calls in a row without an answer open the circuit.
    package static let threshold = 20
    /// The time from the opening to the first trial.
    package static let firstPause: Duration = .seconds(1)
    /// The longest time between two trials.
    package static let longestPause: Duration = .milliseconds(1500)
    /// By how much a later pause may be shorter, so that replicas do not make their trials at the same time.
    package static let jitter: Duration = .milliseconds(250)

    /// How many calls in a row were not answered; at most `threshold`.
    package private(set) var failures = 0
    /// How the last call ended.
    package private(set) var failure = Failure.unreachable
    /// When the circuit opened; nil while it is closed.
    package private(set) var opened: MonotonicInstant?
    /// Whether a trial was let through that has not failed.
    package private(set) var isTrying = false
    /// When the next trial may be let through.
    package private(set) var nextTrial = MonotonicInstant(nanoseconds: 0)
    private var pause = firstPause

    package init() {}

    package var isOpen: Bool { opened != nil }

    /// Notes a call that was not answered.
    /// - Returns: whether it has opened the circuit.
    package mutating func fail(_ failure: Failure, at now: MonotonicInstant) -> Bool {
        (self.failure, isTrying) = (failure, false)
        failures = min(failures + 1, Self.threshold)
        guard opened == nil, failures == Self.threshold else { return false }
        (opened, nextTrial) = (now, now.advanced(by: pause))
        return true
    }

    /// Why a call would fail now; nil where it would be let through.
    package func refusal(at now: MonotonicInstant) -> Failure? { isOpen && nextTrial > now ? failure : nil }

    /// Asks for a call. The pause after a trial begins with the trial, since a trial may hang at a provider that has recovered.
    /// - Parameter jitter: by how much the pause after a trial is shorter, from zero to `Self.jitter`.
    package mutating func admit(at now: MonotonicInstant, jitter: Duration) -> Admission {
        if !isOpen { return .free }
        if let failure = refusal(at: now) { return .refused(failure) }
        pause = min(pause * 2, Self.longestPause)
        (nextTrial, isTrying) = (now.advanced(by: pause - jitter), true)
        return .trial
    }

    /// The trial was not made after all: another call may be made in its place.
    package mutating func giveBack(at now: MonotonicInstant) {
        guard isTrying else { return }
        (nextTrial, isTrying) = (now, false)
    }
}
