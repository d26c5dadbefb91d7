import CredentialStore
import Cryptography
import ExternalText
import OAuth
import Reactor
import Renewal
import Synchronization
import Waiting

/// The credentials, in the store and in the cache. Every change of them is made here, in one commit with its events.
final class CredentialsRecords: Sendable {
    /// What new records depend on beside their content.
    struct Options: Sendable {
        let schedule: ExpirySchedule
        /// The memory that the cache may take, in bytes.
        let cacheBytes: Int
        var journal: Journal?
        /// For how long journals of other replicas are waited for after the store has lost commits.
        var journalWait: Duration = .seconds(60)
    }

    /// Makes the events of a change once its version is known.
    typealias Events = @Sendable (_ version: Int64) -> [BrokerEvent]

    let vault: Vault
    let time: any Time
    let log: Log
    /// What this process committed lately, for a store that loses commits.
    let memory: RecentCommits
    let rollback: StoreRollback
    let losses: StoreLosses
    let journals: JournalRegistry
    let bus: EventBus
    let tenants: TenantDirectory
    let tombstones: Tombstones
    let schedule: ExpirySchedule
    private let stored: CachedRecords<CredentialsID, CredentialsSnapshot>
    /// What is stored, as it was last read or written.
    var cache: RevalidatingCache<CredentialsID, CredentialsSnapshot> { stored.cache }
    private let versions = VersionSource()
    /// Signalled when another replica has changed credentials, or released a lease on them.
    var changes: KeyedSignal<CredentialsID> { bus.changes }
    /// Signalled when a commit of this process has sessions of apps ended.
    let sessionEndings = KeyedSignal<Int>()
    /// Grants that could not be stored yet. Callers are served from them.
    private let unpublished = Mutex<[CredentialsID: CredentialsSnapshot]>([:])
    private let unpublishedCount = Atomic<Int>(0)
    /// When the store last failed to answer, in nanoseconds of the monotonic clock; at first, when this process started, since
    /// lease holders may not have reached the store before.
    private let lastFailure: Atomic<Int64>
    /// When the store last carried out a commit, likewise.
    private let lastCommit = Atomic<Int64>(Int64.min)

    /// How often a task that waits for another replica's change reads the store, in case the change is not announced.
    static let changeInterval: Duration = .seconds(1)
    /// How long a statement may hang that delays a further call within the provider's grace.
    static let statementLimit: Duration = .seconds(1)
    /// Longer than a statement takes before its sender gives up, by as much as two clocks may differ.
    private static let claimLimit: Duration = .seconds(6)

    init(
        vault: Vault, tenants: TenantDirectory, tombstones: Tombstones, bus: EventBus, memory: RecentCommits,
        options: Options, instruments: Instruments
    ) {
        (time, log) = (instruments.time, instruments.log)
        lastFailure = Atomic(time.monotonic.nanoseconds)
        (self.tenants, self.tombstones) = (tenants, tombstones)
        self.vault = vault
        self.bus = bus
        schedule = options.schedule
        self.memory = memory
        let rollback = StoreRollback(span: memory.span, time: time)
        self.rollback = rollback
        losses = StoreLosses(
            vault: vault, rollback: rollback, span: memory.span, wait: options.journalWait, time: time)
        journals = JournalRegistry(
            losses, memory: memory, vault: vault, journal: options.journal, time: time, log: log)
        stored = CachedRecords(
            .credentials(bytes: options.cacheBytes, invalidatedBy: bus), vault: vault, time: time)
        instruments.metrics.show(.journalEntries) { [weak self] in self?.countOfUnpublished }
        instruments.metrics.show(.journalsAwaited) { [weak journals] in journals?.awaitedCount }
        guard memory.isEnabled else { return }
        bus.onRollback {
            rollback.note()
        } orOlder: {
            rollback.recheck($0)
        }
        memory.follow(bus, rollback)
    }

    /// The cache, for `CacheRevalidation`.
    var revalidatedCache: AnyRevalidatingCache {
        AnyRevalidatingCache(cache, shownAs: "credentials") { id, _ in Self.recordID(id) }
    }

    /// Whether this process learns of every change of the store: no other process writes to it, or its change feed is alive.
    var isFollowing: Bool { bus.cacheValidity.lifetime == nil || bus.cacheValidity.isFeedAlive(at: time.monotonic) }

    // MARK: Reading

    /// What is stored, as far as that can be known.
    struct Reading {
        let snapshot: CredentialsSnapshot
        /// False where the store did not answer, and the snapshot is an expired cache entry.
        let isCurrent: Bool
    }

