import CredentialStore
import OAuth
import Reactor
import Renewal
import Synchronization
import Waiting

/// Stores what a renewal brought, in place of exactly the version that it started from.
///
/// The provider may have replaced the refresh token, so the result must not be lost: a store that does not answer is asked
/// until it does. With a journal, the result is written there meanwhile and served to callers, and this process, or the next
/// one with the journal, stores it when the store answers again.
final class CredentialsPublisher: Sendable {
    /// The background task that stores an entry of the journal.
    private struct JournalTask {
        let task: Task<Void, Never>
        /// The holder of the lease under which the record came to be.
        let holder: String?
    }

    private let records: CredentialsRecords
    private let holders: LeaseHolders
    /// Nil keeps grants that cannot be stored in memory only.
    let journal: Journal?
    private let quarantine: Duration
    private let callLimit: Duration
    private let time: any Time
    private let log: Log
    private let metrics: Metrics
    private let journalTasks = Mutex<[CredentialsID: JournalTask]>([:])
    /// Signalled when an entry of the journal is to be stored without delay.
    private let retries = KeyedSignal<CredentialsID>()

    init(
        records: CredentialsRecords, holders: LeaseHolders, journal: Journal?, quarantine: Duration,
        callLimit: Duration, metrics: Metrics
    ) {
        (time, log) = (records.time, records.log)
        self.records = records
        self.holders = holders
        self.journal = journal
        self.quarantine = quarantine
        self.callLimit = callLimit
        self.metrics = metrics
    }

    enum Advance {
        case stored(CredentialsSnapshot)
        case conflict(RenewalAttempt.Conflict)
        case storeAway(BrokerError)
    }

    /// Tries once to store the publication.
    /// - Parameter heedsLease: whether another attempt's lease makes the commit fail.
    func advance(_ publication: inout Publication, heedsLease: Bool) async -> Advance {
        let id = publication.id
        do throws(StoreError) {
            if !publication.isOfSameUser, try await !compareUser(&publication) { return .conflict(.other) }
            // A store that has lost commits may have lost a later change that this process knows of, such as a logout. Reading
            // the record stores that change again first.
            let known = records.knownVersion(id)
            if publication.base > 0, known > max(publication.base, publication.readUpTo) {
                let resolved = try await resolve(&publication)
                publication.readUpTo = known
                return resolved
            }
            let change = try await prepared(&publication, heedsLease: heedsLease)
            do throws(StoreError) {
                let stored = try await records.write(change, id, tenantVersion: publication.tenantVersion)
                if publication.ends != nil { records.sessionEndings.signal(0) }
                return .stored(stored)
            } catch .conflict {
                return try await resolve(&publication)
            }
        } catch {
            publication.tries += 1
            publication.awaySince = publication.awaySince ?? time.monotonic
            records.report(error, id)
            return .storeAway(BrokerError(error))
        }
    }

    private func prepared(
        _ publication: inout Publication, heedsLease: Bool
    ) async throws(StoreError) -> CredentialsRecords.Prepared {
        let id = publication.id
        let terms = Publication.Terms(heedsLease: heedsLease, tellsExchange: records.rollback.isRecent)
        if let prepared = publication.prepared, prepared.for == terms { return prepared.change }
        var record = publication.record
        if let login = publication.waitingLogin {
            record = login.waiting(over: GrantVerification.record(refusing: record).held, spent: publication.spent)
        } else if terms.tellsExchange {
            record.exchanged = publication.spent
        }
        var others = try await records.changes(publication.quarantine, id) + publication.counting
        if let ends = publication.ends {
            others += try await records.sessionEndings(of: id, login: ends.login, by: ends.cause, time.now)
        }
        let change = records.prepare(
            record, id, over: publication.base,
            lease: (heedsLease ? publication.holder : nil).map { .fenced(for: $0) } ?? .ended,
            replacing: publication.spent.map { [$0] } ?? [], others, publication.events)
        publication.prepared = (change, terms)
        return change
    }

