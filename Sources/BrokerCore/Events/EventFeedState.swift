import Containers
import CredentialStore
import OAuth
import Reactor
import Waiting

/// What an `EventFeed` knows at one moment, under its lock: who listens, the log's end, and who waits for what.
struct EventFeedState {
    /// How many pieces are kept: about 2 MiB at most, unless single events are larger than a piece is to be.
    private static let keptPieces = 64

    /// The end of a wait: what it is over with.
    struct Wake {
        let waiter: Waiter<Int64>
        let through: Int64

        func callAsFunction() { waiter.resume(returning: through) }
    }

    /// The span after something was given out to a tenant's listeners, or to those of every tenant.
    struct Pause {
        let end: MonotonicInstant
        /// Where there is more for them by now: the place in the log up to which there is not.
        var held: Int64?
    }

    /// A piece that was put together for all who stand at one place.
    struct PieceKey: Hashable {
        let tenant: TenantName?
        let sequence: Int64
    }

    /// A listener that was admitted.
    struct Admission {
        let tenant: TenantName?
        let apiKey: RecordID?
        /// Whether it is to be asked now whether it may still listen.
        var mustReview = false
    }

    /// The listeners of one API key.
    struct KeyListeners {
        var count: Int
        /// The version of the key when they were last asked whether they may listen; of several, the oldest.
        var version: Int64
    }

    var listeners: [TenantName?: Int] = [:]
    var admissions: [UInt64: Admission] = [:]
    var listenersOfKeys: [RecordID: KeyListeners] = [:]
    var lastAdmission: UInt64 = 0
    /// Whether the feed may have missed the removal of a key or a tenant.
    var mayHaveMissedRevocation = false
    var following = 0
    /// The newest entries, in order; every entry behind `floor` and up to `head` that opens is among them.
    var tail: [EventEntry] = []
    /// The entries that were read last, as they are in the log; none of a store with one writer, which loses no commits.
    var recent: [VaultLogEntry] = []
    var floor: Int64 = 0
    var head: Int64 = 0
    var hasGrown = false
    /// Whether it has grown by an event that a listener of this process waits for.
    var hasGrownHere = false
    /// By whose events they wait for, each until its deadline.
    var waiters: [TenantName?: WaitList<MonotonicInstant, Int64>] = [:]
    /// By whose listeners were given something a moment ago.
    var pauses: [TenantName?: Pause] = [:]
    /// What listeners at these places are sent. The log does not change, so that a piece is right for as long as it
    /// is kept.
    var pieces = BoundedTable<PieceKey, (piece: EventListener.Piece, through: Int64)>(capacity: keptPieces)
    var sent = [Int](repeating: 0, count: BrokerEvent.Kind.allCases.count)
    /// The entries that the log was told to be unreadable. One that is forgotten here is told again.
    var unreadable = BoundedTable<Int64, Void>(capacity: 1024)
    var isDraining = false
    var reader: Task<Void, Never>?
    var run: UInt64 = 0

    /// How far entries are given out to those who listen to that tenant, or to every one.
    func limit(_ tenant: TenantName?) -> Int64 { pauses[tenant]?.held ?? head }

    /// Where in the tail what lies behind `sequence` begins.
    func place(behind sequence: Int64) -> Int { tail.partitioningIndex { $0.sequence > sequence } }

    /// Something has come for these listeners, and up to `sequence` there was nothing.
    mutating func hold(_ tenant: TenantName?, behind sequence: Int64, at now: MonotonicInstant) {
        guard listeners[tenant] != nil else { return }
        // Without a pause, one that is over.
        var pause = pauses[tenant] ?? Pause(end: now)
        pause.held = pause.held ?? sequence
        pauses[tenant] = pause
    }

    /// Gives out what is held to all whose pause is over, and has them pause again. Returns whom that wakes.
    mutating func giveOut(at now: MonotonicInstant, span: Duration) -> [Wake] {
        var wakes: [Wake] = []
        for (tenant, pause) in pauses {
            let isOver = pause.end <= now
            guard let held = pause.held else {
                if isOver { pauses[tenant] = nil }
                continue
            }
            // The tail must not lose what was not given out.
            let isLong = tail.count - place(behind: held) >= EventFeed.tailLength / 4
            guard isOver || isLong else { continue }
            pauses[tenant] = span > .zero ? Pause(end: now.advanced(by: span)) : nil
            wakes += wake(tenant, through: held)
        }
        return wakes
    }

    /// Ends the waits for that tenant's events.
    mutating func wake(_ tenant: TenantName?, through sequence: Int64) -> [Wake] {
        var list = waiters.removeValue(forKey: tenant)
        return (list?.removeAll() ?? []).map { Wake(waiter: $0, through: sequence) }
    }

    /// Has everyone who listens to the tenant's events asked whether that is still allowed. What they wait for comes to
    /// an end at its beginning.
    mutating func review(_ tenant: TenantName) -> [Wake] {
        for (id, admission) in admissions where admission.tenant == tenant { admissions[id]?.mustReview = true }
        return wake(tenant, through: 0)
    }

    /// Ends the waits whose deadline has come.
    mutating func wakeDue(at now: MonotonicInstant) -> [Wake] {
        var wakes: [Wake] = []
        for tenant in Array(waiters.keys) {
            let through = limit(tenant)
            let due = waiters[tenant]?.removeAll { $0 <= now } ?? []
            wakes += due.map { Wake(waiter: $0, through: through) }
            if waiters[tenant]?.isEmpty == true { waiters[tenant] = nil }
        }
        return wakes
    }

    mutating func remove(_ waiter: Waiter<Int64>, _ tenant: TenantName?) -> Waiter<Int64>? {
        let removed = waiters[tenant]?.remove(waiter)
        if waiters[tenant]?.isEmpty == true { waiters[tenant] = nil }
        return removed
    }

    /// Keeps the entries in case that the store loses them.
    mutating func keep(_ entries: [VaultLogEntry]) {
        recent += entries
        recent.removeFirst(max(0, recent.count - EventFeed.recentLength))
    }

    mutating func forget() {
        (tail, pauses) = ([], [:])
        pieces.removeAll()
    }
}
