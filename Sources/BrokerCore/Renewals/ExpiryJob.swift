internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import OAuth
internal import Reactor
internal import Synchronization
internal import Waiting

/// Looks after tokens that are about to expire: has those of tenants that want it renewed ahead of time, and tells
/// listeners of the others; once for each token, over all replicas. After a restart it sees to what fell due meanwhile.
///
/// Every record of credentials bears the time when it is to be looked at as a mark, written in the same commit
/// (`ExpirySchedule`). The replica that moves the mark on by compare-and-set owns the attempt to renew. The notice goes
/// into the log in the commit that takes the mark away, or moves it on for a further attempt: of several tries one
/// succeeds, and a crash in between has either done both or nothing. That it was told stands in the record of what
/// renewals have failed with (`RenewalTrouble`).
///
/// Safe to use from any task.
package final class ExpiryJob: Sendable {
    private struct State {
        /// When the worker looks again; nil while it does not wait.
        var next: Timestamp?
        var isWorking = false
        var attempts: [RecordID: Attempt] = [:]
        /// How many attempts have ended so far.
        var ended = 0
        var isEnding = false
    }

    private struct Attempt {
        let provider: String
        /// The mark that its owner has written last.
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
        /// Whether listeners were told that it is about to expire.
        let isTold: Bool

        var provider: String { tenant.configuration.providerName }
    }

    private static let batch = 500
    /// How many attempts are under way at once, over all providers.
    private static let limit = 256
    /// How often the store is asked at least: the marks that other replicas write are not announced here.
    private static let interval: Duration = .seconds(5)
    /// When a record that this process cannot read is looked at again.
    private static let unreadablePause: Duration = .seconds(60)

    /// What wakes the worker.
    private enum Signal: Hashable {
        case earlierMark
        case attemptEnded
    }

    private let renewer: CredentialsRenewer
    private let bus: EventBus
    private let schedule: ExpirySchedule
    /// How many attempts are under way at one provider: a few more than have a place, so that none stays free.
    private let limitPerProvider: Int
    private let time: any Time
    private let metrics: Metrics
    private let log: Log
    private let state = Mutex(State())
    private let signals = KeyedSignal<Signal>()

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
        bus.onDue { [weak self] due in self?.expect(due) }
    }

    /// Works until its task is cancelled. Then no attempt begins any more, and those under way are waited for no longer
    /// than they take to leave their renewal to the provider. Once at most.
    package func run() async {
        await withTaskCancellationHandler {
            state.withLock { $0.isWorking = true }
            while !Task.isCancelled {
                // What is marked from here on is looked for at once, or heard of.
                let ticket = signals.ticket(.earlierMark)
                let pause = await lookAtAllDue()
                state.withLock { $0.next = time.now.advanced(by: pause) }
                await signals.wait(for: .earlierMark, since: ticket) { _ = try? await self.time.sleep(for: pause) }
                state.withLock { $0.next = nil }
            }
        } onCancel: {
            let tasks = state.withLock { state in
                state.isEnding = true
                return state.attempts.values.map(\.task)
            }
            for task in tasks { task.cancel() }
        }
        await finish()
    }

    /// Suspends until no attempt is under way.
    package func finish() async {
        while let task = state.withLock({ $0.attempts.values.first?.task }) { await task.value }
    }

    /// A mark was written in this process.
    private func expect(_ due: Timestamp) {
        // The next look is never further away than that.
        if due > time.now.advanced(by: Self.interval) { return }
        let isEarlier = state.withLock { state in
            // Nobody waits: either nobody works, or whoever does is looking and may have looked past this one.
            guard let next = state.next else { return state.isWorking }
            return due < next
        }
        if isEarlier { signals.signal(.earlierMark) }
    }

    // MARK: Looking

    /// Looks at everything that is due now. Attempts to renew go on when this has returned.
    /// - Returns: how long there is nothing more to do.
    package func lookAtAllDue() async -> Duration {
        do throws(StoreError) {
            while !Task.isCancelled {
                let due = try await vault.due(.credentials, before: time.now, limit: Self.batch)
                // The others of a full page, and those that had to wait too long, are in the next one.
                if try await look(at: due), due.count < Self.batch { break }
            }
            guard let next = try await vault.nextDue(.credentials) else { return Self.interval }
            // A mark is due when its time has passed.
            return max(.milliseconds(1), min(Self.interval, time.now.duration(to: next) + .milliseconds(1)))
        } catch {
            log.storeFailed(error)
            return Self.interval
        }
    }

    /// Tells what is to be told, the earliest first, and begins to renew what can be renewed.
    /// - Returns: whether something was done about all of it.
    private func look(at due: [DueRecord]) async throws(StoreError) -> Bool {
        var candidates: [Candidate] = []
        for record in due {
            // Each is a commit, and a store that is slow would keep whoever stops the process for all of them.
            if Task.isCancelled { return false }
            if let candidate = try await tellUnlessRenewable(record) { candidates.append(candidate) }
        }
        return try await begin(candidates)
    }

    private func tellUnlessRenewable(_ due: DueRecord) async throws(StoreError) -> Candidate? {
        guard let storageKey = StorageKey(due.id.key) else {
            try await settle(due, next: nil)
            return nil
        }
        let id = CredentialsID(tenant: due.id.tenant, storageKey: storageKey)
        guard let record = due.record, let content = CredentialRecord(decoding: record.content.revealedBytes) else {
            log.error("credentials_unreadable", LogField.credentials(id) + [.version(due.version)])
            // Another replica may be able to read it: one that has the newer master key, or is of a newer version.
            try await settle(due, from: due.mark, next: time.now.advanced(by: Self.unreadablePause))
            return nil
        }
        guard let held = content.held, held.expiry != nil, let mark = record.due else {
            try await settle(due, next: nil)
            return nil
        }
        let prospect = try await prospect(of: held, id)
        if case .now(let tenant) = prospect {
            let isTold = try await isTold(id, held, due, mark)
            let candidate = Candidate(due: due, id: id, held: held, mark: mark, tenant: tenant, isTold: isTold)
            // What is about to expire, or has expired while the job stood still, is told first.
            if isTold || schedule.isWorthRenewing(held, now: time.now) { return candidate }
            try await tellAndGoOn(id, held, due, from: mark)
            return nil
        }
        let now = time.now
        let noticeTime = schedule.noticeTime(of: held)
        if now < noticeTime {
            // The tenant has wanted it renewed, and does not any longer, or it cannot be renewed at the moment.
            try await settle(due, from: mark, next: noticeTime)
            return nil
        }
        // What an earlier build has left a mark of, or the tenant has wanted renewed, may have been told.
        let isTold = held.canBeRefreshed ? try await isTold(id, held, due, mark) : false
        switch (prospect, isTold) {
        case (.later, true): try await settle(due, from: mark, next: schedule.laterMark(of: held, now: now))
        case (.later, false): try await tellAndGoOn(id, held, due, from: mark)
        case (_, true): try await settle(due, from: mark, next: nil)
        case (_, false): try await tell(id, held, due, from: mark)
        }
        return nil
    }

    /// When a token can be renewed although nobody asks for it.
    private enum Prospect {
        /// It has no refresh token, its tenant does not want it, or the tenant is gone.
        case never
        /// Not before the tenant can be read, and names the client and the provider that the token is of.
        case later
        case now(Tenant)
    }

    private func prospect(of held: HeldCredentials, _ id: CredentialsID) async throws(StoreError) -> Prospect {
        if !held.canBeRefreshed { return .never }
        let tenant: Tenant?
        do throws(BrokerError) {
            tenant = try await renewer.tenants.tenant(id.tenant)
        } catch {
            if error.code == .storageUnavailable { throw .unavailable }
            log.error("tenant_unreadable", [.tenant(id.tenant), .code(error.code)])
            return .later
        }
        guard let tenant, tenant.configuration.proactiveRefresh != nil else { return .never }
        let isOfTenant =
            held.obtainedWith.clientID == tenant.terms.client.clientID
            && renewer.providers.servers.acceptedProviders(of: tenant).difference(from: held.grantedBy) == nil
        return isOfTenant ? .now(tenant) : .later
    }

    /// Whether listeners were told that the token is about to expire.
    private func isTold(
        _ id: CredentialsID, _ held: HeldCredentials, _ due: DueRecord, _ mark: Timestamp
    ) async throws(StoreError) -> Bool {
        // A mark that was moved on when they were told lies behind that time.
        if mark <= schedule.noticeTime(of: held) { return false }
        let trouble = try await renewer.records.trouble(id)?.content
        return trouble?.version == due.version && trouble?.isExpiryAnnounced == true
    }

    /// Tells of a token that is to be renewed further on.
    private func tellAndGoOn(
        _ id: CredentialsID, _ held: HeldCredentials, _ due: DueRecord, from mark: Timestamp
    ) async throws(StoreError) {
        let (records, now) = (renewer.records, time.now)
        let standing = try await records.trouble(id)
        var trouble = RenewalTrouble(version: due.version, after: standing?.content)
        trouble.isExpiryAnnounced = true
        try await tell(
            id, held, due, from: mark, next: schedule.laterMark(of: held, now: now),
            with: [records.change(of: trouble, id, over: standing?.version)])
    }

    private func tellAndGoOn(_ candidate: Candidate, from mark: Timestamp) async throws(StoreError) {
        try await tellAndGoOn(candidate.id, candidate.held, candidate.due, from: mark)
    }

    /// Moves the mark of a token to another time; nothing where somebody else was faster.
    @discardableResult
    private func settle(
        _ due: DueRecord, from mark: Timestamp? = nil, next: Timestamp?
    ) async throws(StoreError) -> Bool {
        do throws(StoreError) {
            try await vault.commit([.settleDue(due.id, version: due.version, due: mark, next: next)])
            return true
        } catch .conflict {
            return false
        }
    }

    private func tell(
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
            // Another replica has told of it, or the credentials were renewed. Where only the record of failures has
            // changed, the mark stands and is looked at again.
            return
        }
        bus.announce(id.tenant)
    }

    // MARK: Renewing

    /// Begins to renew all of these as there is room, for a few seconds: what falls due meanwhile is to be told in its
    /// time.
    /// - Returns: whether something was done about all of them.
    private func begin(_ candidates: [Candidate]) async throws(StoreError) -> Bool {
        // Replicas that look at the same records at once seldom try the same one.
        var waiting = Dictionary(grouping: candidates.shuffled(), by: \.provider)
        let deadline = time.monotonic.advanced(by: Self.interval)
        while time.monotonic <= deadline {
            let ended = state.withLock { $0.ended }
            let ticket = signals.ticket(.attemptEnded)
            let limit = time.monotonic.advanced(by: Self.interval)
            for provider in Array(waiting.keys) {
                while hasRoom(provider), let candidate = waiting[provider]?.popLast() {
                    if Task.isCancelled { return false }
                    try await begin(candidate)
                }
                if waiting[provider]?.isEmpty == true { waiting[provider] = nil }
            }
            if waiting.isEmpty { return true }
            await signals.wait(for: .attemptEnded, since: ticket) { _ = try? await self.time.sleep(for: Self.interval) }
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

    /// Begins to renew, if this process gets to be the one.
    private func begin(_ candidate: Candidate) async throws(StoreError) {
        let id = candidate.due.id
        let next = schedule.nextMark(of: candidate.held, now: time.now)
        guard try await settle(candidate.due, from: candidate.mark, next: next) else { return }
        state.withLock { state in
            if state.isEnding { return }
            if state.attempts[id] != nil {
                // It takes longer than was thought, and is still the owner.
                state.attempts[id]?.mark = next
                return
            }
            let task = Task {
                await self.attempt(candidate)
                self.state.withLock { state in
                    state.attempts[id] = nil
                    state.ended += 1
                }
                self.signals.signal(.attemptEnded)
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
        // The mark stands for the next attempt.
        if candidate.isTold { return }
        let noticeTime = schedule.noticeTime(of: candidate.held)
        do throws(StoreError) {
            if time.now >= noticeTime {
                try await tellAndGoOn(candidate, from: mark)
            } else if mark > noticeTime {
                try await settle(candidate.due, from: mark, next: noticeTime)
            }
        } catch {
            // The mark stands where it was moved to, and is looked at then.
            log.storeFailed(error)
        }
    }

    /// Puts off what cannot be renewed now, because a provider does not answer, so that it does not hold up what is due
    /// behind it.
    private func postpone(_ left: [Candidate]) async throws(StoreError) {
        for candidate in left {
            if Task.isCancelled { return }
            metrics.renewedAhead(.postponed)
            let now = time.now
            if candidate.isTold {
                let next = schedule.laterMark(of: candidate.held, now: now)
                try await settle(candidate.due, from: candidate.mark, next: next)
            } else if now >= schedule.noticeTime(of: candidate.held) {
                try await tellAndGoOn(candidate, from: candidate.mark)
            } else {
                let next = schedule.postponedMark(of: candidate.held, now: now)
                try await settle(candidate.due, from: candidate.mark, next: next)
            }
        }
    }
}