    /// Compares the user of a grant from the journal with the user of the record that it replaces. A grant of another user is
    /// not stored: the end of the session is stored in its place.
    /// - Returns: whether there is anything to store.
    private func compareUser(_ publication: inout Publication) async throws(StoreError) -> Bool {
        let id = publication.id
        guard let granted = publication.record.granted, let spent = publication.spent else { return true }
        let (stored, _) = try await records.readWithLease(id, requiringTombstones: false)
        publication.isOfSameUser = true
        guard let held = stored.record.granted, held.refreshTokenDigest == spent else {
            // If a refusal has ended the session and quarantined its credentials, the grant would bring the session back.
            guard stored.record.ended == spent,
                let quarantined = try await records.quarantined(id)?.content.credentials
            else { return true }
            let isOfSession = [spent, granted.refreshTokenDigest].contains(quarantined.refreshTokenDigest)
            return !isOfSession || !quarantined.isOfOtherUser(than: granted)
        }
        guard held.isOfOtherUser(than: granted) else { return true }
        // The tenant is nil if it was deleted meanwhile, or cannot be read now. Its provider is then not known.
        let preset = (try? await records.tenants.currentTenant(id.tenant))?.configuration.preset
        log.error("subject_changed", LogField.credentials(id) + [preset.map { .provider($0) }].compactMap(\.self))
        if let preset { metrics.subjectChanged(provider: preset.name) }
        let now = time.now
        let session = EndedSession(.revoked, at: now, for: .subjectChanged)
        publication.record = CredentialRecord(held: nil, ended: spent, session: session)
        publication.spent = nil
        publication.base = stored.version
        let newest = granted.refreshToken.map { held.renewing(refreshToken: $0, usableFrom: nil) } ?? held
        publication.quarantine = .keep(newest, for: quarantine, after: session)
        publication.ends = (held.loggedInSince, .revoked)
        publication.events = { version in
            BrokerEvent.subjectChanged(id, from: held, version: version, nil, at: now)
        }
        return true
    }

    /// Finds out what a conflict means, and prepares the next try.
    private func resolve(_ publication: inout Publication) async throws(StoreError) -> Advance {
        let id = publication.id
        // The cache entry is the version that the renewal started from, which was replaced; unless the store has lost commits.
        if records.knownVersion(id) <= publication.base { records.forget(id) }
        let (stored, lease) = try await records.readWithLease(id, requiringTombstones: false)
        // An earlier try, of this process or of an earlier one, may have been carried out although its answer was lost.
        // Two replicas may make the same version, so the content counts as well.
        let tried = publication.prepared?.change.snapshot
        let isTried = stored.version == tried?.version && stored.record == tried?.record
        let isSame = stored.record.isSame(as: publication.record)
        if isTried || isSame && (publication.tries > 0 || publication.record.granted != nil) {
            return .stored(records.adopt(stored, id, due: publication.prepared?.change.due))
        }
        guard try await records.tenantExists(id) else { return .conflict(.other) }
        let waitsOver = Self.waitsOver(stored.record, publication)
        if let login = loginContinued(stored, publication) {
            publication.record = login
            publication.isBehindLogin = true
            publication.events = { _ in [] }
        } else if Self.isRefuted(stored.record, by: publication.record, inExchangeFor: publication.spent) {
            // The session's quarantined refresh token is spent, and to use it would end the session after all.
            publication.quarantine = .drop
        } else if stored.version > publication.base, !waitsOver, !Self.holdsSpent(stored.record, publication) {
            return .conflict(.other)
        } else if publication.quarantine == .none, stored.version == 0 {
            return .conflict(.other)
        }
        // Otherwise another change has replaced the quarantined credentials, or the lease, or a login's set waits over what was
        // renewed. The record still holds that, and its refresh token is spent.
        publication.waitingLogin = waitsOver ? stored.record : nil
        (publication.prepared, publication.base, publication.tries) = (nil, stored.version, 0)
        publication.conflicts += 1
        guard publication.conflicts < 32 else { throw .conflict }
        var other: StandingLease?
        if let lease, lease.holder != publication.holder, publication.holder != nil, !lease.hasRunOut {
            other = holders.standing(lease)
            // A conflict with a lease does not count: the wait for it may last as long as its holder's tries.
            publication.conflicts -= 1
        }
        return .conflict(.spent(version: stored.version, lease: other))
    }

