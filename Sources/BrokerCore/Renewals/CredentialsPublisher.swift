internal import CredentialStore
internal import OAuth
internal import Reactor
internal import Renewal
internal import Synchronization
internal import Waiting

/// Stores what a renewal brought, in place of exactly what it started from.
///
/// A provider may have replaced the refresh token by now, so the result may not be lost: a store that is away is asked
/// until it answers. Where there is a journal, the result goes there meanwhile, callers are served from it, and this
/// process or the next one that has the journal stores it when the store is back.
final class CredentialsPublisher: Sendable {
    /// The work in the background that stores what is in the journal.
    private struct Kept {
        let task: Task<Void, Never>
        /// The holder of the lease under which the record came to be.
        let holder: String?
    }

    private let records: CredentialsRecords
    private let holders: LeaseHolders
    /// Nil keeps what cannot be stored in memory only.
    let journal: Journal?
    private let quarantine: Duration
    private let callLimit: Duration
    private let time: any Time
    private let log: Log
    /// What stores the journal's entries.
    private let kept = Mutex<[CredentialsID: Kept]>([:])
    /// Signalled when an entry of the journal is to be stored without delay.
    private let nudges = KeyedSignal<CredentialsID>()

    init(
        records: CredentialsRecords, holders: LeaseHolders, journal: Journal?, quarantine: Duration,
        callLimit: Duration, time: any Time, log: Log
    ) {
        self.records = records
        self.holders = holders
        self.journal = journal
        self.quarantine = quarantine
        self.callLimit = callLimit
        self.time = time
        self.log = log
    }

    enum Advance {
        case stored(CredentialsSnapshot)
        case conflict(RenewalAttempt.Conflict)
        case storeAway(BrokerError)
    }

