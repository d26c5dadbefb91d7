package import CredentialStore
package import OAuth
package import Reactor
internal import Synchronization

/// The time of day as the shared store has it, so that replicas agree on when a token expires however their own clocks
/// differ: one that is minutes ahead would have the others serve tokens that are over.
///
/// Passing time is measured by this process's own clock.
package final class SharedTime: Time {
    /// Differences below this come from the way to the store and back as well as from a clock.
    private static let tolerance: Duration = .milliseconds(200)

    private let base: any Time
    /// What is added to the own clock, in milliseconds.
    private let offset = Atomic<Int64>(0)

    package init(_ base: any Time = SystemTime()) {
        self.base = base
    }

    package var now: Timestamp {
        Timestamp(milliseconds: base.now.milliseconds + offset.load(ordering: .relaxed))
    }

    package var monotonic: MonotonicInstant { base.monotonic }

    package func sleep(for duration: Duration) async throws(CancellationError) {
        try await base.sleep(for: duration)
    }

    /// Asks the store for the time. A store that does not answer, or not soon enough to tell, changes nothing.
    /// - Returns: by how much the clock was moved.
    @discardableResult
    package func adjust(by vault: Vault) async throws(StoreError) -> Duration {
        let (sent, start) = (base.now, base.monotonic)
        guard let time = try await vault.clock() else { return .zero }
        let way = start.duration(to: base.monotonic)
        let measured = sent.advanced(by: way / 2).duration(to: time)
        let known = Duration.milliseconds(offset.load(ordering: .relaxed))
        let change = measured - known
        guard change.magnitude > Self.tolerance + way / 2 else { return .zero }
        offset.store(measured.milliseconds, ordering: .relaxed)
        return change
    }
}

extension Duration {
    fileprivate var magnitude: Duration { self < .zero ? .zero - self : self }
}
