package import OAuth
package import Reactor

/// What is known of one client at one token endpoint, and so whether the provider may be asked now: whether it has refused the
/// client, whether it has asked to be left alone, and whether it answers at all.
///
/// A value without a clock. `ProviderHealths` keeps the parts, each for those whom it concerns.
package struct ProviderHealth: Sendable, Equatable {
    /// What a call heeds.
    package struct Aspects: OptionSet, Sendable {
        package let rawValue: Int

        package init(rawValue: Int) { self.rawValue = rawValue }

        package static let fault = Aspects(rawValue: 1)
        package static let pause = Aspects(rawValue: 2)
        package static let circuit = Aspects(rawValue: 4)
    }

    /// That the provider does not accept the client. It is asked again once in 30 s for all users together.
    package struct Fault: Sendable, Equatable {
        /// What callers got of whom the provider was asked.
        package let error: BrokerError
        /// When the provider first refused the client, at any replica.
        package var since: Timestamp
        /// When the provider last refused the client at this replica.
        package let last: Timestamp
        /// Until when the provider is not asked.
        package var until: MonotonicInstant
        /// Whether a call is under way that was admitted because the last pause had ended.
        package var isTrial = false
        /// Whether the store has the fault.
        package var isShared = false

        /// For how long the provider is not asked again.
        package static let pause: Duration = .seconds(30)
        /// If the fault was not met for so long after its last pause, the next refusal counts as a new fault.
        package static let memory: Duration = .seconds(600)

        /// The provider does not accept the client.
        /// - Parameter known: the fault before; nil for none.
        package init(
            _ error: BrokerError, after known: Fault?, at clocks: (now: Timestamp, monotonic: MonotonicInstant)
        ) {
            let known = known.flatMap { $0.isKnown(at: clocks.monotonic) ? $0 : nil }
            self.error = error
            since = known?.since ?? clocks.now
            last = clocks.now
            until = clocks.monotonic.advanced(by: Self.pause)
            isShared = known?.isShared ?? false
        }

        /// Whether the next refusal counts as the same fault.
        package func isKnown(at now: MonotonicInstant) -> Bool { until.advanced(by: Self.memory) > now }

        /// What callers get while the provider is not asked.
        func refusal(for pause: Duration) -> BrokerError {
            var refusal = error.retrying(after: pause)
            refusal.since = since
            return refusal
        }
    }

    /// The pause that the provider has asked for, as far as it concerns all users of the client (RFC 6585 §4).
    ///
    /// Many providers count the requests of each user, others those of the client, and the answer does not say which. So the
    /// first answer of this kind pauses its own user for as long as it says, and all others for `longestForOthers` at most. If
    /// another user's call is answered likewise while the first pause lasts, the provider counts the client's requests, and all
    /// are paused for as long as it says.
    package struct Pause: Sendable, Equatable {
        /// Until when no user's call is made.
        package var end: MonotonicInstant
        /// The user whose call was answered last, and until when that user's pause lasts.
        var user: CredentialsID?
        var userEnd: MonotonicInstant

        /// For how long one user's answer pauses the other users of the client.
        package static let longestForOthers: Duration = .seconds(5)

        func isOver(at now: MonotonicInstant) -> Bool { max(end, userEnd) <= now }
    }

    /// Why the provider is not asked, and until when.
    package struct Refusal: Sendable, Equatable {
        package enum Reason: Sendable, Equatable {
            case clientRefused(Fault)
            case providerAskedToWait
            case circuitOpen(ProviderCircuit.Failure)
        }

        package let reason: Reason
        package let until: MonotonicInstant

        package init(_ reason: Reason, until: MonotonicInstant) {
            self.reason = reason
            self.until = until
        }
    }

    /// What the next call will show.
    package struct Trial: OptionSet, Sendable {
        package let rawValue: Int

        package init(rawValue: Int) { self.rawValue = rawValue }

        /// Whether the provider accepts the client again.
        package static let client = Trial(rawValue: 1)
        /// Whether it accepts the client's grant again.
        package static let grant = Trial(rawValue: 2)
        /// Whether it answers again. The call is made, or given back.
        package static let circuit = Trial(rawValue: 4)
    }

    package enum Admission: Sendable, Equatable {
        case yes
        case trial(Trial)
        case no(Refusal)
    }

    /// That the provider refuses every request of the client; nil if it does not.
    package var fault: Fault?
    /// That the provider refuses to the client the grant that is asked for; nil if it does not.
    package var grantFault: Fault?
    /// The pause of all users; nil for none.
    package var pause: Pause?
    /// Until when the user is paused for whom the call is; nil for no pause.
    package var userPause: MonotonicInstant?
    package var circuit = ProviderCircuit()

    package init() {}

    // MARK: Before a call

    /// Why a call would not be made now; nil if it would be.
    package func refusal(_ aspects: Aspects, at now: MonotonicInstant) -> Refusal? {
        if aspects.contains(.fault) {
            for fault in [fault, grantFault] {
                if let fault, fault.until > now { return Refusal(.clientRefused(fault), until: fault.until) }
            }
        }
        if aspects.contains(.pause), let end = [pause?.end, userPause].compactMap(\.self).max(), end > now {
            return Refusal(.providerAskedToWait, until: end)
        }
        if aspects.contains(.circuit), let failure = circuit.refusal(at: now) {
            return Refusal(.circuitOpen(failure), until: circuit.nextTrial)
        }
        return nil
    }

    /// Asks for a call. If what refused calls before has ended, but not the doubt, the call is the trial, and the next pause
    /// begins with it.
    /// - Parameter jitter: by how much the pause after a trial of the circuit is shorter, from zero to `ProviderCircuit.jitter`.
    package mutating func admit(_ aspects: Aspects, at now: MonotonicInstant, jitter: Duration) -> Admission {
        // First, so that no trial is used up by a call that something else forbids.
        if let refusal = refusal(aspects, at: now) { return .no(refusal) }
        var trial = Trial()
        if aspects.contains(.fault) {
            if Self.beginTrial(&fault, at: now) { trial.insert(.client) }
            if Self.beginTrial(&grantFault, at: now) { trial.insert(.grant) }
        }
        if aspects.contains(.circuit), circuit.admit(at: now, jitter: jitter) == .trial { trial.insert(.circuit) }
        return trial.isEmpty ? .yes : .trial(trial)
    }

    /// Has the next call try whether the fault has ended, and forgets a fault of long ago.
    /// - Returns: whether there is such a fault.
    private static func beginTrial(_ fault: inout Fault?, at now: MonotonicInstant) -> Bool {
        guard fault?.isKnown(at: now) == true else {
            fault = nil
            return false
        }
        fault?.until = now.advanced(by: Fault.pause)
        fault?.isTrial = true
        return true
    }

    // MARK: After a call

    /// The provider has answered a call of that user by asking for a pause.
    ///
    /// The exchange of a code is not told here: strangers can bring made-up codes, and would have all users' refreshes wait. A
    /// provider that counts the client's requests says so to the next refresh, too.
    /// - Parameter user: nil for a call that belongs to no stored credentials.
    package mutating func askedToWait(_ user: CredentialsID?, for duration: Duration, at now: MonotonicInstant) {
        let end = now.advanced(by: duration)
        userPause = max(end, userPause ?? end)
        guard let user else { return }
        var isClients = false
        if let pause, pause.userEnd > now { isClients = pause.user != user }
        let others = isClients ? end : now.advanced(by: min(duration, Pause.longestForOthers))
        pause = Pause(
            end: max(others, pause?.end ?? others), user: user, userEnd: max(end, pause?.userEnd ?? end))
    }

    /// The provider has failed, and has named a time that concerns all users.
    package mutating func askedAllToWait(for duration: Duration, at now: MonotonicInstant) {
        let end = now.advanced(by: duration)
        var pause = self.pause ?? Pause(end: end, user: nil, userEnd: now)
        pause.end = max(pause.end, end)
        self.pause = pause
    }

    /// The provider did not answer the user's call, and has named a time.
    package mutating func askedUserToWait(for duration: Duration, at now: MonotonicInstant) {
        let end = now.advanced(by: duration)
        userPause = max(end, userPause ?? end)
    }
}