    /// One try.
    /// - Parameter heedsLease: whether another attempt's lease stands in the way.
    func advance(_ publication: inout Publication, heedsLease: Bool) async -> Advance {
        let id = publication.id
        do throws(StoreError) {
            if !publication.isOfSameUser, try await !compareUser(&publication) { return .conflict(.other) }
            // A store that has gone back may have lost a later change that this process knows of, such as a logout: that one is
            // stored again first.
            let known = records.knownVersion(id)
            if publication.base > 0, known > max(publication.base, publication.heeded) {
                let met = try await meet(&publication)
                publication.heeded = known
                return met
            }
            let change = try await prepared(&publication, heedsLease: heedsLease)
            do throws(StoreError) {
                return .stored(try await records.write(change, id, tenantVersion: publication.tenantVersion))
            } catch .conflict {
                return try await meet(&publication)
            }
        } catch .unavailable {
            publication.tries += 1
            records.report(.unavailable, id)
            return .storeAway(BrokerError(StoreError.unavailable))
        } catch {
            publication.tries += 1
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
        if terms.tellsExchange { record.exchanged = publication.spent }
        let change = records.prepare(
            record, id, over: publication.base, fencedFor: heedsLease ? publication.holder : nil,
            replacing: publication.spent.map { [$0] } ?? [],
            try await records.changes(publication.aside, id), publication.events)
        publication.prepared = (change, terms)
        return change
    }

    /// Holds a grant from a journal against what it was exchanged for. One of another user is stored nowhere: the session's
    /// end is stored in its place.
    /// - Returns: whether there is anything to store.
    private func compareUser(_ publication: inout Publication) async throws(StoreError) -> Bool {
        let id = publication.id
        guard let granted = publication.record.held, let spent = publication.spent else { return true }
        let (standing, _) = try await records.standing(id)
        publication.isOfSameUser = true
        guard let held = standing.record.held, held.refreshTokenDigest == spent else {
            // Where a refusal has put the session aside, the grant would bring it back.
            guard standing.record.ended == spent, let aside = try await records.aside(id)?.content.credentials else {
                return true
            }
            return aside.refreshTokenDigest != spent || !aside.isOfOtherUser(than: granted)
        }
        guard held.isOfOtherUser(than: granted) else { return true }
        log.error("subject_changed", LogField.credentials(id))
        let now = time.now
        publication.record = CredentialRecord(held: nil, ended: spent, session: EndedSession(.revoked, at: now))
        publication.spent = nil
        publication.base = standing.version
        publication.aside = .keep(held, for: quarantine)
        publication.events = { version in
            BrokerEvent.subjectChanged(id, from: held, version: version, nil, at: now)
        }
        return true
    }

    /// What a conflict means.
    private func meet(_ publication: inout Publication) async throws(StoreError) -> Advance {
        let id = publication.id
        // What is in memory is what the renewal started from, and that is over; unless it is what the store has lost.
        if records.knownVersion(id) <= publication.base { records.forget(id) }
        let (standing, lease) = try await records.standing(id)
        // An earlier try may have arrived although its answer did not, or an earlier process's.
        if standing.record.isSame(as: publication.record), publication.tries > 0 || publication.record.held != nil {
            return .stored(records.adopt(standing, id, due: publication.prepared?.change.due))
        }
        guard try await records.tenantExists(id) else { return .conflict(.other) }
        if Self.isRefuted(standing.record, by: publication.record, inExchangeFor: publication.spent) {
            // What was kept aside of the session is spent, and using it would end the session after all.
            publication.aside = .drop
        } else if standing.version > publication.base, !Self.holdsSpent(standing.record, publication) {
            return .conflict(.other)
        } else if publication.aside == .none, standing.version == 0 {
            return .conflict(.other)
        }
        // Otherwise it was what is kept aside that another change has replaced, or a lease: what the record holds is what
        // was renewed, and its refresh token is spent.
        (publication.prepared, publication.base, publication.tries) = (nil, standing.version, 0)
        publication.conflicts += 1
        guard publication.conflicts < 32 else { throw .conflict }
        var other: StandingLease?
        if let lease, lease.holder != publication.holder, publication.holder != nil, !lease.hasRunOut {
            other = holders.standing(lease)
            // A wait for a lease is not counted, which may last as long as its holder's tries.
            publication.conflicts -= 1
        }
        return .conflict(.spent(version: standing.version, lease: other))
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

    /// Whether the record, of any writer, has the refresh token that was exchanged for another one: restored by an
    /// operator, or kept by a replica whose own refresh brought none. What we were granted is what comes after it.
    private static func holdsSpent(_ standing: CredentialRecord, _ publication: Publication) -> Bool {
        guard let spent = publication.spent, let successor = publication.record.held?.refreshTokenDigest else {
            return false
        }
        return successor != spent && standing.held?.refreshTokenDigest == spent
    }

    // MARK: Until it is stored

    enum Published {
        case stored(CredentialsSnapshot)
        /// Another change came first.
        case overtaken
        /// It is in the journal, and work in the background stores it. Callers are served from it, unless this process knows
        /// of a later change of the record, of which only the store can say whether it comes first: then nil.
        case kept(CredentialsSnapshot?)
        /// The process is about to end, or an operator must look.
        case cutShort(BrokerError)
    }

    private var storeHasGoneBack: Bool { records.rollback.remainingHold != nil }

    /// Carries out an attempt's steps from its first `publish` on.
    /// - Parameter isKept: whether it is in the journal, and so safe: then no caller waits for it.
    func publish(
        _ publication: inout Publication, _ attempt: inout RenewalAttempt, _ first: RenewalAttempt.Step,
        since beginning: MonotonicInstant, isKept: Bool = false
    ) async -> Published {
        let id = publication.id
        var (step, error) = (first, BrokerError(StoreError.unavailable))
        var snapshot: CredentialsSnapshot?
        func next(_ outcome: RenewalAttempt.Outcome) {
            let now = beginning.duration(to: time.monotonic)
            step = attempt.next(
                outcome, now: now, asked: now, storeReachableFor: .zero, storeHasGoneBack: storeHasGoneBack)
        }
        while true {
            switch step {
            case .publish(let version, let heedsLease):
                publication.base = version
                switch await advance(&publication, heedsLease: heedsLease) {
                case .stored(let stored):
                    snapshot = stored
                    next(.stored)
                case .conflict(let conflict): next(.conflict(conflict))
                case .storeAway(let reason):
                    error = reason
                    if isKept { publication.conflicts = 0 }
                    next(.storeAway)
                }
            case .keep where isKept: next(.kept)
            case .keep:
                if await keep(publication, grace: attempt.rules.grace) {
                    next(.kept)
                    goOn(with: publication, attempt, step, since: beginning)
                    return .kept(records.unpublished(id))
                }
                next(.notKept)
            case .wait(let duration):
                let needsOperator = error.code == .internalError
                let signals = isKept ? nudges : records.changes
                let ticket = signals.ticket(id)
                // What only an operator can mend stays in the journal.
                let pause = isKept && needsOperator ? .seconds(60) : Self.pause(duration, publication)
                await signals.wait(for: id, since: ticket) { try? await self.time.sleep(for: pause) }
                if !isKept, Task.isCancelled || needsOperator {
                    // What was granted is to be there for the next process.
                    if await keep(publication, grace: attempt.rules.grace) {
                        goOn(with: publication, attempt, step, since: beginning)
                        return .kept(records.unpublished(id))
                    }
                    return .cutShort(error)
                }
                if Task.isCancelled { return .cutShort(error) }
                next(.waited)
            case .finish(.stored):
                guard let snapshot else { return .overtaken }
                return .stored(snapshot)
            default: return .overtaken
            }
        }
    }

    /// The first tries to reach a store that is away follow each other quickly.
    private static func pause(_ duration: Duration, _ publication: Publication) -> Duration {
        publication.tries == 0
            ? duration : min(duration, CredentialsRecords.pauseWithGrant(beforeTry: publication.tries))
    }

    /// Puts what was granted into the journal, and serves it from now on; not where this process knows of a later change,
    /// such as a logout.
    /// - Returns: false where there is no journal, where it fails, or where nothing is lost without it.
    private func keep(_ publication: Publication, grace: Duration) async -> Bool {
        guard let journal, let spent = publication.spent, publication.record.held?.refreshToken != nil else {
            return false
        }
        // What was in the journal before was replaced in the store by what this one started from. The work that still
        // sees to it would take this one out of the journal with it.
        let previous = kept.withLock { $0[publication.id] }
        previous?.task.cancel()
        await previous?.task.value
        if let holder = previous?.holder { holders.end(holder) }
        let snapshot = CredentialsSnapshot(unpublished: publication.record, of: publication.id, over: publication.base)
        let entry = JournalEntry(
            id: publication.id, base: publication.base, holder: publication.holder, spent: spent,
            record: publication.record, grace: grace, isOfSameUser: true)
        do throws(StoreError) {
            try await journal.keep(entry)
        } catch {
            log.error("journal_failed", LogField.credentials(publication.id) + [.store(error)])
            return false
        }
        log.warning("credentials_kept_in_journal", LogField.credentials(publication.id))
        if records.newestKnown(publication.id) <= publication.base {
            records.serve(snapshot, unpublished: publication.id)
        }
        return true
    }

    // MARK: From the journal

    /// Takes up what earlier processes left in the journal. To be done before any caller is served.
    /// - Throws: `storage_unavailable` and `internal_error` where the journal cannot be read.
    func takeUpJournal() async throws(BrokerError) {
        guard let journal else { return }
        do throws(StoreError) {
            holders.adopt(lineage: try await journal.lineage())
            var isStoreAway = false
            for entry in try await journal.entries() {
                let held = entry.record.held
                var publication = Publication(
                    id: entry.id, tenantVersion: nil, holder: entry.holder, record: entry.record, spent: entry.spent,
                    events: { [time] version in
                        guard let held else { return [] }
                        return [.updated(entry.id, to: held, version: version, by: .refresh, nil, at: time.now)]
                    }, base: entry.base)
                publication.isOfSameUser = entry.isOfSameUser
                log.warning("credentials_found_in_journal", LogField.credentials(entry.id))
                if let holder = entry.holder { holders.resume(holder) }
                var attempt = RenewalAttempt(
                    rules: RenewalRules(grace: entry.grace, callLimit: callLimit, waits: []), keptOver: entry.base)
                let beginning = time.monotonic
                let step = attempt.next(
                    .begun, now: .zero, asked: .zero, storeReachableFor: .zero, storeHasGoneBack: storeHasGoneBack)
                // It may be long since it was written, and a logout may have come between: only where the store does
                // not say is it served without asking. One that is away is asked once.
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
                // Whose token an earlier build left is known once the store tells whose session it was. And the earlier process
                // may have known of a later change, such as a logout.
                if publication.isOfSameUser, publication.record == entry.record,
                    records.knownVersion(entry.id) <= entry.base
                {
                    records.serve(
                        CredentialsSnapshot(unpublished: entry.record, of: entry.id, over: entry.base),
                        unpublished: entry.id)
                }
                goOn(with: publication, attempt, step, since: beginning)
            }
        } catch {
            log.error("journal_failed", [.store(error)])
            throw BrokerError(error)
        }
    }

    /// Stores in the background what is in the journal.
    private func goOn(
        with grant: Publication, _ started: RenewalAttempt, _ step: RenewalAttempt.Step,
        since beginning: MonotonicInstant
    ) {
        let id = grant.id
        kept.withLock { tasks in
            let task = Task {
                var (publication, attempt) = (grant, started)
                switch await self.publish(&publication, &attempt, step, since: beginning, isKept: true) {
                case .stored: await self.leaveJournal(publication, isStored: true)
                case .overtaken: await self.leaveJournal(publication, isStored: false)
                // The process ends, or a later grant takes its place in the journal.
                case .kept, .cutShort: break
                }
                self.kept.withLock { $0[id] = nil }
            }
            tasks[id] = Kept(task: task, holder: grant.holder)
        }
    }

    private func leaveJournal(_ publication: Publication, isStored: Bool) async {
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
            // The next process finds it, and finds it stored.
            log.error("journal_failed", LogField.credentials(id) + [.store(error)])
        }
    }

    /// Has what is in the journal tried now. Returns whether it is stored.
    func isPublished(_ id: CredentialsID, since ticket: KeyedSignal<CredentialsID>.Ticket) async -> Bool {
        nudges.signal(id)
        await records.changes.wait(for: id, since: ticket) {
            try? await self.time.sleep(for: CredentialsRecords.changeInterval)
        }
        return records.unpublished(id) == nil
    }

    /// Ends the tries to store what is in the journal: it is safe there.
    func finish() async {
        let tasks = kept.withLock { $0.values.map(\.task) }
        for task in tasks { task.cancel() }
        for task in tasks { await task.value }
    }
}
