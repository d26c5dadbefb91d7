import Containers
package import CredentialStore
import ExternalText
package import OAuth
import Reactor
import Synchronization
import Waiting

/// Follows the log of events for all listeners of this process.
///
/// While there are listeners, one task reads the new entries of the log, once for all listeners, and keeps the newest
/// entries as they are sent. A listener has only its position. It takes the entries after its position from the feed, and
/// reads older entries from the store itself. So a slow listener needs no memory and delays no other listener.
///
/// The feed encodes a message once for all listeners at the same position, and sends in batches: the first entry after a
/// pause at once, and the entries that follow within `span` together at the end of `span`. A message to a thousand
/// listeners is a thousand writes, so one message for each entry would be too expensive. Each tenant has its own pauses:
/// the messages of one tenant do not delay those of another.
package final class EventFeed: Sendable {
    /// The events that a listener receives.
    package struct Scope: Sendable {
        /// Nil for every tenant.
        package let tenant: TenantName?
        /// Nil for every storage key.
        package let storageKeys: StorageKeyLimit?
        /// The API key that the stream was opened with; nil for none.
        package let apiKey: RecordID?
        /// The version of that key.
        package let keyVersion: Int64
        /// When that key expires.
        package let expires: Timestamp?

        package init(
            tenant: TenantName?, storageKeys: StorageKeyLimit?, apiKey: RecordID? = nil, keyVersion: Int64 = 0,
            expires: Timestamp? = nil
        ) {
            self.tenant = tenant
            self.storageKeys = storageKeys
            self.apiKey = apiKey
            self.keyVersion = keyVersion
            self.expires = expires
        }

        func includes(_ entry: EventEntry) -> Bool {
            if let tenant, tenant != entry.tenant { return false }
            // What is missing before a marker may be of any storage key.
            return entry.isMarker || (storageKeys?.includes(entry.storageKey.utf8.span) ?? true)
        }
    }

    package struct Limits: Sendable {
        /// How many listeners one tenant may have in this process; nil for any number.
        package let perTenant: Int?
        /// How many listeners one API key may have in this process; nil for any number.
        package let perKey: Int?
        /// For how long events are collected after others were sent, to be sent together. It is the longest delay of an event,
        /// and the shortest time between two writes to one listener, unless there is more than one piece to send. Zero
        /// collects none.
        package let span: Duration

        package init(perTenant: Int?, perKey: Int?, span: Duration) {
            self.perTenant = perTenant
            self.perKey = perKey
            self.span = span
        }
    }

    /// What the feed has for a listener.
    enum Next {
        /// Events of the scope; every one up to `through` is in the piece or concerns others.
        case piece(EventListener.Piece, through: Int64)
        /// Nothing up to `through`, which is as far as entries are given out by now.
        case nothing(through: Int64)
        /// The listener stands before what is kept here.
        case behind
    }

    /// How many entries are kept in memory; half of them go when there are more.
    package static let tailLength = 4096
    package static let pageLength = 256
    /// How many entries are kept as they are in the log, for a store that goes back.
    static let recentLength = 512
    /// When a listener that is refused is told to come again: how soon another one leaves is not known.
    private static let retryAfter: Duration = .seconds(10)
    /// For how many records the store is asked at once whether they are there.
    private static let reviewBatch = 500
    /// How often a store is looked at that others write to as well, and how often the waits of listeners are.
    private static let interval: Duration = .seconds(1)

    let time: any Time
    let log: Log
    private let vault: Vault
    private let bus: EventBus
    private let cacheValidity: CacheValidity
    private let limits: Limits
    private let state = Mutex(EventFeedState())
    private let wakeUps = KeyedSignal<Int>()
    /// The last sequence of the log. Each new listener needs it, and after an outage all listeners connect at once.
    private let reach: CoalescedCall<Result<LogBounds, StoreError>>

    package init(vault: Vault, bus: EventBus, limits: Limits, instruments: Instruments) {
        self.vault = vault
        (time, log) = (instruments.time, instruments.log)
        self.bus = bus
        self.limits = limits
        cacheValidity = bus.cacheValidity
        reach = CoalescedCall {
            do throws(StoreError) {
                return .success(try await vault.logBounds())
            } catch {
                return .failure(error)
            }
        }
        bus.onGrowth { [weak self] tenant in
            self?.grew(tenant)
        } orAny: { [weak self] in
            self?.state.withLock { $0.mayHaveMissedRevocation = true }
            self?.grew(nil)
        }
        bus.onRevocation { [weak self] tenant in
            guard let self else { return }
            for wake in state.withLock({ $0.review(tenant) }) { wake() }
        }
        instruments.metrics.show(.eventListeners) { [weak self] in self?.listenerCount }
        instruments.metrics.showEach(.eventsSent) { [weak self] in
            self?.sent.map { (#"kind="\#($0.kind.rawValue)""#, $0.count) }
        }
    }

    // MARK: Listeners

    /// Admits a listener, who begins behind everything that was committed before this call, or at `position`.
    /// - Throws: `too_many_requests`, and `storage_unavailable` where the store does not say how far the log reaches.
    package func listener(_ scope: Scope, after position: EventPosition?) async throws(BrokerError) -> EventListener {
        let place = try admit(scope)
        do throws(StoreError) {
            return EventListener(self, scope, place, after: position, bounds: try await bounds())
        } catch {
            throw BrokerError(error)
        }
    }

    private func admit(_ scope: Scope) throws(BrokerError) -> Place {
        let admission: Result<UInt64, BrokerError> = state.withLock { state in
            if let limit = limits.perTenant, state.listeners[scope.tenant, default: 0] >= limit {
                return .failure(Quota.streamsOfTenant.exceeded(retryAfter: Self.retryAfter))
            }
            if let key = scope.apiKey {
                let others = state.listenersOfKeys[key]
                if let limit = limits.perKey, let others, others.count >= limit {
                    return .failure(Quota.streamsOfKey.exceeded(retryAfter: Self.retryAfter))
                }
                state.listenersOfKeys[key] = EventFeedState.KeyListeners(
                    count: (others?.count ?? 0) + 1, version: min(others?.version ?? .max, scope.keyVersion))
            }
            state.listeners[scope.tenant, default: 0] += 1
            state.lastAdmission += 1
            // It is reviewed before it is sent anything: the key may have been removed since it was looked up.
            state.admissions[state.lastAdmission] = EventFeedState.Admission(
                tenant: scope.tenant, apiKey: scope.apiKey, mustReview: true)
            return .success(state.lastAdmission)
        }
        return Place(feed: self, id: try admission.get())
    }

    /// One of the places that listeners of a tenant may have. It is released with its last reference. A stream that never
    /// runs, because its client has disconnected, releases its place as well.
    final class Place: Sendable {
        private let feed: EventFeed
        fileprivate let id: UInt64

        fileprivate init(feed: EventFeed, id: UInt64) {
            self.feed = feed
            self.id = id
        }

        deinit {
            feed.leave(id)
        }

        /// Whether it is to be asked now whether the listener may still listen.
        var mustReview: Bool { feed.state.withLock { $0.admissions[id]?.mustReview ?? false } }

        /// It is being asked; what comes after this is asked again.
        func beginReview() {
            feed.state.withLock { $0.admissions[id]?.mustReview = false }
        }
    }

    private func leave(_ id: UInt64) {
        state.withLock { state in
            guard let admission = state.admissions.removeValue(forKey: id) else { return }
            let rest = state.listeners[admission.tenant, default: 1] - 1
            state.listeners[admission.tenant] = rest == 0 ? nil : rest
            guard let key = admission.apiKey else { return }
            state.listenersOfKeys[key]?.count -= 1
            if state.listenersOfKeys[key]?.count == 0 { state.listenersOfKeys[key] = nil }
        }
    }

    /// How many listeners there are.
    package var listenerCount: Int { state.withLock { $0.listeners.values.reduce(0, +) } }

    /// How many events of each kind were sent so far, counted once for each listener.
    private var sent: [(kind: BrokerEvent.Kind, count: Int)] {
        Array(zip(BrokerEvent.Kind.allCases, state.withLock { $0.sent }))
    }

    func count(_ piece: EventListener.Piece) {
        state.withLock { state in
            for (index, count) in piece.counts.enumerated() { state.sent[index] += count }
        }
    }

    // MARK: Ending

    var isDraining: Bool { state.withLock { $0.isDraining } }

    /// Ends all listeners. Their clients connect again, to another replica.
    package func beginDraining() {
        let wakes = state.withLock { state in
            state.isDraining = true
            return state.waiters.keys.flatMap { state.wake($0, through: 0) }
        }
        for wake in wakes { wake() }
        wakeUps.close()
    }

    /// Suspends until nothing reads the log any more. Only after `beginDraining`.
    package func finish() async {
        await state.withLock { $0.reader }?.value
        await reach.finish()
    }

    // MARK: Following the log

    /// Notes that the log has grown. This process's commits call it, and so does the change feed, where the store has one.
    /// Without a change feed, periodic reads of the log find the entries of other replicas.
    /// - Parameter tenant: the tenant of the entry; nil where the tenant is not known.
    private func grew(_ tenant: TenantName?) {
        let now = time.monotonic
        let isUrgent = state.withLock { state in
            guard state.following > 0 else { return false }
            state.hasGrown = true
            // An entry without a listener can wait for the next read, and an entry that a batch would hold for its end.
            let groups = [tenant, nil].filter { state.listeners[$0] != nil }
            if tenant == nil || !groups.isEmpty { state.hasGrownHere = true }
            // A pause that is over may not have been taken out yet.
            return tenant == nil || groups.contains { state.pauses[$0].map { $0.end <= now } ?? true }
        }
        if isUrgent { wakeUps.signal(0) }
    }

    /// Keeps the log followed while `body` runs.
    /// - Parameter last: a sequence that the log had reached. The feed begins to follow there, unless it follows already.
    func following(from last: Int64, _ body: () async -> Void) async {
        state.withLock { state in
            state.following += 1
            guard state.following == 1, !state.isDraining else { return }
            // No listener was there for the announcements of commits since `last`.
            state.hasGrown = true
            state.forget()
            (state.floor, state.head) = (last, last)
            state.run += 1
            let (run, previous) = (state.run, state.reader)
            state.reader = TraceContext.leaving {
                Task {
                    await previous?.value
                    await self.follow(run)
                }
            }
        }
        await body()
        let isLast = state.withLock { state in
            state.following -= 1
            return state.following == 0
        }
        if isLast { wakeUps.signal(0) }
    }

    /// Whether every commit to the log is announced to this process.
    private var hearsEverything: Bool { vault.revalidateAfter == nil || cacheValidity.isFeedAlive(at: time.monotonic) }

    private func follow(_ run: UInt64) async {
        var (isAway, mayHaveMore) = (false, false)
        while true {
            let ticket = wakeUps.ticket(0)
            let work = state.withLock { state -> (head: Int64, isDue: Bool)? in
                guard state.following > 0, state.run == run, !state.isDraining else {
                    // A later run has begun with a tail of its own.
                    if state.run == run { state.forget() }
                    return nil
                }
                let isDue = mayHaveMore || state.hasGrown || isAway || !hearsEverything
                (state.hasGrown, state.hasGrownHere) = (false, false)
                return (state.head, isDue)
            }
            guard let work else { return }
            mayHaveMore = false
            if work.isDue {
                do throws(StoreError) {
                    try await lookForRevocations(isAway)
                    mayHaveMore = try await readOn(from: work.head, run, checksForLoss: isAway)
                    isAway = false
                } catch {
                    if !isAway { log.storeFailed(error) }
                    isAway = true
                }
            }
            let rest = wakeDue(run)
            if mayHaveMore { continue }
            await wakeUps.wait(for: 0, since: ticket) { _ = try? await self.time.sleep(for: rest) }
        }
    }

    /// Asks the store whether the keys and tenants of all listeners are still there and the keys still have the secrets that they
    /// had, unless every removal and every rotation is told of, and announces those for which that is not so.
    private func lookForRevocations(_ isAway: Bool) async throws(StoreError) {
        if vault.revalidateAfter == nil { return }
        let ids = state.withLock { state -> Set<RecordID> in
            guard state.mayHaveMissedRevocation || isAway || !hearsEverything else { return [] }
            state.mayHaveMissedRevocation = false
            return Set(state.listenersOfKeys.keys).union(
                state.listeners.keys.compactMap { tenant in tenant.map { RecordID(.tenant, $0) } })
        }
        for batch in Array(ids).inBatches(of: Self.reviewBatch) {
            do throws(StoreError) {
                for (id, version) in zip(batch, try await vault.versions(of: Array(batch))) {
                    if id.kind == .tenant {
                        if version == nil { bus.announce(removalOf: id.tenant) }
                    } else if isNews(version, of: id) {
                        bus.announce(id, version: version)
                    }
                }
            } catch {
                state.withLock { $0.mayHaveMissedRevocation = true }
                throw error
            }
        }
    }

    /// Whether a key has another version than when its listeners were last asked whether they may listen. Notes the version.
    private func isNews(_ version: Int64?, of key: RecordID) -> Bool {
        guard let version else { return true }
        return state.withLock { state in
            guard let known = state.listenersOfKeys[key]?.version, known != version else { return false }
            state.listenersOfKeys[key]?.version = version
            return true
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
        let now = time.monotonic
        let wakes = state.withLock { state -> [EventFeedState.Wake] in
            guard state.run == run else { return [] }
            state.head = last
            if vault.revalidateAfter != nil { state.keep(page) }
            if trimmed > head || entries.contains(where: \.isMarker) {
                state.forget()
                state.floor = last
                return state.waiters.keys.flatMap { state.wake($0, through: head) }
            }
            state.tail += entries
            for tenant in Set(entries.map(\.tenant)) { state.hold(tenant, behind: head, at: now) }
            if !entries.isEmpty { state.hold(nil, behind: head, at: now) }
            let wakes = state.giveOut(at: now, span: limits.span)
            if state.tail.count > Self.tailLength {
                let surplus = state.tail.count - Self.tailLength / 2
                state.floor = state.tail[surplus - 1].sequence
                state.tail.removeFirst(surplus)
            }
            return wakes
        }
        for wake in wakes { wake() }
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
        guard let bounds = await reach.value() else { throw .unavailable }
        return try bounds.get()
    }

    private func read(_ entry: VaultLogEntry) -> EventEntry? {
        if let read = EventEntry(entry) { return read }
        let isNews = state.withLock { state in
            if state.unreadable[entry.sequence] != nil { return false }
            state.unreadable[entry.sequence] = ()
            return true
        }
        if isNews { log.error("event_unreadable", [.tenant(entry.tenant), .sequence(entry.sequence)]) }
        return nil
    }

    /// The entries that listeners of this process may have got last; taken once.
    func takeRecent() -> [VaultLogEntry] {
        state.withLock { state in
            defer { state.recent = [] }
            return state.recent
        }
    }

    /// Gives back what was taken and could not be looked at.
    func putBack(_ entries: [VaultLogEntry]) {
        state.withLock { $0.recent.insert(contentsOf: entries, at: 0) }
    }

    // MARK: Giving out

    /// What lies behind `sequence` for a listener of that scope.
    /// - Parameter resumed: the event behind which the stream goes on, where that is in the middle of an entry.
    func next(after sequence: Int64, _ scope: Scope, behind resumed: EventPosition?) -> Next {
        state.withLock { state in
            if sequence < state.floor { return .behind }
            let limit = state.limit(scope.tenant)
            if sequence >= limit { return .nothing(through: sequence) }
            // A single listener of a tenant, or of some storage keys, gets messages of its own.
            let isShared =
                scope.storageKeys == nil && resumed == nil && state.listeners[scope.tenant, default: 0] > 1
            let key = EventFeedState.PieceKey(tenant: scope.tenant, sequence: sequence)
            if isShared, let kept = state.pieces[key] { return .piece(kept.piece, through: kept.through) }
            var (piece, through) = (EventListener.Piece(), limit)
            for entry in state.tail[state.place(behind: sequence)...] {
                if entry.sequence > limit { break }
                guard scope.includes(entry) else { continue }
                piece.append(entry, behind: resumed)
                if piece.isFull {
                    through = entry.sequence
                    break
                }
            }
            if piece.bytes.isEmpty { return .nothing(through: through) }
            if isShared { state.pieces[key] = (piece, through) }
            return .piece(piece, through: through)
        }
    }

    /// Suspends until there may be something behind `sequence` for a listener of that tenant, until `deadline`, until
    /// the broker is being stopped, or until the task is cancelled.
    /// - Returns: up to where nothing concerned the listener; `sequence` at least. So one of a quiet tenant does not fall
    ///   behind while others' events go by.
    /// It is not begun where the place's listener is to be reviewed.
    func wait(
        after sequence: Int64, _ tenant: TenantName?, at place: Place, until deadline: MonotonicInstant
    ) async -> Int64 {
        let waiter = state.withLock { state -> Waiter<Int64>? in
            if state.isDraining || state.admissions[place.id]?.mustReview == true { return nil }
            if state.limit(tenant) > sequence || deadline <= time.monotonic { return nil }
            return state.waiters[tenant, default: WaitList()].enter(deadline)
        }
        guard let waiter else { return sequence }
        let through = await waiter.value {
            self.state.withLock { $0.remove(waiter, tenant) }?.resume(returning: sequence)
        }
        return max(sequence, through)
    }

    /// Ends the waits whose time has come, and gives out what was held long enough. Returns for how long there is nothing
    /// of that kind to do.
    private func wakeDue(_ run: UInt64) -> Duration {
        let now = time.monotonic
        let (wakes, next) = state.withLock { state -> ([EventFeedState.Wake], MonotonicInstant) in
            guard state.run == run else { return ([], now) }
            let wakes = state.giveOut(at: now, span: limits.span) + state.wakeDue(at: now)
            // An entry that came during a pause which has ended since has woken no task.
            let look = state.hasGrownHere ? now : now.advanced(by: Self.interval)
            let pauseEnd = state.pauses.values.lazy.map(\.end).min()
            return (wakes, pauseEnd.map { min($0, now.advanced(by: Self.interval)) } ?? look)
        }
        for wake in wakes { wake() }
        return now.duration(to: next)
    }
}
