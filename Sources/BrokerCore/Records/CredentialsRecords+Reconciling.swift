import Containers
import CredentialStore
import OAuth
import Reactor
import Waiting

/// Stores records again that the store has lost, as after a failover to a standby that was behind.
///
/// Which of two records is the newer one is decided by `Newness`.
extension CredentialsRecords {
    /// The newest record that this process knows.
    private struct Known {
        let version: Int64
        let record: CredentialRecord
        let replaced: [[UInt8]]

        func isNewer(than stored: CredentialRecord?, _ version: Int64, mayBeRestored: Bool) -> Bool {
            let spent = stored.flatMap { $0.granted?.level == .user && !$0.isOver ? $0.exchanged : $0.ended }
            return Newness.isNewer(
                Newness.Credentials(version: self.version, isAct: record.isAct, replaced: replaced),
                than: Newness.StoredCredentials(version: version, token: stored?.tokenDigest, spent: spent),
                mayBeRestored: mayBeRestored)
        }
    }

    /// The newest version that this process has written or read, or that was announced to it; 0 for none. To be taken before
    /// the store is read.
    func knownVersion(_ id: CredentialsID) -> Int64 {
        guard memory.isEnabled else { return 0 }
        return max(memory.version(id), cache.any(id)?.version ?? 0)
    }

    /// The same, even where `RecentCommits` keeps nothing.
    func newestKnown(_ id: CredentialsID) -> Int64 { max(knownVersion(id), cache.any(id)?.version ?? 0) }

    /// Whether a record that was read is to be compared with the newest record that this process knows.
    func isInQuestion(_ id: CredentialsID, _ version: Int64, known: Int64) -> Bool {
        version < known || version > known && Self.mayComeAfter(id, memory, rollback)
    }

    /// Whether the record that this process knows may be newer than a record with a higher version: another replica may have
    /// stored that again, or a renewal may have been under way when the store lost commits.
    static func mayComeAfter(_ id: CredentialsID, _ memory: RecentCommits, _ rollback: StoreRollback) -> Bool {
        rollback.remainingHold != nil ? memory.hasContent(id) : rollback.isUnsettled && memory.hasAct(id)
    }

    private func newest(_ id: CredentialsID) throws(StoreError) -> Known? {
        let recent = try self.recent(id)
        if let read = cache.any(id), read.version >= memory.version(id), read.version > recent?.version ?? 0 {
            return Known(version: read.version, record: read.record, replaced: [])
        }
        return recent
    }

    /// What this process stored itself.
    private func recent(_ id: CredentialsID) throws(StoreError) -> Known? {
        guard memory.isEnabled, let commit = try memory.commit(Self.recordID(id)), let stored = commit.record else {
            return nil
        }
        return Known(version: commit.version, record: try content(of: stored, id), replaced: commit.replaced)
    }

    enum Reconciled {
        /// The record that this process knew is stored again.
        case storedAgain(CredentialsSnapshot)
        /// The store's record is the newest, or cannot be replaced.
        case current(OpenRecord?)
    }

    /// Compares the record that was read with the newest one that this process knows. If the latter is newer, stores it again
    /// in place of exactly the record that was read.
    func reconcile(_ id: CredentialsID, with read: OpenRecord?) async throws(StoreError) -> Reconciled {
        var found = read
        for _ in 0..<8 {
            guard let known = try newest(id) else { return .current(found) }
            let stored = try found.map { record throws(StoreError) in try content(of: record, id) }
            let version = found?.version ?? 0
            let mayBeRestored = rollback.mayBeRestored(version)
            guard known.isNewer(than: stored, version, mayBeRestored: mayBeRestored) else {
                if version > known.version { memory.supersede(Self.recordID(id), by: version) }
                return .current(found)
            }
            // A record that does not exist may have been removed with its tenant without an announcement.
            if found == nil, !rollback.isRecent { return .current(nil) }
            do throws(StoreError) {
                return .storedAgain(try await storeAgain(known, id, over: stored, version))
            } catch .conflict {
                found = try await vault.read(Self.recordID(id))
                if found == nil, try await !tenantExists(id) {
                    memory.forget(Self.recordID(id))
                    forget(id)
                    return .current(nil)
                }
            }
        }
        throw .conflict
    }

