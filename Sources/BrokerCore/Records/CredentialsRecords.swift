internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import OAuth
internal import Reactor
internal import Renewal
internal import Synchronization
internal import Waiting

/// The credentials as they stand in the store and in memory. Every change of them goes through here, in one commit
/// with the events that tell of it.
final class CredentialsRecords: Sendable {
    /// What a change is told as; made once the new version is known.
    typealias Events = @Sendable (_ version: Int64) -> [BrokerEvent]

    let vault: Vault
    let time: any Time
    let log: Log
    /// What was stored of late, for a store that goes back.
    let memory: GrantMemory
    let rollback: StoreRollback
    private let bus: EventBus
    private let tenants: TenantDirectory
    private let schedule: ExpirySchedule
    let cache: RevalidatingCache<CredentialsID, CredentialsSnapshot>
    private let versions = VersionSource()
    /// Signalled when another replica has changed credentials, or let go of a lease on them.
    var changes: KeyedSignal<CredentialsID> { bus.changes }
    /// What was granted and could not be stored yet. It is what callers are to have.
    private let unpublished = Mutex<[CredentialsID: CredentialsSnapshot]>([:])
    private let unpublishedCount = Atomic<Int>(0)
    /// When the store did not answer last, in nanoseconds of the monotonic clock. This process began to know then: holders
    /// of leases may not have reached the store before.
    private let lastFailure: Atomic<Int64>
    /// Likewise, when it took something last.
    private let lastCommit = Atomic<Int64>(Int64.min)

    /// How often a wait for another replica's change reads the store, for a change that is announced to no replica.
    static let changeInterval: Duration = .seconds(1)
    /// Longer than a statement takes before its sender gives up, by what two clocks may differ.
    private static let claimLimit: Duration = .seconds(6)

    init(
        vault: Vault, tenants: TenantDirectory, bus: EventBus, time: any Time, log: Log, schedule: ExpirySchedule,
        cacheBytes: Int, memory: GrantMemory
    ) {
        lastFailure = Atomic(time.monotonic.nanoseconds)
        self.tenants = tenants
        self.vault = vault
        self.bus = bus
        self.time = time
        self.log = log
        self.schedule = schedule
        self.memory = memory
        let rollback = StoreRollback(span: memory.span, time: time)
        self.rollback = rollback
        cache = .credentials(bytes: cacheBytes, heeding: bus)
        guard memory.isEnabled else { return }
        bus.onRollback {
            rollback.note()
        } orOlder: {
            rollback.recheck($0)
        }
        bus.onRemoval { memory.drop($0) }
        bus.onChange(of: .credentials) { id, version in
            guard let version, let id = CredentialsID(id), version > memory.version(id) else { return }
            // Just after the store has gone back, a higher version may be that of an older grant.
            if Self.mayComeAfter(id, memory, rollback) { return rollback.recheck(id) }
            memory.supersede(id, by: version)
        }
    }

    /// The cache, with the records that its entries were read from.
    var renewable: RenewableCache { RenewableCache(cache) { id, _ in Self.recordID(id) } }

    /// Whether every change of the store is heard of, because nobody else makes any or because its feed tells of them.
    var isFollowing: Bool { bus.trust.validity == nil || bus.trust.isFollowing(time.monotonic) }

    // MARK: Reading

    /// What is stored, as far as it can be known.
    struct Reading {
        let snapshot: CredentialsSnapshot
        /// False where the store did not answer, and this is what it had some time ago.
        let isCurrent: Bool
    }

    /// What is stored. Does not suspend while what is in memory may be believed.
    /// - Parameter suffices: asked where the store does not answer, of what is in memory and too old to be believed. It may
    ///   have been replaced or ended at another replica: nothing is to be concluded from it, and nothing done about it.
    /// - Throws: `storage_unavailable` where the store does not answer and what is in memory does not suffice.
    /// - Parameter waits: whether a store that has just gone back is given the time to get a newer version that is known. A
    ///   caller that forces a refresh waits in its renewal instead, and takes that version for the renewal.
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

    /// What is stored, whatever is in memory.
    func reread(_ id: CredentialsID) async throws(StoreError) -> CredentialsSnapshot {
        try await standing(id).snapshot
    }

