internal import CredentialStore
internal import Cryptography
internal import OAuth
internal import Reactor
internal import Synchronization

/// Storing what a renewal brought, in place of exactly what it started from.
///
/// A provider may have replaced the refresh token by now, so the result may not be lost: a store that is away is asked
/// until it answers. Where there is a journal, the result goes there meanwhile, callers are served from it, and this
/// process or the next one that has the journal stores it when the store is back.
extension CredentialsProvider {
    /// How far a publication has got.
    struct Publication: Sendable {
        let id: CredentialsID
        /// The version that the tenant must have where the record is new.
        let tenantVersion: Int64?
        /// The holder of the lease under which the record came to be; nil where none was needed.
        let holder: String?
        let record: CredentialRecord
        /// The digest of the refresh token that was exchanged for the record's; nil where none was.
        let spent: [UInt8]?
        let events: CredentialsRecords.Events
        /// The version that is to be replaced.
        var base: Int64
        var aside: CredentialsRecords.AsideChange = .none
        /// The version that it is served as already, before it is stored; nil for none yet.
        var version: Int64?
        var prepared: CredentialsRecords.Prepared?
        var tries = 0
        var conflicts = 0
    }

    private enum Progress {
        case stored(CredentialsSnapshot)
        /// Somebody else's change came first.
        case overtaken
        /// What stands in the way is to be looked at again, at the latest after so long: another replica has taken the
        /// lease over and is at work with the refresh token that we have exchanged, and what comes of it decides. Zero
        /// where it is gone already.
        case again(after: Duration)
        case storeAway
    }

    func publish(
        _ renewal: Renewal, _ record: CredentialRecord, aside: CredentialsRecords.AsideChange = .none,
        events: @escaping CredentialsRecords.Events
    ) async throws(BrokerError) -> Renewed {
        let id = renewal.id
        let life = record.held.map { time.now.duration(to: $0.expires) }
        // Where a session is put away without its refresh token's having been asked about, nobody may be exchanging that
        // just now: so this one heeds the leases of others, too.
        let holder = renewal.lease.holder ?? (aside == .none ? nil : renewal.refreshID.text)
        var publication = Publication(
            id: id, tenantVersion: renewal.tenant.version, holder: holder, record: record,
            spent: renewal.grant?.spendsRefreshToken == true ? renewal.current.record.held?.refreshTokenDigest : nil,
            events: events, base: renewal.current.version, aside: aside)
        while true {
            let ticket = records.changes.ticket(id)
            do throws(BrokerError) {
                switch try await advance(&publication) {
                case .stored(let snapshot): return .new(snapshot, life: life)
                case .overtaken:
                    await letGo(
                        renewal, BrokerError(.conflict, "A login, a logout or another replica was faster."),
                        isOvertaken: true)
                    return .overtaken
                case .again(let remaining): try await waitForOther(id, since: ticket, remaining)
                case .storeAway:
                    // A journal that has failed may be well again.
                    if let snapshot = await keep(publication) { return .new(snapshot, life: life) }
                    try await records.waitForStore(beforeTry: publication.tries, id)
                }
            } catch {
                // The broker is being stopped, or an operator must look: what was granted is to be there then.
                if let snapshot = await keep(publication) { return .new(snapshot, life: life) }
                throw error
            }
        }
    }