    /// What is stored. Does not suspend while a valid entry is in the cache.
    /// - Parameters:
    ///   - waits: whether to wait, where the store has just lost commits, for another replica to store a newer version again
    ///     that is known. A caller that forces a refresh waits in its renewal instead, and counts that version as its renewal.
    ///   - suffices: asked about an expired cache entry where the store does not answer. The record may have been replaced or
    ///     removed by another replica since, so nothing may be concluded from the entry beyond this answer.
    /// - Throws: `storage_unavailable` where the store does not answer and no cache entry suffices.
    func reading(
        _ id: CredentialsID, waitingForKnown waits: Bool = false, whileAway suffices: (CredentialsSnapshot) -> Bool
    ) async throws(BrokerError) -> Reading {
        if unpublishedCount.load(ordering: .acquiring) > 0, let snapshot = unpublished(id) {
            return Reading(snapshot: snapshot, isCurrent: true)
        }
        if let snapshot = cache.fresh(id, now: time.monotonic) { return Reading(snapshot: snapshot, isCurrent: true) }
        do throws(StoreError) {
            return Reading(snapshot: try await waits ? rereadAsNewAsKnown(id) : reread(id), isCurrent: true)
        } catch {
            if error == .unavailable, let known = cache.any(id), suffices(known) {
                return Reading(snapshot: known, isCurrent: false)
            }
            report(error, id)
            throw BrokerError(error)
        }
    }

    /// What is stored, read from the store.
    /// - Parameter requires: see `readWithLease`.
    func reread(
        _ id: CredentialsID, requiringTombstones requires: Bool = true
    ) async throws(StoreError) -> CredentialsSnapshot {
        try await readWithLease(id, requiringTombstones: requires).snapshot
    }

    /// What is stored and the lease on it, read from the store. If this process knows a newer version that the store has lost,
    /// that is stored again first.
    /// - Parameter requires: whether this fails where it cannot be told whether credentials were put back. False for a
    ///   caller that replaces the record, whatever it is: to that one they count as stored.
    func readWithLease(
        _ id: CredentialsID, requiringTombstones requires: Bool = true
    ) async throws(StoreError) -> (snapshot: CredentialsSnapshot, lease: Lease?) {
        try await stored.reading(id) { keep async throws(StoreError) in
            try await self.readWithLease(id, requiringTombstones: requires, keep)
        }
    }

    /// - Parameter keep: gets what is to be cached.
    private func readWithLease(
        _ id: CredentialsID, requiringTombstones requires: Bool, _ keep: (CredentialsSnapshot?) -> Void
    ) async throws(StoreError) -> (snapshot: CredentialsSnapshot, lease: Lease?) {
        let known = knownVersion(id)
        let found = try await tombstones.read(Self.recordID(id))
        var (read, told) = (found?.record, found?.told)
        if isInQuestion(id, read?.version ?? 0, known: known) {
            switch try await reconcile(id, with: read) {
            case .storedAgain(let snapshot): return (snapshot, nil)
            // Another replica may have stored it again meanwhile.
            case .current(let current): (read, told) = (current, nil)
            }
        }
        guard let record = read else {
            keep(.nothing)
            return (.nothing, nil)
        }
        let content = try content(of: record, id)
        let snapshot = CredentialsSnapshot(content, of: id, version: record.version)
        do throws(StoreError) {
            if content.granted != nil, try await tombstones.isPutBack(record, told) {
                // The user has logged out. A login replaces the record, and has a later version than the logout.
                let nothing = CredentialsSnapshot(CredentialRecord(held: nil), of: id, version: record.version)
                return (nothing, record.lease)
            }
        } catch {
            if requires { throw error }
            // A record that was read just before the store went away is served meanwhile.
            if error != .unavailable { return (snapshot, record.lease) }
        }
        keep(snapshot)
        return (snapshot, record.lease)
    }

    func content(of record: OpenRecord, _ id: CredentialsID) throws(StoreError) -> CredentialRecord {
        guard let content = CredentialRecord(decoding: record.content.revealedBytes) else {
            throw .damaged("a credentials record of tenant \(id.tenant) cannot be read by this version")
        }
        return content
    }

    // MARK: Writing