    /// What is stored, and the lease on it.
    func standing(_ id: CredentialsID) async throws(StoreError) -> (snapshot: CredentialsSnapshot, lease: Lease?) {
        let known = knownVersion(id)
        let ticket = cache.ticket(id, now: time.monotonic)
        var read = try await vault.read(Self.recordID(id))
        if isInQuestion(id, read?.version ?? 0, known: known) {
            switch try await mend(id, over: read) {
            case .stored(let snapshot): return (snapshot, nil)
            // Another replica may have stored it again meanwhile.
            case .stands(let found): read = found
            }
        }
        guard let record = read else {
            cache.fill(id, .nothing, ticket)
            return (.nothing, nil)
        }
        let snapshot = CredentialsSnapshot(try content(of: record, id), of: id, version: record.version)
        cache.fill(id, snapshot, ticket)
        return (snapshot, record.lease)
    }

    func content(of record: OpenRecord, _ id: CredentialsID) throws(StoreError) -> CredentialRecord {
        guard let content = CredentialRecord(decoding: record.content.revealedBytes) else {
            throw .damaged("a credentials record of tenant \(id.tenant) cannot be read by this version")
        }
        return content
    }

    /// What is kept aside for an administrator, and the change that removes exactly that.
    func aside(
        _ id: CredentialsID
    ) async throws(StoreError) -> (content: QuarantinedCredentials, removal: VaultChange)? {
        guard let record = try await vault.read(Self.asideID(id)) else { return nil }
        guard let content = QuarantinedCredentials(decoding: record.content.revealedBytes) else {
            throw .damaged("a quarantine record of tenant \(id.tenant) cannot be read by this version")
        }
        return (content, .remove(Self.asideID(id), version: record.version))
    }

    // MARK: Writing

    /// Writes `record` in place of exactly `current`.
    /// - Parameters:
    ///   - tenantVersion: the version that the tenant must have where the record is new; nil takes any. A record that
    ///     is replaced belongs to the tenant that it was written for. One that is new would as well be stored for a
    ///     tenant that was made under the same name meanwhile, or configured anew.
    ///   - others: what is committed with it.
    func write(
        _ record: CredentialRecord, _ id: CredentialsID, over current: CredentialsSnapshot,
        tenantVersion: Int64? = nil, alongside others: [VaultChange] = [], events: Events
    ) async throws(StoreError) -> CredentialsSnapshot {
        try await write(
            prepare(
                record, id, over: current.version, replacing: current.record.tokenDigest.map { [$0] } ?? [], others,
                events), id, tenantVersion: tenantVersion)
    }

    /// A change that has its version, so that it can be tried more than once.
    struct Prepared: Sendable {
        let snapshot: CredentialsSnapshot
        fileprivate let changes: [VaultChange]
        fileprivate let isNew: Bool
        let due: Timestamp?
        fileprivate let replaced: [[UInt8]]
    }

    /// - Parameters:
    ///   - current: the version that is replaced; 0 where there is none.
    ///   - least: a version that the new one is higher than, whatever it replaces.
    ///   - holder: whose lease fences the change off from those of others; nil heeds none.
    ///   - replaced: digests of the tokens that the record comes after, as far as they are known.
    func prepare(
        _ record: CredentialRecord, _ id: CredentialsID, over current: Int64, above least: Int64 = 0,
        fencedFor holder: String? = nil, replacing replaced: [[UInt8]] = [], _ others: [VaultChange] = [],
        _ events: Events
    ) -> Prepared {
        let isNew = current == 0
        let version = nextVersion(after: max(current, least))
        let open = OpenRecord(
            id: Self.recordID(id), version: version, content: SecretBytes(record.encoded),
            due: record.held.flatMap { schedule.firstMark(of: $0, lead: proactiveLead(id), now: time.now) })
        var changes = others
        if isNew {
            changes += [.require(RecordID(.tenant, id.tenant)), .insert(open)]
        } else {
            changes.append(.replace(open, version: current, fencedFor: holder))
        }
        let told = events(version)
        if !told.isEmpty { changes.append(BrokerEvent.entry(told, of: id, at: time.now)) }
        return Prepared(
            snapshot: CredentialsSnapshot(record, of: id, version: version), changes: changes, isNew: isNew,
            due: open.due, replaced: replaced)
    }