    private func storeAgain(
        _ known: Known, _ id: CredentialsID, over stored: CredentialRecord?, _ version: Int64
    ) async throws(StoreError) -> CredentialsSnapshot {
        let now = time.now
        let end = known.record.session?.cause ?? (known.record.ended == nil ? .logout : .revoked)
        // The commit of a logout has the user's sessions ended, and so has that of another login.
        let isLogout = known.record.granted == nil && known.record.isAct
        let cause: BrokerEvent.SessionEnd =
            isLogout ? .logout : known.record.granted == nil ? BrokerEvent.SessionEnd(end) : .replaced
        let endings = try await sessionEndings(of: id, from: stored, to: known.record, by: cause)
        let ended = try await lostTombstone(isLogout ? known.version : nil, id, over: version)
        var record = known.record
        if record.granted?.level == .user, record.renewed != nil {
            record.exchanged = record.exchanged ?? known.replaced.last
        }
        if record.waiting == nil { record.heldSince = nil }
        let prepared = prepare(
            record, id, over: version, above: known.version,
            replacing: known.replaced + (stored?.tokenDigest.map { [$0] } ?? []), endings + ended
        ) { version in
            // A set that waits for its verification is told of once it is verified.
            if known.record.waiting != nil { return [] }
            if let held = known.record.held, !known.record.isOver {
                return [.updated(id, to: held, version: version, by: .recovery, nil, at: now)]
            }
            return stored?.held.map { [.deauthorized(id, from: $0, version: version, by: end, nil, at: now)] } ?? []
        }
        // A grant that waits to be stored is newer than this record.
        let snapshot = try await write(prepared, id, endsPublication: false)
        if !endings.isEmpty { sessionEndings.signal(0) }
        // The store had lost commits, even if it did not report that.
        rollback.noteByVersion()
        rollback.count { counts in
            if known.record.granted == nil { counts.ended += 1 } else { counts.restored += 1 }
        }
        log.warning("credentials_stored_again", LogField.credentials(id) + [.version(snapshot.version)])
        return snapshot
    }

    /// The changes that write the tombstone which the store has lost with a logout: of all that came before the logout.
    /// - Parameters:
    ///   - logout: its version; nil for what is no logout, and has no tombstone.
    ///   - version: the version that the store has, which may be higher; 0 for none.
    private func lostTombstone(
        _ logout: Int64?, _ id: CredentialsID, over version: Int64
    ) async throws(StoreError) -> [VaultChange] {
        guard let logout else { return [] }
        let changes = try await tombstones.changes(ending: [(Self.recordID(id), max(version, logout - 1))])
        // A record that is new requires its tenant by itself.
        return version == 0 ? changes.filter { $0 != .require(RecordID(.tenant, id.tenant)) } : changes
    }

    // MARK: All records

    /// Compares every record that this process knows with the store, and stores again what the store has lost.
    /// - Returns: how many versions the store has lost whose content this process does not have.
    func reconcileAll() async throws(StoreError) -> Int {
        let oldest = time.now.advanced(by: .zero - memory.span).milliseconds * 1000
        var known: [CredentialsID: Int64] = [:]
        for (id, version) in cache.versions(from: oldest) { known[id] = version }
        for commit in memory.known([.credentials]) {
            if let id = CredentialsID(commit.id) { known[id] = max(known[id] ?? 0, commit.version) }
        }
        var lost = 0
        for batch in Array(known).inBatches(of: Self.sweepBatch) {
            if Task.isCancelled { throw .unavailable }
            let versions = try await vault.versions(of: batch.map { Self.recordID($0.key) })
            var differing: [(CredentialsID, Int64)] = []
            for (entry, version) in zip(batch, versions) where entry.value != version {
                differing.append((entry.key, entry.value))
            }
            lost += try await reconcile(differing)
        }
        return lost
    }

    private static var sweepBatch: Int { 1000 }
    private static var reconciledAtOnce: Int { 8 }

    private func reconcile(_ differing: [(CredentialsID, Int64)]) async throws(StoreError) -> Int {
        try await Self.count(differing, log) { (id, version) async throws(StoreError) in
            try await self.readWithLease(id).snapshot.version < version
        }
    }