    /// Whether another replica has stored the end of the session before this grant was stored, because the provider refused the
    /// refresh token that this process had just exchanged. The grant shows that the session goes on. A logout leaves no
    /// `ended` digest, so that it never counts as refuted.
    private static func isRefuted(
        _ stored: CredentialRecord, by granted: CredentialRecord, inExchangeFor spent: [UInt8]?
    ) -> Bool {
        guard granted.granted?.level == .user, stored.granted?.level != .user || stored.isOver, let spent else {
            return false
        }
        return stored.ended == spent
    }

    /// The record of a login that came before this grant, with the refresh token of the grant. The login has brought no refresh token,
    /// so that it has kept the one that this grant has replaced, or has none. Its tokens are later ones, and stay.
    /// - Returns: nil where there was no such login.
    private func loginContinued(_ stored: CredentialsSnapshot, _ publication: Publication) -> CredentialRecord? {
        guard stored.version > publication.base, stored.record.waiting == nil, let login = stored.record.granted,
            let spent = publication.spent, let granted = publication.record.granted,
            let successor = granted.refreshToken, granted.refreshTokenDigest != spent,
            stored.record.keepsRefreshToken || stored.record.endedBefore == spent,
            granted.continues(
                in: login, spent: spent, endedBefore: stored.record.endedBefore,
                at: records.acceptedProviders(by: login, publication.id))
        else { return nil }
        var record = stored.record
        record.granted = login.havingRefreshToken(of: granted)
            .renewing(refreshToken: successor, usableFrom: granted.refreshableFrom)
        record.granted?.proof.refreshToken = publication.record.waiting == nil && granted.proof.refreshToken
        record.keepsRefreshToken = true
        record.endedBefore = nil
        record.heldSince = stored.heldVersion
        return record
    }

    /// Whether the stored record has the refresh token that this grant has replaced: an operator has restored it, or a replica
    /// whose own refresh brought no new one has stored it. The grant is its successor.
    private static func holdsSpent(_ stored: CredentialRecord, _ publication: Publication) -> Bool {
        isSpent(stored.granted, by: publication)
    }

    /// Whether the stored record has a login's set that waits for its verification, and before it the refresh token that this
    /// grant has replaced. If the login's set is dropped, that session goes on.
    private static func waitsOver(_ stored: CredentialRecord, _ publication: Publication) -> Bool {
        guard let waiting = stored.waiting, !waiting.origin.isRenewal else { return false }
        return isSpent(waiting.earlier, by: publication)
    }

    private static func isSpent(_ held: HeldCredentials?, by publication: Publication) -> Bool {
        guard let spent = publication.spent, let successor = publication.record.granted?.refreshTokenDigest else {
            return false
        }
        return successor != spent && held?.refreshTokenDigest == spent
    }

    // MARK: Until it is stored

    private var storeHasGoneBack: Bool { records.rollback.remainingHold != nil }

    /// Tries once to store the publication in place of exactly that version.
    /// - Parameter heedsLease: whether another attempt's lease makes the commit fail.
    func store(
        _ publication: inout Publication, over version: Int64, heedsLease: Bool
    ) async -> RenewalAttempt.Outcome {
        publication.base = version
        switch await advance(&publication, heedsLease: heedsLease) {
        case .stored(let stored):
            publication.stored = stored
            return .stored
        case .conflict(let conflict): return .conflict(conflict)
        case .storeAway(let error):
            publication.needsOperator = error.code == .internalError
            publication.conflicts = 0
            return .storeAway
        }
    }

    /// Waits before the next try, until the record changes, or until the task is cancelled.
    /// - Parameters:
    ///   - duration: for how long the attempt waits; the first waits for a store that does not answer are shorter.
    ///   - isJournaled: whether the record is in the journal, so that no caller waits for it and nothing is lost meanwhile.
    func waitForStore(_ duration: Duration, _ publication: Publication, isJournaled: Bool) async {
        let signals = isJournaled ? retries : records.changes
        let ticket = signals.ticket(publication.id)
        let pause: Duration
        if publication.needsOperator {
            // An operator takes minutes to correct a store that is damaged.
            pause = isJournaled ? .seconds(60) : CredentialsRecords.pause(beforeTry: publication.tries)
        } else if publication.tries == 0 {
            pause = duration
        } else {
            pause = min(duration, CredentialsRecords.pauseWithGrant(beforeTry: publication.tries))
        }
        await signals.wait(for: publication.id, since: ticket) { try? await self.time.sleep(for: pause) }
    }