    /// By the tenant's configuration as it is in memory, however old. Where it is not, the tenant's wish is heeded when
    /// the notice of expiry falls due.
    private func proactiveLead(_ id: CredentialsID) -> Duration? {
        tenants.inMemory(id.tenant)?.configuration.proactiveRefresh
    }

    /// - Parameter endsPublication: whether what waits to be stored has no place any more.
    func write(
        _ prepared: Prepared, _ id: CredentialsID, tenantVersion: Int64? = nil, endsPublication: Bool = true
    ) async throws(StoreError) -> CredentialsSnapshot {
        if prepared.isNew, let tenantVersion,
            try await vault.read(RecordID(.tenant, id.tenant))?.version != tenantVersion
        {
            throw .conflict
        }
        let ticket = cache.ticket(id, now: time.monotonic)
        do throws(StoreError) {
            try await commit(prepared.changes)
        } catch {
            // The change may have arrived all the same.
            if error == .unavailable { cache.remove(id) }
            throw error
        }
        cache.put(id, prepared.snapshot, ticket)
        await memory.keep(
            prepared.snapshot.record, id, version: prepared.snapshot.version, after: prepared.replaced)
        if endsPublication { published(id) }
        return adopt(prepared.snapshot, id, due: prepared.due)
    }

    /// Tells this process of what was written, perhaps by an earlier try whose answer did not arrive.
    func adopt(_ snapshot: CredentialsSnapshot, _ id: CredentialsID, due: Timestamp?) -> CredentialsSnapshot {
        bus.announce(id.tenant)
        if let due { bus.announce(due: due) }
        return snapshot
    }

    /// Writes events that no change of credentials goes with, and what is to be committed beside them; only while the
    /// tenant exists.
    func tell(
        _ events: [BrokerEvent], of id: CredentialsID, with changes: [VaultChange] = []
    ) async throws(StoreError) {
        if events.isEmpty { return try await commit(changes) }
        try await commit(
            [.require(RecordID(.tenant, id.tenant))] + changes + [BrokerEvent.entry(events, of: id, at: time.now)])
        bus.announce(id.tenant)
    }

    /// Commits what is about a tenant as a whole, events among it.
    func commit(_ changes: [VaultChange], of tenant: TenantName) async throws(StoreError) {
        try await commit(changes)
        bus.announce(tenant)
    }

    /// Works with the store for so long at most. What is not over by then goes on without its caller, for whom the store is
    /// away: a statement may hang for seconds where the next one, by another connection, does not.
    func within<Value: Sendable>(
        _ limit: Duration, _ work: @escaping @Sendable () async throws(StoreError) -> Value
    ) async throws(StoreError) -> Value {
        let time = time
        let flight = SingleFlight<Int, Result<Value, StoreError>>()
        // A caller that is cancelled waits all the same: a lease is given back before its process ends.
        let result = await Task {
            await flight.run(0, within: { await time.tick(for: limit) }) {
                do throws(StoreError) {
                    return .success(try await work())
                } catch {
                    return .failure(error)
                }
            }
        }.value
        return try (result?.value ?? .failure(.unavailable)).get()
    }

    /// Commits, and notes whether the store is there.
    func commit(_ changes: [VaultChange]) async throws(StoreError) {
        if changes.isEmpty { return }
        do throws(StoreError) {
            try await vault.commit(changes)
            lastCommit.store(time.monotonic.nanoseconds, ordering: .relaxed)
        } catch {
            if error == .unavailable { noteFailure() }
            throw error
        }
    }

    /// What a change of credentials does to what is kept aside.
    enum AsideChange: Equatable {
        case none
        /// Keeps these aside in place of what is kept there already; for no time at all, keeps nothing.
        case keep(HeldCredentials, for: Duration, because: EndedSession.Cause = .revoked)
        case drop
    }

