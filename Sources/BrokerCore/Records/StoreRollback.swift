import OAuth
import Reactor
import Synchronization
import Waiting

/// Whether the shared store has lost commits lately: in a failover to a standby that was behind, or because it was restored
/// from a backup.
///
/// After such a loss, no refresh token is presented for a short time, the hold: the store's token may be spent, and another
/// replica may have its successor in memory. Each replica notices the loss within a second and a half, and stores again what it
/// has during the rest of the hold. A store that does not answer takes nothing, so the hold begins anew with each failure.
final class StoreRollback: Sendable {
    /// What was done about a loss.
    struct Counts: Sendable, Equatable {
        /// Credentials that were stored again.
        var restored = 0
        /// Logouts and ended sessions that were stored again.
        var ended = 0
        /// Credentials of which a newer version was known than the store has, and that no replica has stored again.
        var lost = 0
    }

    private struct State {
        /// When the last loss was noticed; nil for never.
        var noticed: MonotonicInstant?
        /// When the hold began: when the loss was noticed, or when the store last failed to answer after that.
        var holdStart = MonotonicInstant(nanoseconds: .min / 2)
        /// Every record that was written before the loss has a lower version.
        var boundary: Int64 = 0
        /// Every record that a replica has stored again has this version or a higher one.
        var restoredFrom: Int64 = 0
        /// How many losses this process has noticed by itself, and when the last one, by the time of day.
        var own: (count: Int, last: Timestamp?) = (0, nil)
        var mustSweep = false
        var counts = Counts()
        var rechecks: Set<CredentialsID> = []
    }

    /// For how long no refresh token is presented.
    static let hold: Duration = .seconds(3)
    /// For how long the refresh token of a record is not presented that is known not to be the newest: the replica that was
    /// granted the newest one may be restarting, with that token in its journal.
    static let longHold: Duration = .seconds(10)
    /// A store that has not answered within this time counts as failing.
    static let answerLimit: Duration = .seconds(1)
    /// For how long after a loss there may be records that no replica has compared yet.
    private static let spread: Duration = .seconds(120)
    /// Beyond this number, all records are compared instead.
    private static let recheckLimit = 10_000

    private let span: Duration
    private let time: any Time
    private let state = Mutex(State())
    /// The end of the hold, in nanoseconds. Read without a lock, since every renewal reads it.
    private let holdEnd = Atomic<Int64>(.min)
    /// Signalled when `StoreRecovery` has something to do.
    let wakeUps = KeyedSignal<Int>()

    /// - Parameter span: for how long after a loss a refusal is in doubt; zero ignores losses.
    init(span: Duration, time: any Time) {
        self.span = span
        self.time = time
    }

    /// The store has lost commits.
    /// - Parameter earlier: how long ago another process noticed that; nil where this process notices it now.
    /// - Returns: whether it counts as one more loss that this process has noticed.
    @discardableResult
    func note(noticed earlier: Duration? = nil) -> Bool {
        if span == .zero { return false }
        let (now, wall) = (time.monotonic, time.now)
        let noticed = now.advanced(by: .zero - (earlier ?? .zero))
        let boundary = wall.advanced(by: .zero - (earlier ?? .zero)).milliseconds * 1000
        let isNew = state.withLock { state in
            // Every connection may report the same loss. Within the second, the store may also have lost commits once more.
            if let last = state.noticed, earlier == nil, noticed < last.advanced(by: .seconds(1)) {
                state.mustSweep = true
                return false
            }
            if let last = state.noticed, earlier != nil, noticed <= last { return false }
            if state.noticed.map({ $0.advanced(by: Self.hold) <= now }) ?? true { state.counts = Counts() }
            // Another replica may have noticed it first, and its clock may be behind this one's.
            if state.noticed.map({ $0.advanced(by: Self.spread) <= now }) ?? true {
                state.restoredFrom = boundary - Self.longHold.milliseconds * 1000
            }
            state.noticed = noticed
            state.boundary = max(state.boundary, boundary)
            state.holdStart = max(state.holdStart, noticed)
            state.mustSweep = true
            if earlier == nil { state.own = (state.own.count + 1, wall) }
            holdEnd.store(state.holdStart.advanced(by: Self.hold).nanoseconds, ordering: .releasing)
            return earlier == nil
        }
        wakeUps.signal(0)
        return isNew
    }

    /// How many losses this process has noticed by itself, and when the last one.
    var noticed: (count: Int, last: Timestamp?) { state.withLock { $0.own } }

    /// The store has not answered. The hold begins anew, unless it had ended by when the store was asked.
    func storeFailed() {
        let now = time.monotonic
        let end = MonotonicInstant(nanoseconds: holdEnd.load(ordering: .acquiring))
        if end.advanced(by: Self.answerLimit) <= now { return }
        state.withLock { state in
            state.holdStart = max(state.holdStart, now)
            state.mustSweep = true
            holdEnd.store(state.holdStart.advanced(by: Self.hold).nanoseconds, ordering: .releasing)
        }
    }

    /// A record was found to be older than one that was seen before, which shows that the store has lost commits. Does nothing
    /// for some time after a loss that is known already.
    func noteByVersion() {
        if !isUnsettled { note() }
    }

    /// Asks for a comparison of all records: an earlier process's journal may have records that the store lacks.
    func askForSweep() { state.withLock { $0.mustSweep = true } }

    /// For how long no refresh token may be presented; nil where the hold is over.
    var remainingHold: Duration? {
        let end = MonotonicInstant(nanoseconds: holdEnd.load(ordering: .acquiring))
        let now = time.monotonic
        return end > now ? now.duration(to: end) : nil
    }

    /// The same for a record that is known not to be the newest.
    var remainingLongHold: Duration? {
        let now = time.monotonic
        let end = state.withLock { $0.holdStart }.advanced(by: Self.longHold)
        return end > now ? now.duration(to: end) : nil
    }

    /// Whether a record of that version may have been replaced by a commit that the store has lost.
    func isDoubtful(_ version: Int64) -> Bool {
        let now = time.monotonic
        return state.withLock { state in
            guard let noticed = state.noticed, noticed.advanced(by: span) > now else { return false }
            return version < state.boundary
        }
    }

    /// Whether there may be records that no replica has compared since the last loss.
    var isUnsettled: Bool {
        let now = time.monotonic
        return state.withLock { $0.noticed.map { $0.advanced(by: Self.spread) > now } ?? false }
    }

    /// Whether the store is known to have lost commits within the span.
    var isRecent: Bool { isDoubtful(.min) }

    /// Whether another replica may have stored a record of that version again.
    func mayBeRestored(_ version: Int64) -> Bool { state.withLock { $0.noticed != nil && version >= $0.restoredFrom } }

    /// Asks for a comparison of these credentials.
    func recheck(_ id: CredentialsID) {
        state.withLock { state in
            if state.rechecks.count < Self.recheckLimit { state.rechecks.insert(id) } else { state.mustSweep = true }
        }
        wakeUps.signal(0)
    }

    func takeRechecks() -> Set<CredentialsID> {
        state.withLock { state in
            defer { state.rechecks = [] }
            return state.rechecks
        }
    }

    func takeSweep() -> Bool {
        state.withLock { state in
            defer { state.mustSweep = false }
            return state.mustSweep
        }
    }

    func count(_ change: (inout Counts) -> Void) { state.withLock { change(&$0.counts) } }

    var counts: Counts { state.withLock { $0.counts } }
}
