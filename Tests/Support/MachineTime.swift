package import BrokerCore
package import OAuth
package import Reactor
import Synchronization

/// One machine's clocks: time passes as it does for all, but the wall clock is the machine's own and can be set.
package final class MachineTime: Time {
    private let shared: any Time
    /// By how much the wall clock is ahead.
    private let lead: Mutex<Duration>

    package init(_ shared: any Time, ahead lead: Duration = .zero) {
        self.shared = shared
        self.lead = Mutex(lead)
    }

    /// Sets the wall clock; no time passes.
    package func setWallClock(by change: Duration) { lead.withLock { $0 += change } }

    package var now: Timestamp { shared.now.advanced(by: lead.withLock { $0 }) }

    package var monotonic: MonotonicInstant { shared.monotonic }

    package func sleep(for duration: Duration) async throws(CancellationError) {
        try await shared.sleep(for: duration)
    }
}