    /// Writes `record` in place of exactly `current`; see `prepareWrite`.
    /// - Parameter tenantVersion: the version that the tenant must have where the record is new; nil for any. Without it, a new
    ///   record could be stored for a tenant that was made under the same name meanwhile, or configured anew. A record that is
    ///   replaced proves that the tenant is still the same.
    func write(
        _ record: CredentialRecord, _ id: CredentialsID, over current: CredentialsSnapshot,
        tenantVersion: Int64? = nil, fencedFor holder: String? = nil, alongside others: [VaultChange] = [],
        endingSessionsBy cause: BrokerEvent.SessionEnd = .replaced, events: Events
    ) async throws(StoreError) -> CredentialsSnapshot {
        try await write(
            prepareWrite(
                record, id, over: current, fencedFor: holder, alongside: others, endingSessionsBy: cause, events: events
            ),
            id, tenantVersion: tenantVersion)
    }

    /// Prepares a commit that writes `record` in place of exactly `current`, and that may be sent more than once.
    /// - Parameters:
    ///   - holder: the change fails if another holder has a lease on the record; nil for a change that no lease stops.
    ///   - others: further changes of the same commit.
    ///   - cause: why the sessions of apps end whose login ends with the record that is replaced.
    func prepareWrite(
        _ record: CredentialRecord, _ id: CredentialsID, over current: CredentialsSnapshot,
        fencedFor holder: String? = nil, alongside others: [VaultChange] = [],
        endingSessionsBy cause: BrokerEvent.SessionEnd = .replaced, events: Events
    ) async throws(StoreError) -> PreparedWrite {
        let digest = record.tokenDigest
        // A renewal may hold the successor of a refresh token that stays, and not reach the store. Without its lease, another
        // renewal would present that token at once.
        let lease: ReplacedLease = record.mayBeSpent(with: current.record) ? .kept : .ended
        let endings = try await sessionEndings(of: id, from: current.record, to: record, by: cause)
        let change = prepare(
            record, id, over: current.version, lease: holder.map { .fenced(for: $0) } ?? lease,
            replacing: current.record.tokenDigest.flatMap { $0 == digest ? nil : [$0] } ?? [], others + endings, events)
        return PreparedWrite(
            change: change, commit: try vault.prepare(change.changes), endsSessions: !endings.isEmpty)
    }

    /// A change with its version, so that it can be tried more than once.
    struct Prepared: Sendable {
        let snapshot: CredentialsSnapshot
        fileprivate let changes: [VaultChange]
        fileprivate let isNew: Bool
        let due: Timestamp?
        fileprivate let replaced: [[UInt8]]
    }

    /// - Parameters:
    ///   - current: the version that is replaced; 0 where there is none.
    ///   - least: the new version is higher than this, too.
    ///   - lease: see `ReplacedLease`.
    ///   - replaced: the digests of the tokens that the record replaces, as far as they are known.
    func prepare(
        _ record: CredentialRecord, _ id: CredentialsID, over current: Int64, above least: Int64 = 0,
        lease: ReplacedLease = .ended, replacing replaced: [[UInt8]] = [], _ others: [VaultChange] = [],
        _ events: Events
    ) -> Prepared {
        let isNew = current == 0
        let version = nextVersion(after: max(current, least))
        var record = record
        // The set before the one that waits is a new one. It keeps this version when the other is dropped.
        if record.waiting?.earlier != nil, record.heldSince == nil { record.heldSince = version }
        let open = OpenRecord(
            id: Self.recordID(id), version: version, content: SecretBytes(record.encoded),
            // Listeners know that a session has ended whose token is left.
            due: record.isOver
                ? nil
                : record.waiting != nil
                    ? time.now.advanced(by: ExpirySchedule.verificationInterval)
                    : record.held.flatMap { firstMark(of: $0, record, id) })
        var changes = others
        if isNew {
            changes += [.require(RecordID(.tenant, id.tenant)), .insert(open)]
        } else {
            changes.append(.replace(open, version: current, lease: lease))
        }
        let events = events(version)
        if !events.isEmpty { changes.append(BrokerEvent.entry(events, of: id, at: time.now)) }
        return Prepared(
            snapshot: CredentialsSnapshot(record, of: id, version: version), changes: changes, isNew: isNew,
            due: open.due, replaced: replaced)
    }

