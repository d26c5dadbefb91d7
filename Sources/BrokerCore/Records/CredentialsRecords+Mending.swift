internal import CredentialStore
internal import OAuth
internal import Reactor
internal import Waiting

/// Storing again what the store has lost.
///
/// Versions rise with time, so that of two records the one of the lower version was written first. What was put back has
/// the version of its putting back: whether it comes before what this process knows, which it may have been put back without
/// knowing of, shows in the tokens.
extension CredentialsRecords {
    /// What this process knows of credentials beside what the store has.
    private struct Known {
        let version: Int64
        let record: CredentialRecord
        let replaced: [[UInt8]]
    }

    /// The newest version that this process has written, read or heard of; 0 for none. To be taken before the store is
    /// read.
    func knownVersion(_ id: CredentialsID) -> Int64 {
        guard memory.isEnabled else { return 0 }
        return max(memory.version(id), cache.any(id)?.version ?? 0)
    }

    /// The same, also where nothing is kept for a store that goes back.
    func newestKnown(_ id: CredentialsID) -> Int64 { max(knownVersion(id), cache.any(id)?.version ?? 0) }

    /// Whether what was read is to be held against what is known.
    func isInQuestion(_ id: CredentialsID, _ version: Int64, known: Int64) -> Bool {
        version < known || version > known && Self.mayComeAfter(id, memory, rollback)
    }

    /// Whether what this process knows may come after a record of a higher version: one that was put back, or that a renewal
    /// brought which was under way when the store went back.
    static func mayComeAfter(_ id: CredentialsID, _ memory: GrantMemory, _ rollback: StoreRollback) -> Bool {
        rollback.remainingHold != nil ? memory.hasContent(id) : rollback.isUnsettled && memory.hasAct(id)
    }

    private func newest(_ id: CredentialsID) throws(StoreError) -> Known? {
        let kept = try memory.kept(id)
        if let read = cache.any(id), read.version >= memory.version(id), read.version > kept?.version ?? 0 {
            return Known(version: read.version, record: read.record, replaced: [])
        }
        return kept.map { Known(version: $0.version, record: $0.record, replaced: $0.replaced) }
    }

    enum Mended {
        /// This was stored again.
        case stored(CredentialsSnapshot)
        /// What stands is the newest, or nothing can be put in its place.
        case stands(OpenRecord?)
    }

    /// Stores again what this process knows to come after what was read, in place of exactly that.
    func mend(_ id: CredentialsID, over read: OpenRecord?) async throws(StoreError) -> Mended {
        var found = read
        for _ in 0..<8 {
            guard let known = try newest(id) else { return .stands(found) }
            let standing = try found.map { record throws(StoreError) in try content(of: record, id) }
            let version = found?.version ?? 0
            guard Self.comes(known, after: standing, version, isPutBack: rollback.mayBePutBack(version)) else {
                if version > known.version { memory.supersede(id, by: version) }
                return .stands(found)
            }
            // What is not there at all may have gone with its tenant, of which this replica was not told.
            if found == nil, !rollback.isRecent { return .stands(nil) }
            do throws(StoreError) {
                return .stored(try await putBack(known, id, over: standing, version))
            } catch .conflict {
                found = try await vault.read(Self.recordID(id))
                if found == nil, try await !tenantExists(id) {
                    memory.drop(id)
                    forget(id)
                    return .stands(nil)
                }
            }
        }
        throw .conflict
    }

    private static func comes(
        _ known: Known, after standing: CredentialRecord?, _ version: Int64, isPutBack: Bool
    ) -> Bool {
        if version < known.version { return true }
        guard version > known.version, isPutBack, let standing else { return false }
        if let digest = standing.tokenDigest, known.replaced.contains(digest) { return true }
        // A renewal that began before a login or a logout was stored when the store had lost that.
        let spent = standing.held?.level == .user ? standing.exchanged : standing.ended
        return known.record.isAct && spent.map(known.replaced.contains) ?? false
    }

    private func putBack(
        _ known: Known, _ id: CredentialsID, over standing: CredentialRecord?, _ version: Int64
    ) async throws(StoreError) -> CredentialsSnapshot {
        let now = time.now
        var record = known.record
        if record.held?.level == .user, record.renewed != nil {
            record.exchanged = record.exchanged ?? known.replaced.last
        }
        let prepared = prepare(
            record, id, over: version, above: known.version,
            replacing: known.replaced + (standing?.tokenDigest.map { [$0] } ?? [])
        ) { version in
            if let held = known.record.held {
                return [.updated(id, to: held, version: version, by: .recovery, nil, at: now)]
            }
            let end = known.record.session?.cause ?? (known.record.ended == nil ? .logout : .revoked)
            return standing?.held.map { [.deauthorized(id, from: $0, version: version, by: end, nil, at: now)] } ?? []
        }
        // What waits to be stored comes after this.
        let snapshot = try await write(prepared, id, endsPublication: false)
        // It shows that commits are missing, however that came about.
        rollback.noteByVersion()
        rollback.count { counts in
            if known.record.held == nil { counts.ended += 1 } else { counts.restored += 1 }
        }
        log.warning("credentials_stored_again", LogField.credentials(id) + [.version(snapshot.version)])
        return snapshot
    }

