internal import CredentialStore
internal import Reactor
internal import Synchronization

/// Tells the log that the store is away: when that begins, then every ten seconds at most with how many calls have failed
/// since the last line, and when it is over. Each call that fails is counted in the metrics.
///
/// A store that takes no writes is away until a write succeeds, whatever becomes of reads meanwhile. Safe to use from any
/// thread; does not block.
final class StoreReports: Sendable {
    /// What was asked of the store.
    enum Access: String, CaseIterable {
        case read
        case write
    }

    private struct State {
        /// Since when calls fail; nil where they do not.
        var begin: MonotonicInstant?
        var hasWriteFailed = false
        /// Whether the log has a line of this outage.
        var isTold = false
        /// Of the calls that fail. A store that fails and answers by turns has no more lines than one that is away.
        var lines = LineBound()
    }

    static let pause: Duration = .seconds(10)

    private let log: Log
    private let metrics: Metrics
    private let time: any Time
    private let state = Mutex(State())
    /// For those who ask at each call.
    private let isAway = Atomic<Bool>(false)

    init(_ log: Log, _ metrics: Metrics, time: any Time) {
        self.log = log
        self.metrics = metrics
        self.time = time
    }

    func failed(_ access: Access) {
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

    func answered(_ access: Access) {
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
    /// Tells of what a store failed with, unless it is away: `StoreReports` tells that once for all calls.
    func storeFailed(_ error: StoreError, _ fields: [LogField] = []) {
        switch error {
        case .unavailable: break
        case .conflict: warning("store_failed", fields + [.store(error)])
        case .damaged: self.error("store_failed", fields + [.store(error)])
        }
    }
}