    // MARK: The journal

    /// Writes what was granted to the journal, and serves it from now on, unless this process knows of a later change, such as a
    /// logout.
    /// - Returns: false where there is no journal, where it fails, or where nothing would be lost without it.
    func writeJournal(_ publication: Publication, grace: Duration) async -> Bool {
        guard let journal, let spent = publication.spent, let origin = publication.origin,
            publication.record.granted?.refreshToken != nil
        else { return false }
        // An earlier entry of the journal was replaced in the store by the version that this renewal started from. Its task, if
        // it is still running, would remove this entry from the journal.
        let previous = journalTasks.withLock { $0[publication.id] }
        previous?.task.cancel()
        await previous?.task.value
        if let holder = previous?.holder { holders.end(holder) }
        // Where a login's set waits, the next process has to find that out anew, by the conflict with it.
        let base = publication.waitingLogin == nil ? publication.base : publication.firstBase
        let snapshot = CredentialsSnapshot(unpublished: publication.record, of: publication.id, over: base)
        let entry = JournalEntry(
            id: publication.id, record: publication.record,
            exchange: JournalEntry.Exchange(
                base: base, holder: publication.holder, spent: spent, grace: grace),
            origin: origin, isOfSameUser: true)
        do throws(StoreError) {
            try await journal.write(entry)
        } catch {
            log.error("journal_failed", LogField.credentials(publication.id) + [.store(error)])
            return false
        }
        log.warning("credentials_kept_in_journal", LogField.credentials(publication.id))
        if records.newestKnown(publication.id) <= base {
            records.serve(snapshot, unpublished: publication.id)
        }
        return true
    }

    // MARK: From the journal

    /// Stores or serves what earlier processes left in the journal. To be called before the first caller is served.
    /// - Throws: `storage_unavailable` and `internal_error` where the journal cannot be read.
    func takeUpJournal() async throws(BrokerError) {
        guard let journal else { return }
        do throws(StoreError) {
            holders.adopt(lineage: try await journal.lineage())
            var isStoreAway = false
            for entry in try await journal.entries() {
                // A set that waits for its verification is told of once it is verified, and callers have no other set by a record that
                // only has another refresh token.
                let held = entry.record.waiting == nil && entry.record.heldSince == nil ? entry.record.held : nil
                let exchange = entry.exchange
                var publication = Publication(
                    id: entry.id, record: entry.record, base: exchange.base, origin: entry.origin
                ) {
                    [time] version in
                    guard let held else { return [] }
                    return [.updated(entry.id, to: held, version: version, by: entry.origin, nil, at: time.now)]
                }
                publication.holder = exchange.holder
                publication.spent = exchange.spent
                publication.isOfSameUser = entry.isOfSameUser
                // What it was restored from is spent.
                if entry.origin == .restored { publication.quarantine = .drop }
                log.warning("credentials_found_in_journal", LogField.credentials(entry.id))
                if let holder = exchange.holder { holders.resume(holder) }
                var attempt = RenewalAttempt(
                    rules: RenewalRules(grace: exchange.grace, callLimit: callLimit, waits: []),
                    journaledOver: exchange.base)
                let beginning = time.monotonic
                let step = attempt.next(
                    .begun, now: .zero, asked: .zero, storeReachableFor: .zero, storeHasGoneBack: storeHasGoneBack)
                // The entry may be old, and the user may have logged out since. So it is served without asking the store only
                // where the store does not answer. A store that does not answer is asked once for all entries.
                if !isStoreAway {
                    switch await advance(&publication, heedsLease: !storeHasGoneBack) {
                    case .stored:
                        await leaveJournal(publication, isStored: true)
                        continue
                    case .conflict(.other):
                        await leaveJournal(publication, isStored: false)
                        continue
                    case .conflict: break
                    case .storeAway: isStoreAway = true
                    }
                }
                // Not served: an entry of an earlier build, before the store has told whose session it was; and one after which
                // the earlier process knew of a later change, such as a logout.
                if publication.isOfSameUser, publication.record == entry.record,
                    records.knownVersion(entry.id) <= exchange.base
                {
                    records.serve(
                        CredentialsSnapshot(unpublished: entry.record, of: entry.id, over: exchange.base),
                        unpublished: entry.id)
                }
                publishInBackground(publication, attempt, step, since: beginning)
            }
        } catch {
            log.error("journal_failed", [.store(error)])
            throw BrokerError(error)
        }
    }