    // MARK: Everything

    /// Looks at everything that this process knows of, and stores again what the store has lost.
    /// - Returns: how many newer versions are known that cannot be stored again.
    func mendAll() async throws(StoreError) -> Int {
        let oldest = time.now.advanced(by: .zero - memory.span).milliseconds * 1000
        var known: [CredentialsID: Int64] = [:]
        for (id, version) in cache.versions(from: oldest) { known[id] = version }
        for entry in memory.all { known[entry.id] = max(known[entry.id] ?? 0, entry.version) }
        var rest = Array(known)[...]
        var lost = 0
        while !rest.isEmpty {
            if Task.isCancelled { throw .unavailable }
            let batch = Array(rest.prefix(Self.sweepBatch))
            rest = rest.dropFirst(batch.count)
            let versions = try await vault.versions(of: batch.map { Self.recordID($0.key) })
            var differing: [(CredentialsID, Int64)] = []
            for (entry, version) in zip(batch, versions) where entry.value != version {
                differing.append((entry.key, entry.value))
            }
            lost += try await mend(differing)
        }
        return lost
    }

    private static var sweepBatch: Int { 1000 }
    private static var mendedAtOnce: Int { 8 }

    private func mend(_ differing: [(CredentialsID, Int64)]) async throws(StoreError) -> Int {
        let outcomes = await withTaskGroup(of: Result<Bool, StoreError>.self) { group in
            var outcomes: [Result<Bool, StoreError>] = []
            for (index, (id, version)) in differing.enumerated() {
                if index >= Self.mendedAtOnce, let outcome = await group.next() { outcomes.append(outcome) }
                group.addTask {
                    do throws(StoreError) {
                        return .success(try await self.standing(id).snapshot.version < version)
                    } catch {
                        return .failure(error)
                    }
                }
            }
            for await outcome in group { outcomes.append(outcome) }
            return outcomes
        }
        var lost = 0
        for outcome in outcomes where try outcome.get() { lost += 1 }
        return lost
    }

    // MARK: Waiting

    /// What is stored. Where the store has just gone back, and this process knows of a newer version whose content another
    /// replica has, waits until that replica has stored it again, so that no caller gets an older version than it had
    /// before. Where no replica stores it again within the hold, what the store has is all that is left.
    func rereadAsNewAsKnown(_ id: CredentialsID) async throws(StoreError) -> CredentialsSnapshot {
        let known = knownVersion(id)
        let latest = time.monotonic.advanced(by: StoreRollback.longHold)
        while true {
            let ticket = changes.ticket(id)
            let snapshot = try await reread(id)
            guard snapshot.version < known, knownVersion(id) >= known, let rest = rollback.remainingHold,
                time.monotonic < latest
            else { return snapshot }
            // The change feed may still be connecting, so the store is asked again without being told of a change, too.
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
            let versions = try await within(StoreRollback.answerLimit) { () async throws(StoreError) in
                try await vault.versions(of: [Self.recordID(id)])
            }
            return versions.first != version
        } catch {
            // One that does not answer is asked again: the renewal that waits for this has an end.
            report(error, id)
            return false
        }
    }

    /// Waits until the replicas have had the time to store again what a store that has gone back lacks.
    /// - Parameter version: of the record whose refresh token is to be presented. It may be another one's turn to present
    ///   that of the next version when this returns.
    /// - Throws: `retryable_error` where the task is cancelled meanwhile, `storage_unavailable` where the store has been away
    ///   again and again.
    func waitForOthersAfterRollback(_ id: CredentialsID, _ version: Int64) async throws(BrokerError) {
        let known = memory.version(id)
        let latest = time.monotonic.advanced(by: StoreRollback.longHold)
        while true {
            let ticket = changes.ticket(id)
            let hold = rollback.remainingHold
            // Another replica may have put the next one there.
            let isKnownToBeOld = known > version && memory.version(id) == known
            guard let rest = hold ?? (isKnownToBeOld ? rollback.remainingLongHold : nil) else { return }
            if latest <= time.monotonic { throw BrokerError(StoreError.unavailable) }
            let pause = hold == nil ? min(rest, Self.changeInterval) : rest
            await changes.wait(for: id, since: ticket) { try? await self.time.sleep(for: pause) }
            if Task.isCancelled {
                throw BrokerError(.retryableError, "The broker is shutting down.", retryAfter: 1)
            }
            // The word of what was put there is lost while this replica's feed is being connected again. A store that does not
            // say has the hold begin anew.
            if rollback.remainingHold == nil, await isReplaced(id, version) { return }
        }
    }
}
