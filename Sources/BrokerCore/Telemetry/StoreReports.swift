import CredentialStore
import Reactor
import Synchronization

/// Logs outages of the store: when one begins, then every ten seconds at most with the number of calls that have failed since
/// the last line, and when it ends. Counts each failed call in the metrics.
///
/// An outage in which writes fail ends with the first write that succeeds, even if reads succeed meanwhile. Safe to use from any
/// thread; does not block.
final class StoreReports: Sendable {
    private struct State {
        /// Since when calls fail; nil where the last one succeeded.
        var begin: MonotonicInstant?
        var hasWriteFailed = false
        /// Whether the log has a line of this outage.
        var isTold = false
        /// For failed calls. So a store that fails and answers by turns is logged no more often than one that always fails.
        var lines = LineBound()
    }

    static let pause: Duration = .seconds(10)

    private let log: Log
    private let metrics: Metrics
    private let time: any Time
    private let state = Mutex(State())
    /// Read at each call, without the lock.
    private let isAway = Atomic<Bool>(false)

    init(_ log: Log, _ metrics: Metrics, time: any Time) {
        self.log = log
        self.metrics = metrics
        self.time = time
    }

    /// To be called after each call of the store; see `Vault.observed`.
    func note(_ access: StoreAccess, isAnswered: Bool) {
        if isAnswered { answered(access) } else { failed(access) }
    }

    func failed(_ access: StoreAccess) {
        metrics.storeFailed(access)
        let now = time.monotonic
        let count = state.withLock { state -> Int? in
            if state.begin == nil { (state.begin, state.isTold) = (now, false) }
            if access == .write { state.hasWriteFailed = true }
            isAway.store(true, ordering: .releasing)
            guard let count = state.lines.met(at: now, pause: Self.pause) else { return nil }
            state.isTold = true
            return count
        }
        if let count { log.error("store_failed", [.store(.unavailable), .count(count)]) }
    }

    func answered(_ access: StoreAccess) {
        guard isAway.load(ordering: .acquiring) else { return }
        let now = time.monotonic
        let fields = state.withLock { state -> [LogField]? in
            guard let begin = state.begin, access == .write || !state.hasWriteFailed else { return nil }
            (state.begin, state.hasWriteFailed) = (nil, false)
            isAway.store(false, ordering: .releasing)
            guard state.isTold else { return nil }
            return [.duration(begin.duration(to: now)), .count(state.lines.told())]
        }
        if let fields { log.warning("store_answers_again", fields) }
    }
}

extension Log {
    /// Logs an error of the store, except that it does not answer: `StoreReports` logs that once for all calls.
    func storeFailed(_ error: StoreError, _ fields: [LogField] = []) {
        switch error {
        case .unavailable: break
        case .conflict: warning("store_failed", fields + [.store(error)])
        case .damaged: self.error("store_failed", fields + [.store(error)])
        }
    }
}