    /// The changes that `aside` comes to as the store stands now; a conflict where that changes.
    func changes(_ aside: AsideChange, _ id: CredentialsID) async throws(StoreError) -> [VaultChange] {
        if aside == .none { return [] }
        // Read as a bare record: one that cannot be opened any more is no reason to lose this one.
        let standing = try await vault.version(of: Self.asideID(id))
        guard case .keep(let held, let duration, let cause) = aside, duration > .zero else {
            return standing.map { [.remove(Self.asideID(id), version: $0)] } ?? []
        }
        let now = time.now
        let content = QuarantinedCredentials(
            credentials: held, until: now.advanced(by: duration), session: EndedSession(cause, at: now))
        let record = OpenRecord(
            id: Self.asideID(id), version: nextVersion(after: standing ?? 0), content: SecretBytes(content.encoded),
            expires: content.until)
        return [standing.map { .replace(record, version: $0) } ?? .insert(record)]
    }

    /// Whether the tenant is still there.
    func tenantExists(_ id: CredentialsID) async throws(StoreError) -> Bool {
        try await vault.version(of: RecordID(.tenant, id.tenant)) != nil
    }

    // MARK: Not stored yet

    /// A version for what replaces that one. It is given once: see `VersionSource`.
    func nextVersion(after version: Int64) -> Int64 { versions.next(after: version, at: time.now) }

    /// Has callers get what could not be stored yet.
    func serve(_ snapshot: CredentialsSnapshot, unpublished id: CredentialsID) {
        unpublished.withLock { unpublished in
            unpublished[id] = snapshot
            unpublishedCount.store(unpublished.count, ordering: .releasing)
        }
    }

    /// What waits to be stored.
    func unpublished(_ id: CredentialsID) -> CredentialsSnapshot? { unpublished.withLock { $0[id] } }

    var countOfUnpublished: Int { unpublishedCount.load(ordering: .relaxed) }

    /// It was stored, or something else was that takes its place.
    func published(_ id: CredentialsID) {
        if unpublishedCount.load(ordering: .acquiring) == 0 { return }
        unpublished.withLock { unpublished in
            unpublished[id] = nil
            unpublishedCount.store(unpublished.count, ordering: .releasing)
        }
    }

    // MARK: Living on

    /// Lets go of what is in memory of one set of credentials.
    func forget(_ id: CredentialsID) {
        cache.remove(id)
    }

    /// Lets a store that is away come back.
    /// - Throws: `storage_unavailable` when the wait is cut short, because the broker is being stopped.
    func waitForStore(beforeTry tries: Int, _ id: CredentialsID) async throws(BrokerError) {
        report(.unavailable, id)
        do {
            try await time.sleep(for: Self.pauseWithGrant(beforeTry: tries))
        } catch {
            throw BrokerError(StoreError.unavailable)
        }
    }

    /// 0.2, 0.4, 0.8, 1.6, 3.2, then every 5 seconds.
    static func pause(beforeTry tries: Int) -> Duration {
        min(.milliseconds(100 << min(tries, 6)), .seconds(5))
    }

    /// The same for what a provider has granted, but a second at most: see `reachableFor`.
    static func pauseWithGrant(beforeTry tries: Int) -> Duration {
        min(pause(beforeTry: tries), .seconds(1))
    }

    /// For how long this process has reached the store without a failure: holders of leases that could not reach it come
    /// to store within seconds of its return what they were granted.
    ///
    /// Looks whether the store can be written to where it was away a moment ago: one that is read-only, as after a failover,
    /// has not come back, and from its return on holders are to have all of their turn.
    func reachableFor() async -> Duration {
        func sinceFailure() -> Duration {
            MonotonicInstant(nanoseconds: lastFailure.load(ordering: .relaxed)).duration(to: time.monotonic)
        }
        // No other process holds a lease on what this one has for itself.
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

    /// The latest time at which a claim that is sent now may take effect: by then its sender has given up.
    var claimDeadline: Timestamp { time.now.advanced(by: Self.claimLimit) }

    /// The store did not answer just now. One that has just taken something is busy, not away: were every failure to
    /// count, the leases of the dead would stand for as long as it is.
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

    static func asideID(_ id: CredentialsID) -> RecordID {
        RecordID(.quarantine, id.tenant, key: id.storageKey.description)
    }
}