    /// Does the work for all items, some of them at once. One that cannot be read does not keep the work from the others.
    /// - Returns: for how many items `work` is true.
    static func count<Item: Sendable>(
        _ items: [Item], _ log: Log, _ work: @escaping @Sendable (Item) async throws(StoreError) -> Bool
    ) async throws(StoreError) -> Int {
        let outcomes = await withTaskGroup(of: Result<Bool, StoreError>.self) { group in
            var outcomes: [Result<Bool, StoreError>] = []
            for (index, item) in items.enumerated() {
                if index >= Self.reconciledAtOnce, let outcome = await group.next() { outcomes.append(outcome) }
                group.addTask {
                    do throws(StoreError) {
                        return .success(try await work(item))
                    } catch {
                        return .failure(error)
                    }
                }
            }
            for await outcome in group { outcomes.append(outcome) }
            return outcomes
        }
        var count = 0
        for outcome in outcomes {
            do throws(StoreError) {
                if try outcome.get() { count += 1 }
            } catch .damaged(let text) {
                log.storeFailed(.damaged(text))
            }
        }
        return count
    }

    // MARK: Waiting

    /// What is stored. If the store has just lost a version that this process knows of, and another replica has its content,
    /// this waits until that replica has stored it again, so that no caller gets an older version than it had before. If no
    /// replica stores it again during the hold, the store's version is the newest that is left.
    func rereadAsNewAsKnown(_ id: CredentialsID) async throws(StoreError) -> CredentialsSnapshot {
        let known = knownVersion(id)
        let latest = time.monotonic.advanced(by: StoreRollback.longHold)
        while true {
            let ticket = changes.ticket(id)
            let snapshot = try await reread(id)
            guard snapshot.version < known, knownVersion(id) >= known, let rest = rollback.remainingHold,
                time.monotonic < latest
            else { return snapshot }
            // The change feed may still be connecting, so the store is also read without an announcement.
            let pause = min(rest, Self.lookInterval)
            await changes.wait(for: id, since: ticket) { try? await self.time.sleep(for: pause) }
            if Task.isCancelled { return snapshot }
        }
    }

    private static let lookInterval: Duration = .milliseconds(250)

    /// Whether the store is known to have another version of the record by now.
    private func isReplaced(_ id: CredentialsID, _ version: Int64) async -> Bool {
        let vault = vault
        do throws(StoreError) {
            let versions = try await time.within(StoreRollback.answerLimit) { () async throws(StoreError) in
                try await vault.versions(of: [Self.recordID(id)])
            }
            return versions.first != version
        } catch {
            // The store is asked again later. The renewal that waits for this has a limit.
            report(error, id)
            return false
        }
    }

    /// For how long no refresh token may be presented because another replica's journal may have a newer one; nil where there is
    /// no such journal.
    private func journalHold(_ id: CredentialsID) async throws(BrokerError) -> Duration? {
        do throws(StoreError) {
            return try await journals.awaited()?.rest
        } catch {
            report(error, id)
            throw BrokerError(error)
        }
    }

    private static let journalMissing = BrokerError(
        .storageUnavailable,
        "The database has lost its last commits, and a replica that has not started again yet may have a newer refresh token. "
            + "Try again.", retryAfter: 5)

    /// Waits, after the store has lost commits, until the replicas have had the time to store them again.
    /// - Parameters:
    ///   - version: the version of the record whose refresh token is to be presented. When this returns, the store may have
    ///     another version.
    ///   - heedsJournals: whether journals of replicas that do not run are waited for, too.
    /// - Throws: `retryable_error` where the task is cancelled meanwhile, `storage_unavailable` where the store fails again and
    ///   again, or a journal is waited for.
    func waitForOthersAfterRollback(
        _ id: CredentialsID, _ version: Int64, heedsJournals: Bool = true
    ) async throws(BrokerError) {
        let known = memory.version(id)
        let latest = time.monotonic.advanced(by: StoreRollback.longHold)
        while true {
            let ticket = changes.ticket(id)
            let hold = rollback.remainingHold
            // False once another replica has stored a newer version again.
            let isKnownToBeOld = known > version && memory.version(id) == known
            var rest = hold ?? (isKnownToBeOld ? rollback.remainingLongHold : nil)
            let isForJournal = rest == nil
            if isForJournal, heedsJournals { rest = try await journalHold(id) }
            guard let rest else { return }
            if latest <= time.monotonic {
                throw isForJournal ? Self.journalMissing : BrokerError(StoreError.unavailable)
            }
            let pause = hold ?? min(rest, isForJournal ? Self.lookInterval : Self.changeInterval)
            await changes.wait(for: id, since: ticket) { try? await self.time.sleep(for: pause) }
            if Task.isCancelled {
                throw BrokerError.shuttingDown
            }
            // Announcements are lost while this replica's feed connects again, so the store is asked. If it does not answer, the
            // hold begins anew.
            if rollback.remainingHold == nil, await isReplaced(id, version) { return }
        }
    }
}