    /// Carries out the rest of an attempt whose grant is in the journal, in a task of its own.
    /// - Parameters:
    ///   - step: the first of the steps that are left.
    ///   - beginning: the origin of the attempt's times.
    func publishInBackground(
        _ grant: Publication, _ started: RenewalAttempt, _ step: RenewalAttempt.Step, since beginning: MonotonicInstant
    ) {
        let id = grant.id
        journalTasks.withLock { tasks in
            let task = Task {
                var publication = grant
                // The first try from the journal comes soon, whatever the last one failed with.
                publication.needsOperator = false
                if let isStored = await self.publish(&publication, started, step, since: beginning) {
                    await self.leaveJournal(publication, isStored: isStored)
                }
                self.journalTasks.withLock { $0[id] = nil }
            }
            tasks[id] = JournalTask(task: task, holder: grant.holder)
        }
    }

    /// Stores an entry of the journal.
    /// - Returns: whether it is stored, or overtaken by another change; nil if it stays in the journal, since the process ends or a
    ///   later grant replaces the entry.
    private func publish(
        _ publication: inout Publication, _ started: RenewalAttempt, _ first: RenewalAttempt.Step,
        since beginning: MonotonicInstant
    ) async -> Bool? {
        var (attempt, step) = (started, first)
        while true {
            let outcome: RenewalAttempt.Outcome
            switch step {
            case .publish(let version, let heedsLease):
                outcome = await store(&publication, over: version, heedsLease: heedsLease)
            case .writeJournal: outcome = .journaled
            case .wait(let duration):
                await waitForStore(duration, publication, isJournaled: true)
                if Task.isCancelled { return nil }
                outcome = .waited
            case .finish: return publication.stored != nil
            // An attempt that has a grant asks for nothing any more, and its lease ends with the record that is stored.
            case .read, .claim, .ask, .pause, .publishEnd, .release, .handOver: return nil
            }
            let now = beginning.duration(to: time.monotonic)
            step = attempt.next(
                outcome, now: now, asked: now, storeReachableFor: .zero, storeHasGoneBack: storeHasGoneBack)
        }
    }

    /// Removes the entry of the journal.
    /// - Parameter isStored: whether it is in the store, and not overtaken by another change.
    func leaveJournal(_ publication: Publication, isStored: Bool) async {
        let id = publication.id
        if isStored {
            log.info("credentials_published_from_journal", LogField.credentials(id))
        } else {
            log.warning("journal_overtaken", LogField.credentials(id))
        }
        if let holder = publication.holder { holders.end(holder) }
        records.published(id)
        records.changes.signal(id)
        do throws(StoreError) {
            try await journal?.remove(id)
        } catch {
            // The next process finds the entry, and that it is stored.
            log.error("journal_failed", LogField.credentials(id) + [.store(error)])
        }
    }

    /// Has the entry of the journal stored without delay, and waits for that for a second at most.
    /// - Returns: whether it is stored.
    func isPublished(_ id: CredentialsID, since ticket: KeyedSignal<CredentialsID>.Ticket) async -> Bool {
        retries.signal(id)
        await records.changes.wait(for: id, since: ticket) {
            try? await self.time.sleep(for: CredentialsRecords.changeInterval)
        }
        return records.unpublished(id) == nil
    }

    /// Ends the background tasks. Their entries stay in the journal.
    func finish() async {
        let tasks = journalTasks.withLock { $0.values.map(\.task) }
        for task in tasks { task.cancel() }
        for task in tasks { await task.value }
    }
}
