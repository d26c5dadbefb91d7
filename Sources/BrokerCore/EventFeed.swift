package import CredentialStore
package import OAuth
internal import Reactor
internal import Synchronization

/// Follows the log of events for everybody who listens in this process.
///
/// While there are listeners, one task reads the log's new end, once for all of them, and keeps the newest entries as
/// they are sent. A listener has nothing but its position: it takes from here what lies behind that, and reads the store
/// itself where it stands further back. So no listener costs memory by being slow, and none holds up another.
package final class EventFeed: Sendable {
    /// Whose events somebody listens to.
    package struct Scope: Sendable {
        /// Nil for every tenant.
        package let tenant: TenantName?
        /// Nil for every storage key.
        package let storageKeys: Set<String>?

        package init(tenant: TenantName?, storageKeys: [StorageKey]?) {
            self.tenant = tenant
            self.storageKeys = storageKeys.map { Set($0.map(\.description)) }
        }

        func includes(_ entry: EventEntry) -> Bool {
            (tenant.map { $0 == entry.tenant } ?? true) && (storageKeys?.contains(entry.storageKey) ?? true)
        }
    }

    /// What the feed has for a listener.
    enum Next {
        /// Entries of the scope; everything up to `through` is among them or concerns others.
        case entries([EventEntry], through: Int64)
        /// Nothing up to `through`, which is all that the feed knows.
        case nothing(through: Int64)
        /// The listener stands before what is kept here.
        case behind
    }

    private struct Waiter {
        let tenant: TenantName?
        let deadline: MonotonicInstant
        let continuation: CheckedContinuation<Int64, Never>
    }

    private struct State {
        var listeners: [TenantName?: Int] = [:]
        var following = 0
        /// The newest entries, in order; every entry behind `floor` and up to `head` that opens is among them.
        var tail: [EventEntry] = []
        var floor: Int64 = 0
        var head: Int64 = 0
        var hasGrown = false
        var waiters: [UInt64: Waiter] = [:]
        var lastWaiter: UInt64 = 0
        /// Waits that were cancelled before they began.
        var left: Set<UInt64> = []
        var sent = [Int](repeating: 0, count: BrokerEvent.Kind.allCases.count)
        var unreadable: Set<Int64> = []
        var isDraining = false
        var reader: Task<Void, Never>?
        var run: UInt64 = 0
    }

    /// How many entries are kept in memory; half of them go when there are more.
    package static let tailLength = 4096
    package static let pageLength = 256
    /// How many entries a listener is given at a time.
    private static let portion = 64
    /// How often a store is looked at that others write to as well, and how often the waits of listeners are.
    private static let interval: Duration = .seconds(1)

    let time: any Time
    let log: Log
    private let vault: Vault
    private let trust: Trust
    private let maximumPerTenant: Int
    private let state = Mutex(State())
    private let wakeUps = Signals<Int>()
    /// How far the log reaches. Whoever listens needs to know, and after an outage all come at once.
    private let reach: SharedQuestion<Result<LogBounds, StoreError>>

    /// - Parameter maximumPerTenant: listeners of one tenant in this process.
    package init(vault: Vault, bus: EventBus, time: any Time, log: Log, maximumPerTenant: Int) {
        self.vault = vault
        self.time = time
        self.log = log
        self.maximumPerTenant = maximumPerTenant
        trust = bus.trust
        reach = SharedQuestion {
            do throws(StoreError) {
                return .success(try await vault.logBounds())
            } catch {
                return .failure(error)
            }
        }
        bus.onGrowth { [weak self] tenant in
            self?.grew(tenant)
        } orAny: { [weak self] in
            self?.grew(nil)
        }
    }

    // MARK: Listeners

    /// Admits a listener, who begins behind everything that was committed before this call, or at `position`.
    /// - Throws: `too_many_requests`, and `storage_unavailable` where the store does not say how far the log reaches.
    package func listener(_ scope: Scope, after position: EventPosition?) async throws(BrokerError) -> EventListener {
        let isAdmitted = state.withLock { state in
            if state.listeners[scope.tenant, default: 0] >= maximumPerTenant { return false }
            state.listeners[scope.tenant, default: 0] += 1
            return true
        }
        guard isAdmitted else {
            throw BrokerError(
                .tooManyRequests,
                "This process has as many listeners of the tenant as it takes. Listen elsewhere, or later.",
                retryAfter: 10)
        }
        let place = Place(feed: self, tenant: scope.tenant)
        do throws(StoreError) {
            return EventListener(self, scope, place, after: position, bounds: try await bounds())
        } catch {
            throw BrokerError(error)
        }
    }

    /// One of the places that listeners of a tenant may have; given back when nobody holds it any more. A stream that is
    /// never run, because its client has gone, gives it back like any other.
    final class Place: Sendable {
        private let feed: EventFeed
        private let tenant: TenantName?

        fileprivate init(feed: EventFeed, tenant: TenantName?) {
            self.feed = feed
            self.tenant = tenant
        }

        deinit {
            feed.leave(tenant)
        }
    }

    private func leave(_ tenant: TenantName?) {
        state.withLock { state in
            let rest = state.listeners[tenant, default: 1] - 1
            state.listeners[tenant] = rest == 0 ? nil : rest
        }
    }

    /// How many listeners there are.
    package var listenerCount: Int { state.withLock { $0.listeners.values.reduce(0, +) } }

    /// How many events of each kind were sent so far, counted once for each listener.
    package var sent: [(kind: BrokerEvent.Kind, count: Int)] {
        Array(zip(BrokerEvent.Kind.allCases, state.withLock { $0.sent }))
    }

    func count(_ kinds: [BrokerEvent.Kind]) {
        state.withLock { state in
            for kind in kinds { state.sent[BrokerEvent.Kind.allCases.firstIndex(of: kind)!] += 1 }
        }
    }

    // MARK: Ending

    var isDraining: Bool { state.withLock { $0.isDraining } }

    /// Has every listener come to its end: whoever goes on listening does so elsewhere.
    package func beginDraining() {
        let waiters = state.withLock { state in
            state.isDraining = true
            defer { state.waiters = [:] }
            return state.waiters.values
        }
        for waiter in waiters { waiter.continuation.resume(returning: 0) }
        wakeUps.close()
    }

    /// Suspends until nothing reads the log any more. Only after `beginDraining`.
    package func idle() async {
        await state.withLock { $0.reader }?.value
        await reach.idle()
    }

    // MARK: Following the log

    /// The one place that hears of new entries: from this process's commits, and from the change feed, while there is
    /// one. Without it, those of other replicas are found by looking.
    /// - Parameter tenant: nil where it may be anybody's.
    private func grew(_ tenant: TenantName?) {
        let isHeard = state.withLock { state in
            guard state.following > 0 else { return false }
            state.hasGrown = true
            // What nobody listens to can wait for the next look.
            return tenant == nil || state.listeners[tenant] != nil || state.listeners[nil] != nil
        }
        if isHeard { wakeUps.signal(0) }
    }

    /// Keeps the log followed while `body` runs.
    /// - Parameter last: how far the log reached at some time; following begins there where nobody does so yet.
    func following(from last: Int64, _ body: () async -> Void) async {
        state.withLock { state in
            state.following += 1
            guard state.following == 1, !state.isDraining else { return }
            // Whatever was committed since `last` may have been announced to nobody.
            state.hasGrown = true
            state.tail = []
            (state.floor, state.head) = (last, last)
            state.run += 1
            let (run, previous) = (state.run, state.reader)
            state.reader = Task {
                await previous?.value
                await self.follow(run)
            }
        }
        await body()
        let isLast = state.withLock { state in
            state.following -= 1
            return state.following == 0
        }
        if isLast { wakeUps.signal(0) }
    }

    /// Whether somebody tells of every commit to the log.
    private var hearsEverything: Bool { vault.revalidateAfter == nil || trust.isFollowing(time.monotonic) }

    private func follow(_ run: UInt64) async {
        var (isAway, mayHaveMore) = (false, false)
        while true {
            let ticket = wakeUps.ticket(0)
            let work = state.withLock { state -> (head: Int64, isDue: Bool)? in
                guard state.following > 0, state.run == run, !state.isDraining else {
                    // A later run has begun with a tail of its own.
                    if state.run == run { state.tail = [] }
                    return nil
                }
                let isDue = mayHaveMore || state.hasGrown || isAway || !hearsEverything
                state.hasGrown = false
                return (state.head, isDue)
            }
            guard let work else { return }
            mayHaveMore = false
            if work.isDue {
                do throws(StoreError) {
                    mayHaveMore = try await readOn(from: work.head, run, checksForLoss: isAway)
                    isAway = false
                } catch {
                    if !isAway { log.error("store_failed", [.store(error)]) }
                    isAway = true
                }
            }
            wakeOverdue()
            if mayHaveMore { continue }
            await wakeUps.wait(for: 0, since: ticket) { _ = try? await self.time.sleep(for: Self.interval) }
        }
    }

    /// Reads one page behind `head`. Returns whether there may be more.
    private func readOn(from head: Int64, _ run: UInt64, checksForLoss: Bool) async throws(StoreError) -> Bool {
        let page = try await vault.entries(after: head, limit: Self.pageLength)
        if page.isEmpty, !checksForLoss { return false }
        // Where trimming has passed the reader, listeners are sent to the store, which tells each what it has missed.
        let trimmed = try await bounds().trimmed
        let entries = page.compactMap { read($0) }
        let last = page.last?.sequence ?? max(head, trimmed)
        let concerned = state.withLock { state -> [Waiter] in
            guard state.run == run else { return [] }
            if trimmed > head {
                state.tail = []
                state.floor = last
            } else {
                state.tail += entries
                if state.tail.count > Self.tailLength {
                    let surplus = state.tail.count - Self.tailLength / 2
                    state.floor = state.tail[surplus - 1].sequence
                    state.tail.removeFirst(surplus)
                }
            }
            state.head = last
            let tenants = Set(entries.map(\.tenant))
            let isLoss = trimmed > head
            let ids = state.waiters.filter { isLoss || $0.value.tenant.map(tenants.contains) ?? true }.keys
            return ids.compactMap { state.waiters.removeValue(forKey: $0) }
        }
        for waiter in concerned { waiter.continuation.resume(returning: head) }
        return page.count == Self.pageLength
    }

    /// Up to a page of what lies behind `sequence`, from the store, and how far the log reached after that.
    func page(
        after sequence: Int64, _ tenant: TenantName?
    ) async throws(StoreError) -> (entries: [EventEntry], last: Int64, isFull: Bool, bounds: LogBounds) {
        let page = try await vault.page(after: sequence, tenant: tenant, limit: Self.pageLength)
        return (page.entries.compactMap { read($0) }, page.last, page.isFull, try await bounds())
    }

    /// How far the log reaches, what was committed before this call included.
    /// - Throws: what the store does; `.unavailable` where the task was cancelled.
    private func bounds() async throws(StoreError) -> LogBounds {
        guard let bounds = await reach.answer() else { throw .unavailable }
        return try bounds.get()
    }

    private func read(_ entry: VaultLogEntry) -> EventEntry? {
        if let read = EventEntry(entry) { return read }
        let isNews = state.withLock { state in
            // Said again after so many; the set may not grow with the damage.
            if state.unreadable.count >= 1024 { state.unreadable = [] }
            return state.unreadable.insert(entry.sequence).inserted
        }
        if isNews { log.error("event_unreadable", [.tenant(entry.tenant), .sequence(entry.sequence)]) }
        return nil
    }

    // MARK: Giving out

    /// What lies behind `sequence` for a listener of that scope.
    func next(after sequence: Int64, _ scope: Scope) -> Next {
        state.withLock { state in
            if sequence < state.floor { return .behind }
            if sequence >= state.head { return .nothing(through: sequence) }
            var found: [EventEntry] = []
            // In order, so the first one of interest is found by halving.
            var (low, high) = (0, state.tail.count)
            while low < high {
                let middle = (low + high) / 2
                if state.tail[middle].sequence <= sequence { low = middle + 1 } else { high = middle }
            }
            for entry in state.tail[low...] where scope.includes(entry) {
                found.append(entry)
                if found.count == Self.portion { return .entries(found, through: entry.sequence) }
            }
            return found.isEmpty ? .nothing(through: state.head) : .entries(found, through: state.head)
        }
    }

    /// Suspends until there may be something behind `sequence` for a listener of that tenant, until `deadline`, until
    /// the broker is being stopped, or until the task is cancelled.
    /// - Returns: up to where nothing concerned the listener; `sequence` at least. So one of a quiet tenant does not fall
    ///   behind while others' events go by.
    func wait(after sequence: Int64, _ tenant: TenantName?, until deadline: MonotonicInstant) async -> Int64 {
        let waiter = state.withLock { state in
            state.lastWaiter += 1
            return state.lastWaiter
        }
        let through = await withTaskCancellationHandler {
            await withCheckedContinuation { continuation in
                let isOver = state.withLock { state in
                    if state.left.remove(waiter) != nil || state.isDraining { return true }
                    if state.head > sequence || deadline <= time.monotonic { return true }
                    state.waiters[waiter] = Waiter(tenant: tenant, deadline: deadline, continuation: continuation)
                    return false
                }
                if isOver { continuation.resume(returning: sequence) }
            }
        } onCancel: {
            let found = state.withLock { state in
                let found = state.waiters.removeValue(forKey: waiter)
                if found == nil { state.left.insert(waiter) }
                return found
            }
            found?.continuation.resume(returning: sequence)
        }
        // A cancellation that came after the end of the wait has left a mark that nobody reads.
        state.withLock { _ = $0.left.remove(waiter) }
        return max(sequence, through)
    }

    private func wakeOverdue() {
        let now = time.monotonic
        let (overdue, head) = state.withLock { state in
            let ids = state.waiters.filter { $0.value.deadline <= now }.keys
            return (ids.compactMap { state.waiters.removeValue(forKey: $0) }, state.head)
        }
        for waiter in overdue { waiter.continuation.resume(returning: head) }
    }
}
