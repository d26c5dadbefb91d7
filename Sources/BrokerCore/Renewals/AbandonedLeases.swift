import OAuth
import Synchronization
import Waiting

/// The leases that renewals of this process gave up with an unknown outcome, or could not release because the store did not
/// answer. `LeaseRecovery` waits for them.
final class AbandonedLeases: Sendable {
    private let unreleased = Mutex<Set<CredentialsID>>([])
    private let signals = KeyedSignal<Int>()

    /// A lease could not be released, so that the store still has it.
    func noteUnreleased(_ id: CredentialsID) {
        unreleased.withLock { _ = $0.insert(id) }
    }

    /// Returns the leases that were noted since the last call.
    func takeUnreleased() -> Set<CredentialsID> {
        unreleased.withLock { unreleased in
            defer { unreleased = [] }
            return unreleased
        }
    }

    /// A lease was given up, and `LeaseRecovery` is to examine it within a second.
    func signal() { signals.signal(0) }

    func ticket() -> KeyedSignal<Int>.Ticket { signals.ticket(0) }

    /// Suspends until `signal` after the ticket was taken, until `limit` returns, or until the task is cancelled.
    func wait(since ticket: KeyedSignal<Int>.Ticket, within limit: @escaping @Sendable () async -> Void) async {
        await signals.wait(for: 0, since: ticket, within: limit)
    }
}
