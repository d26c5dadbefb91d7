package import BrokerCore
package import CredentialStore
import Reactor
import Synchronization
import Waiting

/// Whether the broker is ready for requests: it is not draining, and its store answers.
package final class Health: Sendable {
    private struct State {
        var isDraining = false
        var lastCheck: (at: MonotonicInstant, isGood: Bool)?
        /// The number of the check that probes wait for. It rises when a check takes too long.
        var check = 0
    }

    /// How long an answer of the store counts. Several probes share it, so the store is asked at most once a second.
    private static let freshness: Duration = .seconds(1)
    private static let patience: Duration = .seconds(2)

    private let vault: Vault
    private let time: any Time
    private let state = Mutex(State())
    private let checks = SingleFlight<Int, Bool>()
    private let explanation = Mutex<(@Sendable () -> String?)?>(nil)

    package init(vault: Vault, time: any Time) {
        self.vault = vault
        self.time = time
    }

    /// Reports the broker as not ready from now on.
    package func beginDraining() {
        state.withLock { $0.isDraining = true }
    }

    /// Sets the function that says why the store does not answer.
    package func explain(_ reason: @escaping @Sendable () -> String?) {
        explanation.withLock { $0 = reason }
    }

    /// Why the store does not answer, for operators only, because it names hosts and users. Nil if the reason is not
    /// known.
    package var reason: String? { explanation.withLock { $0 }?() }

    package enum Readiness: Sendable, Equatable {
        case ready
        case draining
        case storeUnavailable
    }

    package func readiness() async -> Readiness {
        let known = state.withLock { state -> Readiness? in
            if state.isDraining { return .draining }
            guard let last = state.lastCheck, last.at.advanced(by: Self.freshness) > time.monotonic else { return nil }
            return last.isGood ? .ready : .storeUnavailable
        }
        if let known { return known }
        // The sleep ends early when the check is over. Its error is then of no use.
        let limit: @Sendable () async -> Void = { _ = try? await self.time.sleep(for: Self.patience) }
        let number = state.withLock { $0.check }
        let run = await checks.run(number, within: limit) {
            let isGood = await self.check()
            self.state.withLock { state in
                if state.check == number { state.lastCheck = (self.time.monotonic, isGood) }
            }
            return isGood
        }
        // A probe whose caller has gone away says nothing about the check.
        if run == nil, !Task.isCancelled {
            // The store may answer by now on another connection, so the next probe asks anew and does not wait for this check.
            state.withLock { if $0.check == number { $0.check += 1 } }
        }
        if state.withLock({ $0.isDraining }) { return .draining }
        return run?.value == true ? .ready : .storeUnavailable
    }

    private func check() async -> Bool {
        do throws(StoreError) {
            try await vault.check()
            return true
        } catch {
            return false
        }
    }
}
