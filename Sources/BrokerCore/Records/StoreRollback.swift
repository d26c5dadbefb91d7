internal import OAuth
internal import Reactor
internal import Synchronization
internal import Waiting

/// Whether the shared store has gone back of late: lost its last commits in a failover to a standby that was behind, or was
/// put back to an earlier state.
///
/// For a moment then no refresh token of the store's is presented: it may be one that is spent, whose successor another
/// replica has in memory. Each replica notices within a second and a half, and has the rest of the time to store what it
/// has. A store that is away meanwhile takes nothing from any replica: the time begins anew with each failure.
final class StoreRollback: Sendable {
    /// What came of it.
    struct Counts: Sendable, Equatable {
        /// Credentials, stored again.
        var restored = 0
        /// Logouts and ended sessions, likewise.
        var ended = 0
        /// Credentials of which a newer version was seen than the store has, and that no replica has stored again.
        var lost = 0
    }

    private struct State {
        /// When it was noticed.
        var noticed: MonotonicInstant?
        /// Since when the store has answered, from then on.
        var holdStart = MonotonicInstant(nanoseconds: .min / 2)
        /// What was written before has a lower version.
        var boundary: Int64 = 0
        /// What a replica has put back has this version or a higher one.
        var putBackFrom: Int64 = 0
        var mustSweep = false
        var counts = Counts()
        var rechecks: Set<CredentialsID> = []
    }

    /// How long no refresh token is presented.
    static let hold: Duration = .seconds(3)
    /// How long the refresh token of a record is not presented that is known not to be the newest: the replica that was
    /// granted the newest one may be starting again, with its journal.
    static let longHold: Duration = .seconds(10)
    /// A store that has not answered within that time counts as away.
    static let answerLimit: Duration = .seconds(1)
    /// For how long after its going back a store shows records that nobody has come by.
    private static let spread: Duration = .seconds(120)
    /// More are found by the sweep.
    private static let recheckLimit = 10_000

    private let span: Duration
    private let time: any Time
    private let state = Mutex(State())
    /// In nanoseconds: `holdEnd`, for those who ask often.
    private let holdEnd = Atomic<Int64>(.min)
    /// Signalled when there is something to do.
    let wakeUps = KeyedSignal<Int>()

    /// - Parameter span: for how long what is refused is in doubt afterwards; zero heeds nothing.
    init(span: Duration, time: any Time) {
        self.span = span
        self.time = time
    }

    /// The store has gone back.
    /// - Parameter earlier: how long ago another process noticed it; nil where this one does now.
    func note(noticed earlier: Duration? = nil) {
        if span == .zero { return }
        let now = time.monotonic
        let noticed = now.advanced(by: .zero - (earlier ?? .zero))
        let boundary = time.now.advanced(by: .zero - (earlier ?? .zero)).milliseconds * 1000
        state.withLock { state in
            // Every connection may tell of it; and the store may have gone back once more.
            if let last = state.noticed, earlier == nil, noticed < last.advanced(by: .seconds(1)) {
                state.mustSweep = true
                return
            }
            if let last = state.noticed, earlier != nil, noticed <= last { return }
            if state.noticed.map({ $0.advanced(by: Self.hold) <= now }) ?? true { state.counts = Counts() }
            // Another replica may have noticed it first, and its clock may be behind this one's.
            if state.noticed.map({ $0.advanced(by: Self.spread) <= now }) ?? true {
                state.putBackFrom = boundary - Self.longHold.milliseconds * 1000
            }
            state.noticed = noticed
            state.boundary = max(state.boundary, boundary)
            state.holdStart = max(state.holdStart, noticed)
            state.mustSweep = true
            holdEnd.store(state.holdStart.advanced(by: Self.hold).nanoseconds, ordering: .releasing)
        }
        wakeUps.signal(0)
    }

    /// The store has not answered: the hold begins anew, unless it was over when the store was last asked.
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

    /// A record was found to be older than one that was seen. Where it is known that the store has gone back, it is what shows
    /// for some time.
    func noteByVersion() {
        if !isUnsettled { note() }
    }

    /// There may be something in an earlier process's journal that the store does not have.
    func askForSweep() { state.withLock { $0.mustSweep = true } }

    /// How long no refresh token is to be presented yet; nil for no time.
    var remainingHold: Duration? {
        let end = MonotonicInstant(nanoseconds: holdEnd.load(ordering: .acquiring))
        let now = time.monotonic
        return end > now ? now.duration(to: end) : nil
    }

    /// The same of a record that is known not to be the newest.
    var remainingLongHold: Duration? {
        let now = time.monotonic
        let end = state.withLock { $0.holdStart }.advanced(by: Self.longHold)
        return end > now ? now.duration(to: end) : nil
    }

    /// Whether a record of that version may be one that was replaced by a commit which the store has lost.
    func isDoubtful(_ version: Int64) -> Bool {
        let now = time.monotonic
        return state.withLock { state in
            guard let noticed = state.noticed, noticed.advanced(by: span) > now else { return false }
            return version < state.boundary
        }
    }

    /// Whether the store may still show records that no replica has looked at since it has gone back.
    var isUnsettled: Bool {
        let now = time.monotonic
        return state.withLock { $0.noticed.map { $0.advanced(by: Self.spread) > now } ?? false }
    }

    /// Whether the store has gone back within the span, as far as is known.
    var isRecent: Bool { isDoubtful(.min) }

    /// Whether a record of that version may be one that another replica has put back.
    func mayBePutBack(_ version: Int64) -> Bool { state.withLock { $0.noticed != nil && version >= $0.putBackFrom } }

    /// These are to be looked at.
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