    /// - Parameters:
    ///   - endsPublication: whether the record takes the place of a grant that waits to be stored.
    ///   - commit: of the change, if it may be sent more than once.
    func write(
        _ prepared: Prepared, _ id: CredentialsID, tenantVersion: Int64? = nil, endsPublication: Bool = true,
        by commit: PreparedCommit? = nil
    ) async throws(StoreError) -> CredentialsSnapshot {
        if prepared.isNew, let tenantVersion,
            try await vault.read(RecordID(.tenant, id.tenant))?.version != tenantVersion
        {
            throw .conflict
        }
        let commit = if let commit { commit } else { try vault.prepare(prepared.changes) }
        let arrival = try await memory.replacing(
            prepared.replaced, of: Self.recordID(id), by: prepared.snapshot.version
        ) {
            () async throws(StoreError) in
            let arrival = try await self.stored.write(id, prepared.snapshot) { known in
                // The answer may come so late that this process has read what came after this change.
                known.version > prepared.snapshot.version
            } sending: { () async throws(StoreError) in
                try await self.commit(commit)
            }
            // The record may have moved on since.
            if arrival == .earlier, try await self.isStanding(prepared.snapshot, id) {
                await self.memory.note(commit.changes)
            }
            return arrival
        }
        // After an earlier try was carried out, a renewal may have brought a later grant that waits.
        let waits = arrival == .earlier && unpublished(id).map { $0.version > prepared.snapshot.version } ?? false
        if endsPublication, !waits { published(id) }
        return adopt(prepared.snapshot, id, due: prepared.due)
    }

    /// Announces a record in this process that was written, perhaps by an earlier try whose answer was lost.
    func adopt(_ snapshot: CredentialsSnapshot, _ id: CredentialsID, due: Timestamp?) -> CredentialsSnapshot {
        bus.announce(id.tenant)
        if let due { bus.announce(due: due) }
        return snapshot
    }

    /// Commits events without a change of credentials, and further changes with them. Events are committed only while the
    /// tenant exists.
    /// - Parameter limit: how long to wait for the store; nil for as long as its own limit.
    func commit(
        _ changes: [VaultChange], events: [BrokerEvent], of id: CredentialsID, within limit: Duration? = nil
    ) async throws(StoreError) {
        if let limit {
            return try await time.within(limit) { () async throws(StoreError) in
                try await self.commit(changes, events: events, of: id)
            }
        }
        if events.isEmpty { return try await commit(changes) }
        try await commit(
            [.require(RecordID(.tenant, id.tenant))] + changes + [BrokerEvent.entry(events, of: id, at: time.now)])
        bus.announce(id.tenant)
    }

    /// Commits changes that concern a tenant as a whole, with events among them.
    func commit(_ changes: [VaultChange], of tenant: TenantName) async throws(StoreError) {
        try await commit(changes)
        bus.announce(tenant)
    }

    /// Commits, and notes whether the store answers.
    func commit(_ changes: [VaultChange]) async throws(StoreError) {
        if changes.isEmpty { return }
        try await commit(vault.prepare(changes))
    }

    /// Sends a commit, perhaps again, and notes whether the store answers.
    @discardableResult
    func commit(_ commit: PreparedCommit) async throws(StoreError) -> PreparedCommit.Arrival {
        do throws(StoreError) {
            let arrival = try await vault.commit(commit)
            // To find an earlier one is no sign that the store takes commits now.
            if arrival == .now { lastCommit.store(time.monotonic.nanoseconds, ordering: .relaxed) }
            return arrival
        } catch {
            if error == .unavailable { noteFailure() }
            throw error
        }
    }

    /// Whether the tenant still exists.
    func tenantExists(_ id: CredentialsID) async throws(StoreError) -> Bool {
        try await vault.version(of: RecordID(.tenant, id.tenant)) != nil
    }

    // MARK: Not stored yet

    /// A version for a record that replaces that version. No version is given twice: see `VersionSource`.
    func nextVersion(after version: Int64) -> Int64 { versions.next(after: version, at: time.now) }

    /// Serves callers a grant that could not be stored yet.
    func serve(_ snapshot: CredentialsSnapshot, unpublished id: CredentialsID) {
        unpublished.withLock { unpublished in
            unpublished[id] = snapshot
            unpublishedCount.store(unpublished.count, ordering: .releasing)
        }
    }

    /// The grant that waits to be stored; nil where none does.
    func unpublished(_ id: CredentialsID) -> CredentialsSnapshot? { unpublished.withLock { $0[id] } }

    var countOfUnpublished: Int { unpublishedCount.load(ordering: .relaxed) }

    /// The grant was stored, or another record that takes its place.
    func published(_ id: CredentialsID) {
        if unpublishedCount.load(ordering: .acquiring) == 0 { return }
        unpublished.withLock { unpublished in
            unpublished[id] = nil
            unpublishedCount.store(unpublished.count, ordering: .releasing)
        }
    }

    // MARK: A store that does not answer

    /// Removes the cache entry of one set of credentials.
    func forget(_ id: CredentialsID) {
        stored.forget(id)
    }

