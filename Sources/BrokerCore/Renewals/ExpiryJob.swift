import CredentialStore
import Cryptography
import ExternalText
import OAuth
import Reactor
import Synchronization
package import Waiting

/// Handles tokens that are about to expire: renews them for tenants that want it, and notifies listeners of the others, once for
/// each token over all replicas. Renews, for all tenants, what would end unused (`TenantConfiguration.Upkeep`). After a restart it handles what fell due meanwhile.
///
/// Every record of credentials has a due mark, the time at which it is to be handled, written in the same commit
/// (`ExpirySchedule`). The replica that moves the mark by compare-and-set owns the attempt to renew. The notice is an event in
/// the commit that removes the mark, or moves it for a further attempt: one of several tries succeeds, and a crash leaves both
/// or neither. The record of the user's failed renewals (`RenewalTrouble`) says whether listeners were notified.
///
/// Safe to use from any task.
package final class ExpiryJob: BackgroundJob {
    private struct State {
        /// When the worker searches again; nil while it does not wait.
        var next: Timestamp?
        var isWorking = false
        var attempts: [RecordID: Attempt] = [:]
        /// How many attempts have ended so far.
        var ended = 0
        var isEnding = false
    }

    private struct Attempt {
        let provider: String
        /// The mark that the attempt's owner has written last.
        var mark: Timestamp
        let task: Task<Void, Never>
    }

    /// A record that can be renewed now.
    private struct Candidate {
        let due: DueRecord
        let id: CredentialsID
        let held: HeldCredentials
        let mark: Timestamp
        let tenant: Tenant
        /// Whether listeners were notified of the expiry, or are not to be.
        let isNotified: Bool
        /// Why it is renewed although its tenant does not ask for that; nil for no such reason.
        var upkeep: TenantConfiguration.Upkeep?
        /// Whether it is to be verified, and not renewed.
        var isWaiting = false

        var provider: String { tenant.configuration.providerName }
    }

    private static let batch = 500
    /// How many attempts may be under way at once, over all providers.
    private static let limit = 256
    /// When a record that this process cannot read is handled again.
    private static let unreadablePause: Duration = .seconds(60)

    private let renewer: CredentialsRenewer
    private let bus: EventBus
    private let schedule: ExpirySchedule
    /// How many attempts may be under way at one provider: a few more than there are places, so that no place stays unused.
    private let limitPerProvider: Int
    package let time: any Time
    private let metrics: Metrics
    private let log: Log
    private let state = Mutex(State())
    /// Signalled when a mark was written that comes before the next search.
    private let earlierMarks = KeyedSignal<Int>()
    private let endedAttempts = KeyedSignal<Int>()

    package var wakeUps: KeyedSignal<Int>? { earlierMarks }

    private var vault: Vault { renewer.records.vault }

    init(
        renewer: CredentialsRenewer, bus: EventBus, schedule: ExpirySchedule, budget: ProviderBudget.Limits,
        instruments: Instruments
    ) {
        self.renewer = renewer
        self.bus = bus
        self.schedule = schedule
        limitPerProvider = 2 * budget.backgroundPlaces
        (time, log, metrics) = (instruments.time, instruments.log, instruments.metrics)
        bus.onDue { [weak self] due in self?.markWritten(due) }
    }

    package func work() async -> NextTime {
        state.withLock { ($0.isWorking, $0.next) = (true, nil) }
        return await withTaskCancellationHandler {
            let pause = await handleAllDue()
            state.withLock { $0.next = time.now.advanced(by: pause) }
            return .after(pause)
        } onCancel: {
            endAttempts()
        }
    }

    /// No attempt begins any more, and the attempts under way stop waiting for their renewals.
    package func end() async {
        endAttempts()
        await finish()
    }

    private func endAttempts() {
        let tasks = state.withLock { state in
            state.isEnding = true
            return state.attempts.values.map(\.task)
        }
        for task in tasks { task.cancel() }
    }

    /// Suspends until no attempt is under way.
    package func finish() async {
        while let task = state.withLock({ $0.attempts.values.first?.task }) { await task.value }
    }

    /// A mark was written in this process.
    private func markWritten(_ due: Timestamp) {
        // The next search comes sooner than that.
        if due > time.now.advanced(by: JobInterval.expiry) { return }
        let isEarlier = state.withLock { state in
            // The worker does not run, or it is searching and may have missed this mark.
            guard let next = state.next else { return state.isWorking }
            return due < next
        }
        if isEarlier { earlierMarks.signal(0) }
    }

    // MARK: Searching

    /// Handles every record that is due now. Attempts to renew go on when this has returned.
    /// - Returns: after how long to search again.
    package func handleAllDue() async -> Duration {
        let search = DueRecords(vault: vault, time: time, batch: Self.batch, interval: JobInterval.expiry)
        return await search.pause(.credentials, log: log) { () async throws(StoreError) in
            try await search.handleAll(.credentials) { due throws(StoreError) in try await self.handle(due) }
        }
    }

    /// Notifies listeners, of the earliest expiry first, and begins to renew what can be renewed.
    /// - Returns: whether all records were handled.
    private func handle(_ due: [DueRecord]) async throws(StoreError) -> Bool {
        var candidates: [Candidate] = []
        for record in due {
            // Each record is a commit. With a slow store, the end of the process would otherwise wait for all of them.
            if Task.isCancelled { return false }
            if let candidate = try await notifyUnlessRenewable(record) { candidates.append(candidate) }
        }
        return try await begin(candidates)
    }

    private func notifyUnlessRenewable(_ due: DueRecord) async throws(StoreError) -> Candidate? {
        guard let storageKey = StorageKey(due.id.key) else {
            try await settle(due, next: nil)
            return nil
        }
        let id = CredentialsID(tenant: due.id.tenant, storageKey: storageKey)
        guard let record = due.record, let content = CredentialRecord(decoding: record.content.revealedBytes) else {
            log.error("credentials_unreadable", LogField.credentials(id) + [.version(due.version)])
            // Another replica may be able to read it, with a newer master key or as a newer version.
            try await settle(due, from: due.mark, next: time.now.advanced(by: Self.unreadablePause))
            return nil
        }
        if let granted = content.granted, content.waiting != nil, let mark = record.due {
            return try await verificationCandidate(id, granted, due, mark)
        }
        guard let held = content.held, let mark = record.due else {
            try await settle(due, next: nil)
            return nil
        }
        let prospect = try await prospect(of: held, content, id)
        if case .now(let tenant) = prospect {
            let isNotified = held.isExpiryTold ? try await isNotified(id, held, due, mark) : true
            let candidate = Candidate(
                due: due, id: id, held: held, mark: mark, tenant: tenant, isNotified: isNotified,
                upkeep: tenant.configuration.upkeep(of: content))
            // For a token that expires soon, or has expired while no replica ran, listeners are notified first.
            if isNotified || schedule.isWorthRenewing(held, now: time.now) { return candidate }
            try await notifyBeforeRenewal(id, held, due, from: mark)
            return nil
        }
        let now = time.now
        if !held.isExpiryTold {
            let next: Timestamp? =
                switch prospect {
                case .never: nil
                case .at(let time): time
                case .later, .now: schedule.laterMark(of: held, now: now)
                }
            try await settle(due, from: mark, next: next)
            return nil
        }
        let noticeTime = schedule.noticeTime(of: held)
        if now < noticeTime {
            // The mark is for a renewal which the tenant does not want any more, or which is not possible at the moment.
            let next = if case .at(let time) = prospect { min(time, noticeTime) } else { noticeTime }
            try await settle(due, from: mark, next: next)
            return nil
        }
        // If the tenant wanted renewals before, or an earlier build wrote the mark, listeners may have been notified.
        let isNotified = held.canBeRefreshed ? try await isNotified(id, held, due, mark) : false
        switch (prospect, isNotified) {
        case (.later, true): try await settle(due, from: mark, next: schedule.laterMark(of: held, now: now))
        case (.later, false): try await notifyBeforeRenewal(id, held, due, from: mark)
        case (.at(let time), true): try await settle(due, from: mark, next: time)
        case (.at(let time), false): try await notifyBeforeRenewal(id, held, due, from: mark, next: time)
        case (_, true): try await settle(due, from: mark, next: nil)
        case (_, false): try await notify(id, held, due, from: mark, with: try await endings(of: held, id))
        }
        return nil
    }

    /// The changes that have sessions of apps ended when a login's token expires that cannot be renewed, also if nothing reads it
    /// then.
    private func endings(of held: HeldCredentials, _ id: CredentialsID) async throws(StoreError) -> [VaultChange] {
        guard held.level == .user, held.refreshToken == nil, let end = held.expiry else { return [] }
        return try await renewer.records.sessionEndings(of: id, login: held.loggedInSince, by: .expired, end)
    }

    /// A set that waits for its verification; nil where its tenant was removed or cannot be read.
    private func verificationCandidate(
        _ id: CredentialsID, _ granted: HeldCredentials, _ due: DueRecord, _ mark: Timestamp
    ) async throws(StoreError) -> Candidate? {
        switch try await tenant(id) {
        case .found(let tenant):
            return Candidate(
                due: due, id: id, held: granted, mark: mark, tenant: tenant, isNotified: true, isWaiting: true)
        case .removed: try await settle(due, next: nil)
        case .unreadable: try await settle(due, from: mark, next: time.now.advanced(by: Self.unreadablePause))
        }
        return nil
    }

    private enum FoundTenant {
        case found(Tenant)
        case removed
        case unreadable
    }

    private func tenant(_ id: CredentialsID) async throws(StoreError) -> FoundTenant {
        do throws(BrokerError) {
            return try await renewer.tenants.tenant(id.tenant).map { .found($0) } ?? .removed
        } catch {
            if error.code == .storageUnavailable { throw .unavailable }
            log.error("tenant_unreadable", [.tenant(id.tenant), .code(error.code)])
            return .unreadable
        }
    }

    /// When a token can be renewed before a caller asks for it.
    private enum Prospect {
        /// It has no refresh token, its tenant does not want renewals, or the tenant was removed.
        case never
        /// Once the tenant can be read and has the client and the provider that the token belongs to, and once a token that
        /// ends at its refresh is about to end anyway.
        case later
        /// At that time, which has not come.
        case at(Timestamp)
        case now(Tenant)
    }

    private func prospect(
        of held: HeldCredentials, _ record: CredentialRecord, _ id: CredentialsID
    ) async throws(StoreError) -> Prospect {
        if !held.canBeRefreshed { return .never }
        let tenant: Tenant
        switch try await self.tenant(id) {
        case .found(let found): tenant = found
        case .removed: return .never
        case .unreadable: return .later
        }
        let now = time.now
        let upkeep = tenant.configuration.upkeep(of: record)
        let isWanted = tenant.configuration.proactiveRefresh != nil && held.expiry != nil || held.awaitsExchange
        guard isWanted || upkeep != nil else { return .never }
        if let earliest = tenant.terms.earliestRefresh(of: held), earliest > now { return .at(earliest) }
        if !isWanted, let upkeep, upkeep.from > now { return .at(schedule.mark(of: upkeep)) }
        let isDue = upkeep.map { $0.from <= now } ?? false
        if tenant.terms.renewsLate, !isDue, held.expires > now.advanced(by: CredentialsPolicy.latestRenewal) {
            return .later
        }
        let isOfTenant =
            tenant.terms.hasClient(of: held)
            && renewer.providers.servers.acceptedProviders(of: tenant).difference(from: held.grantedBy) == nil
        return isOfTenant ? .now(tenant) : .later
    }

    /// Whether listeners were notified of the token's expiry.
    private func isNotified(
        _ id: CredentialsID, _ held: HeldCredentials, _ due: DueRecord, _ mark: Timestamp
    ) async throws(StoreError) -> Bool {
        // The notice moves the mark to a time after it.
        if mark <= schedule.noticeTime(of: held) { return false }
        let trouble = try await renewer.records.trouble(id)?.content
        return trouble?.version == due.version && trouble?.isExpiryAnnounced == true
    }

    /// Notifies listeners of the expiry of a token that is still to be renewed.
    private func notifyBeforeRenewal(
        _ id: CredentialsID, _ held: HeldCredentials, _ due: DueRecord, from mark: Timestamp, next: Timestamp? = nil
    ) async throws(StoreError) {
        let (records, now) = (renewer.records, time.now)
        let known = try await records.trouble(id)
        var trouble = RenewalTrouble(version: due.version, after: known?.content)
        trouble.isExpiryAnnounced = true
        try await notify(
            id, held, due, from: mark, next: next ?? schedule.laterMark(of: held, now: now),
            with: [records.change(of: trouble, id, over: known?.version)])
    }

    private func notifyBeforeRenewal(_ candidate: Candidate, from mark: Timestamp) async throws(StoreError) {
        try await notifyBeforeRenewal(candidate.id, candidate.held, candidate.due, from: mark)
    }

    /// Moves the mark of a token to another time, or removes it.
    /// - Returns: false where another replica was faster, or the record was replaced.
    @discardableResult
    private func settle(
        _ due: DueRecord, from mark: Timestamp? = nil, next: Timestamp?
    ) async throws(StoreError) -> Bool {
        try await vault.moveMark(of: due.id, due.version, from: mark, to: next)
    }

    private func notify(
        _ id: CredentialsID, _ held: HeldCredentials, _ due: DueRecord, from mark: Timestamp, next: Timestamp? = nil,
        with changes: [VaultChange] = []
    ) async throws(StoreError) {
        let now = time.now
        do throws(StoreError) {
            try await vault.commit(
                [
                    .settleDue(due.id, version: due.version, due: mark, next: next),
                    BrokerEvent.entry([.expiring(id, held, version: due.version, at: now)], of: id, at: now),
                ] + changes)
        } catch .conflict {
            // Another replica has notified listeners, or the credentials were renewed. If only the record of failures was
            // changed, the mark is still there and is handled again.
            return
        }
        bus.announce(id.tenant)
    }

    // MARK: Renewing

    /// Begins to renew the candidates as places become free, for a few seconds at most, so that notices of other tokens are not
    /// late.
    /// - Returns: whether all candidates were handled.
    private func begin(_ candidates: [Candidate]) async throws(StoreError) -> Bool {
        // In a random order, so that replicas with the same candidates seldom try the same one.
        var waiting = Dictionary(grouping: candidates.shuffled(), by: \.provider)
        let deadline = time.monotonic.advanced(by: JobInterval.expiry)
        while time.monotonic <= deadline {
            let ended = state.withLock { $0.ended }
            let ticket = endedAttempts.ticket(0)
            let limit = time.monotonic.advanced(by: JobInterval.expiry)
            for provider in Array(waiting.keys) {
                while hasRoom(provider), let candidate = waiting[provider]?.popLast() {
                    if Task.isCancelled { return false }
                    try await begin(candidate)
                }
                if waiting[provider]?.isEmpty == true { waiting[provider] = nil }
            }
            if waiting.isEmpty { return true }
            await endedAttempts.wait(for: 0, since: ticket) {
                _ = try? await self.time.sleep(for: JobInterval.expiry)
            }
            if Task.isCancelled { return false }
            // An attempt that was counted before the ticket was taken may signal after it, and ends the wait at once.
            if time.monotonic >= limit, state.withLock({ $0.ended }) == ended {
                try await postpone(waiting.values.flatMap(\.self))
                return true
            }
        }
        return false
    }

    private func hasRoom(_ provider: String) -> Bool {
        state.withLock { state in
            state.attempts.count < Self.limit
                && state.attempts.values.count { $0.provider == provider } < limitPerProvider
        }
    }

    /// Begins to renew, unless another replica has moved the mark.
    private func begin(_ candidate: Candidate) async throws(StoreError) {
        let id = candidate.due.id
        let now = time.now
        let next =
            candidate.isWaiting
            ? now.advanced(by: ExpirySchedule.verificationInterval)
            : schedule.nextMark(of: candidate.held, upkeep: candidate.upkeep, now: now)
        guard try await settle(candidate.due, from: candidate.mark, next: next) else { return }
        state.withLock { state in
            if state.isEnding { return }
            if state.attempts[id] != nil {
                // The earlier attempt takes longer than expected, and still owns the renewal.
                state.attempts[id]?.mark = next
                return
            }
            let task = Task {
                await self.attempt(candidate)
                self.state.withLock { state in
                    state.attempts[id] = nil
                    state.ended += 1
                }
                self.endedAttempts.signal(0)
            }
            state.attempts[id] = Attempt(provider: candidate.provider, mark: next, task: task)
        }
    }

    private func attempt(_ candidate: Candidate) async {
        let outcome = await renewer.renewAhead(candidate.id, of: candidate.tenant, version: candidate.due.version)
        metrics.renewedAhead(outcome)
        guard outcome == .failed, !Task.isCancelled,
            let mark = state.withLock({ $0.attempts[candidate.due.id]?.mark })
        else { return }
        // The mark is that of the next attempt already.
        if candidate.isNotified { return }
        let noticeTime = schedule.noticeTime(of: candidate.held)
        do throws(StoreError) {
            if time.now >= noticeTime {
                try await notifyBeforeRenewal(candidate, from: mark)
            } else if mark > noticeTime {
                try await settle(candidate.due, from: mark, next: noticeTime)
            }
        } catch {
            // The mark stays where it was moved to, and is handled then.
            log.storeFailed(error)
        }
    }

    /// Moves the marks of tokens that cannot be renewed now because a provider does not answer, so that they do not delay the
    /// tokens that are due after them.
    private func postpone(_ left: [Candidate]) async throws(StoreError) {
        for candidate in left {
            if Task.isCancelled { return }
            metrics.renewedAhead(.postponed)
            let now = time.now
            if candidate.isWaiting {
                let next = now.advanced(by: ExpirySchedule.verificationInterval)
                try await settle(candidate.due, from: candidate.mark, next: next)
            } else if candidate.isNotified {
                let next = schedule.laterMark(of: candidate.held, now: now)
                try await settle(candidate.due, from: candidate.mark, next: next)
            } else if now >= schedule.noticeTime(of: candidate.held) {
                try await notifyBeforeRenewal(candidate, from: candidate.mark)
            } else {
                let next = schedule.postponedMark(of: candidate.held, now: now)
                try await settle(candidate.due, from: candidate.mark, next: next)
            }
        }
    }
}