    /// One try.
    private func advance(_ publication: inout Publication) async throws(BrokerError) -> Progress {
        let id = publication.id
        do throws(StoreError) {
            let change: CredentialsRecords.Prepared
            if let prepared = publication.prepared {
                change = prepared
            } else {
                change = records.prepare(
                    publication.record, id, over: publication.base, as: publication.version,
                    fencedFor: publication.holder, replacing: publication.spent.map { [$0] } ?? [],
                    try await records.changes(publication.aside, id), publication.events)
                publication.prepared = change
            }
            do throws(StoreError) {
                return .stored(try await records.write(change, id, tenantVersion: publication.tenantVersion))
            } catch .conflict {
                return try await meet(whatStands(id), &publication)
            }
        } catch .unavailable {
            publication.tries += 1
            return .storeAway
        } catch .conflict {
            records.report(.conflict, id)
            throw BrokerError(StoreError.conflict)
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
    }

    private typealias Standing = (snapshot: CredentialsSnapshot, lease: Lease?, tenantExists: Bool)

    /// What is stored after a conflict.
    private func whatStands(_ id: CredentialsID) async throws(StoreError) -> Standing {
        // What is in memory is what the renewal started from, and that is over.
        records.forget(id)
        let (snapshot, lease) = try await records.standing(id)
        return (snapshot, lease, try await records.tenantExists(id))
    }

    /// What a conflict means.
    /// - Throws: `.conflict` where that is all that ever comes.
    private func meet(_ standing: Standing, _ publication: inout Publication) throws(StoreError) -> Progress {
        // An earlier try may have arrived although its answer did not, or an earlier process's.
        if standing.snapshot.record == publication.record, publication.tries > 0 || publication.record.held != nil {
            return .stored(records.adopt(standing.snapshot, publication.id, due: publication.prepared?.due))
        }
        guard standing.tenantExists else { return .overtaken }
        if Self.isRefuted(standing.snapshot.record, by: publication.record, inExchangeFor: publication.spent) {
            // What was kept aside of the session is spent, and using it would end the session after all.
            (publication.base, publication.aside) = (standing.snapshot.version, .drop)
        } else if standing.snapshot.version > publication.base, !Self.holdsSpent(standing.snapshot.record, publication)
        {
            return .overtaken
        } else {
            publication.base = standing.snapshot.version
            if let lease = standing.lease, lease.holder != publication.holder, !lease.hasRunOut,
                publication.holder != nil
            {
                (publication.prepared, publication.tries) = (nil, 0)
                return .again(after: lease.remaining)
            }
            if publication.aside == .none, publication.base == 0 { return .overtaken }
        }
        // Otherwise it was what is kept aside that somebody else has changed, or a lease that has ended since: what the
        // record holds is what was renewed, and its refresh token is spent. Waits for a lease are not counted, which
        // may last as long as its holder's tries.
        publication.conflicts += 1
        guard publication.conflicts < 32 else { throw .conflict }
        (publication.prepared, publication.tries) = (nil, 0)
        return .again(after: .zero)
    }

    /// Whether another replica took the session for ended because the refresh token was refused that we had just
    /// exchanged, and came to the store before us. What we were granted shows that the session goes on. A logout leaves
    /// no such mark, so that it is never taken for that.
    private static func isRefuted(
        _ standing: CredentialRecord, by granted: CredentialRecord, inExchangeFor spent: [UInt8]?
    ) -> Bool {
        guard granted.held?.level == .user, standing.held?.level != .user, let spent else { return false }
        return standing.ended == spent
    }

    /// Whether the record, whoever has written it, has the refresh token that was exchanged for another one: restored by an
    /// operator, or kept by a replica whose own refresh brought none. What we were granted is what comes after it.
    private static func holdsSpent(_ standing: CredentialRecord, _ publication: Publication) -> Bool {
        guard let spent = publication.spent, let successor = publication.record.held?.refreshTokenDigest else {
            return false
        }
        return successor != spent && standing.held?.refreshTokenDigest == spent
    }

    /// Waits for another replica to finish, for as long as its lease lasts.
    private func waitForOther(
        _ id: CredentialsID, since ticket: Signals<CredentialsID>.Ticket, _ remaining: Duration
    ) async throws(BrokerError) {
        if remaining <= .zero { return }
        let pause = min(Self.lookInterval, remaining)
        await records.changes.wait(for: id, since: ticket) { try? await self.time.sleep(for: pause) }
        if Task.isCancelled { throw BrokerError(StoreError.unavailable) }
    }

    // MARK: The journal

    /// Puts what was granted into the journal, serves it from now on, and stores it in the background.
    /// - Returns: nil where there is no journal, where it fails, or where nothing is lost without it.
    private func keep(_ publication: Publication) async -> CredentialsSnapshot? {
        guard let journal, let spent = publication.spent, publication.record.held?.refreshToken != nil else {
            return nil
        }
        // What was in the journal before was replaced in the store by what this one started from. Whoever still sees to
        // it would take this one out of the journal with it.
        let previous = publications.withLock { $0[publication.id] }
        previous?.cancel()
        await previous?.value
        var publication = publication
        let version = records.nextVersion(after: publication.base)
        (publication.version, publication.prepared) = (version, nil)
        let snapshot = CredentialsSnapshot(publication.record, of: publication.id, version: version)
        let entry = JournalEntry(
            id: publication.id, base: publication.base, holder: publication.holder, spent: spent,
            record: publication.record, version: version)
        do throws(StoreError) {
            try await journal.keep(entry)
        } catch {
            log.error("journal_failed", LogField.credentials(publication.id) + [.store(error)])
            return nil
        }
        log.warning("credentials_kept_in_journal", LogField.credentials(publication.id))
        records.serve(snapshot, unpublished: publication.id)
        goOn(with: publication)
        return snapshot
    }

    /// Takes up what earlier processes left in the journal. To be done before anybody is served.
    /// - Throws: `storage_unavailable` and `internal_error` where the journal cannot be read.
    package func takeUpJournal() async throws(BrokerError) {
        guard let journal else { return }
        do throws(StoreError) {
            var isStoreAway = false
            for entry in try await journal.entries() {
                let held = entry.record.held
                var publication = Publication(
                    id: entry.id, tenantVersion: nil, holder: entry.holder, record: entry.record, spent: entry.spent,
                    events: { [time] version in
                        guard let held else { return [] }
                        return [.updated(entry.id, to: held, version: version, by: .refresh, nil, at: time.now)]
                    }, base: entry.base, version: entry.version)
                log.warning("credentials_found_in_journal", LogField.credentials(entry.id))
                // It may be long since it was written, and a logout may have come between: only where the store does
                // not say is it served without asking. One that is away is asked once.
                if !isStoreAway, await isSettled(&publication) { continue }
                isStoreAway = isStoreAway || publication.tries > 0
                records.serve(
                    CredentialsSnapshot(entry.record, of: entry.id, version: entry.version), unpublished: entry.id)
                goOn(with: publication)
            }
        } catch {
            log.error("journal_failed", [.store(error)])
            throw BrokerError(error)
        }
    }

    private func goOn(with publication: Publication) {
        let id = publication.id
        publications.withLock { tasks in
            tasks[id] = Task {
                await self.publishFromJournal(publication)
                self.publications.withLock { $0[id] = nil }
            }
        }
    }

    private func publishFromJournal(_ started: Publication) async {
        var publication = started
        let id = publication.id
        while !Task.isCancelled {
            let ticket = nudges.ticket(id)
            let pause: Duration
            do throws(BrokerError) {
                switch try await advance(&publication) {
                case .stored: return await leaveJournal(id, isStored: true)
                case .overtaken: return await leaveJournal(id, isStored: false)
                case .again(let remaining): pause = min(remaining, Self.lookInterval)
                case .storeAway:
                    pause = CredentialsRecords.pauseWithGrant(beforeTry: publication.tries)
                }
            } catch {
                // An operator must look; what is in the journal stays there.
                publication.conflicts = 0
                pause = .seconds(60)
            }
            if pause > .zero { await nudges.wait(for: id, since: ticket) { try? await self.time.sleep(for: pause) } }
        }
    }

    /// One try to store what an earlier process left. Returns whether nothing is left to do.
    private func isSettled(_ publication: inout Publication) async -> Bool {
        do throws(BrokerError) {
            switch try await advance(&publication) {
            case .stored: await leaveJournal(publication.id, isStored: true)
            case .overtaken: await leaveJournal(publication.id, isStored: false)
            case .again, .storeAway: return false
            }
            return true
        } catch {
            // Reported; further tries follow.
            return false
        }
    }

    private func leaveJournal(_ id: CredentialsID, isStored: Bool) async {
        if isStored {
            log.info("credentials_published_from_journal", LogField.credentials(id))
        } else {
            log.warning("journal_overtaken", LogField.credentials(id))
        }
        records.published(id)
        records.changes.signal(id)
        do throws(StoreError) {
            try await journal?.remove(id)
        } catch {
            // The next process finds it, and finds it stored.
            log.error("journal_failed", LogField.credentials(id) + [.store(error)])
        }
    }

    /// Has what is in the journal tried now. Returns whether it is stored.
    func isPublished(_ id: CredentialsID, since ticket: Signals<CredentialsID>.Ticket) async -> Bool {
        nudges.signal(id)
        await records.changes.wait(for: id, since: ticket) { try? await self.time.sleep(for: Self.lookInterval) }
        return records.unpublished(id) == nil
    }

    /// Ends the tries to store what is in the journal: it is safe there.
    func leaveJournalled() async {
        let tasks = publications.withLock { Array($0.values) }
        for task in tasks { task.cancel() }
        for task in tasks { await task.value }
    }
}