    /// Waits before a further try to have a store take something.
    /// - Parameter error: what the store said.
    /// - Throws: `storage_unavailable` when the task is cancelled, because the broker is being stopped.
    func waitForStore(
        beforeTry tries: Int, _ id: CredentialsID, after error: StoreError = .unavailable
    ) async throws(BrokerError) {
        report(error, id)
        do {
            // An operator takes minutes to correct a store that is damaged.
            try await time.sleep(
                for: error == .unavailable
                    ? Self.pauseWithGrant(beforeTry: tries) : Self.pause(beforeTry: tries))
        } catch {
            throw BrokerError(StoreError.unavailable)
        }
    }

    /// For how long callers wait for a store that does not take what is to be stored.
    static let callersPatience: Duration = .seconds(10)

    /// 0.2, 0.4, 0.8, 1.6, 3.2, then every 5 seconds.
    static func pause(beforeTry tries: Int) -> Duration {
        min(.milliseconds(100 << min(tries, 6)), .seconds(5))
    }

    /// The same for a try to store a grant, but a second at most: see `reachableFor`.
    static func pauseWithGrant(beforeTry tries: Int) -> Duration {
        min(pause(beforeTry: tries), .seconds(1))
    }

    /// For how long this process has reached the store without a failure. Lease holders that could not reach the store get
    /// their grants stored within seconds after it answers again.
    ///
    /// After a recent failure, this checks whether the store can be written to. A store that is read-only, as after a failover,
    /// counts as failing, since the holders' turn begins only when they can write.
    func reachableFor() async -> Duration {
        func sinceFailure() -> Duration {
            MonotonicInstant(nanoseconds: lastFailure.load(ordering: .relaxed)).duration(to: time.monotonic)
        }
        // Without other processes there are no other lease holders.
        if !isShared || sinceFailure() >= RenewalRules.usualTurn { return sinceFailure() }
        do throws(StoreError) {
            try await vault.check()
        } catch {
            noteFailure()
        }
        return sinceFailure()
    }

    /// Whether other processes write to the store.
    var isShared: Bool { vault.revalidateAfter != nil }

    /// The latest time at which a claim that is sent now may take effect. After that, its sender has given up.
    var claimDeadline: Timestamp { time.now.advanced(by: Self.claimLimit) }

    /// The store did not answer just now. A failure within a second after a commit does not count, since the store is then
    /// only busy: if it counted, the leases of dead holders would stand for as long as the store is busy.
    func noteFailure() {
        let now = time.monotonic
        let commit = MonotonicInstant(nanoseconds: lastCommit.load(ordering: .relaxed))
        guard commit.advanced(by: .seconds(1)) <= now else { return }
        lastFailure.store(now.nanoseconds, ordering: .relaxed)
        rollback.storeFailed()
    }

    func report(_ error: StoreError, _ id: CredentialsID) {
        if error == .unavailable { noteFailure() }
        log.storeFailed(error, LogField.credentials(id))
    }

    static func recordID(_ id: CredentialsID) -> RecordID {
        RecordID(.credentials, id.tenant, key: id.storageKey.description)
    }

    static func quarantineID(_ id: CredentialsID) -> RecordID {
        RecordID(.quarantine, id.tenant, key: id.storageKey.description)
    }
}

extension CredentialsRecords {
    /// A change whose commit may be sent more than once.
    struct PreparedWrite: Sendable {
        fileprivate let change: Prepared
        fileprivate let commit: PreparedCommit
        fileprivate let endsSessions: Bool
    }

    /// Whether the store still has what an earlier try has written.
    /// - Throws: `.unavailable` only. The commit was carried out, so that a conflict met while reading is none of its own.
    private func isStanding(
        _ snapshot: CredentialsSnapshot, _ id: CredentialsID
    ) async throws(StoreError) -> Bool {
        do throws(StoreError) {
            return try await reread(id, requiringTombstones: false).version == snapshot.version
        } catch {
            if error == .unavailable { throw error }
            report(error, id)
            return false
        }
    }

    /// Whether the store shows that it has carried out the commit.
    func isCarriedOut(_ write: PreparedWrite) async throws(StoreError) -> Bool {
        try await vault.isCarriedOut(write.commit)
    }

    /// Sends the commit, perhaps again.
    /// - Returns: what the commit has written. Where an earlier try was carried out, another one may have replaced it since.
    func write(
        _ write: PreparedWrite, _ id: CredentialsID, tenantVersion: Int64? = nil
    ) async throws(StoreError) -> CredentialsSnapshot {
        let snapshot = try await self.write(write.change, id, tenantVersion: tenantVersion, by: write.commit)
        if write.endsSessions { sessionEndings.signal(0) }
        return snapshot
    }
}
