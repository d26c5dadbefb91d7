internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import HTTPCodec
package import OAuth
internal import Reactor
internal import Synchronization

/// Hands out credentials: from memory while they are good, after one renewal for all who ask otherwise (TIDAL's Auth
/// design, "Providing credentials").
package final class CredentialsProvider: Sendable {
    /// What a query came to.
    package struct Answer: Sendable {
        package let snapshot: CredentialsSnapshot
        /// The configuration that the answer was decided by.
        package let tenant: Tenant
        /// `basic` when the client identifier is all there is to give.
        package let level: CredentialsLevel
        package let outcome: Metrics.TokenRead
        /// Why the token may live shorter than was asked for; nil where it does not.
        package let degradation: Degradation?
    }

    let records: CredentialsRecords
    /// The records', so that a warm read has it at hand.
    let cache: RevalidatingCache<CredentialsID, CredentialsSnapshot>
    let policy = CredentialsPolicy()
    let renewer: CredentialsRenewer
    private let time: any Time
    private let degradations = Degradations()
    /// How long a caller waits for a renewal while the token at hand lives; nil as long as it takes.
    private let renewalPatience: Duration?

    /// By how much a token must have outlived a query when it was granted, for its having grown too short to be a delay.
    private static let shortestDelay: Duration = .seconds(1)

    /// - Parameter renewalPatience: how long a caller waits for a renewal while the token at hand lives; nil as long as it
    ///   takes.
    init(renewer: CredentialsRenewer, renewalPatience: Duration?) {
        self.renewer = renewer
        self.renewalPatience = renewalPatience
        records = renewer.records
        cache = records.cache
        time = renewer.time
    }

    /// What of the credentials is kept in memory.
    package var cacheStatistics: CacheStatistics { records.cache.statistics }

    // MARK: Reading

    /// The best credentials that the configuration allows and the query takes.
    ///
    /// Where the store does not answer, a user's token that is in memory and good for the query is served, however long ago
    /// it was read. Whatever else was read then is no answer: a user may have logged in since.
    ///
    /// Does not suspend while good ones are in memory. A renewal that this call starts or joins goes on when the
    /// caller stops waiting. A token that lives is given although it is to be renewed, where that fails or takes longer than
    /// `renewalPatience`, unless the caller or the API has refused it.
    /// - Parameter patience: how long the caller waits for a renewal; nil as long as it takes.
    package func credentials(
        _ id: CredentialsID, of tenant: Tenant, _ query: CredentialsQuery, patience: Duration?
    ) async throws(BrokerError) -> Answer {
        var (tenant, query) = (tenant, query)
        let deadline = patience.map { time.monotonic.advanced(by: $0) }
        var outcome = Metrics.TokenRead.fresh
        var (renewsEarly, mayAskAgain) = (true, true)
        var first: CredentialsSnapshot?
        // What kept the token at hand from being renewed.
        var obstacle: BrokerError?
        // Each round ends in an answer, an error, or the news that somebody else changed the record meanwhile.
        for _ in 0..<16 {
            let waits = query.policy != .localForceRefresh && !query.refusedByAPI
            let reading = try await records.reading(id, waitingForKnown: waits) { known in
                policy.serves(
                    outdated: known.record.held, version: known.version, terms: tenant.terms, query: query,
                    now: time.now)
            }
            let snapshot = reading.snapshot
            // What was stored again, as a later version, was not renewed.
            let isSame = first.map { snapshot.version > $0.version && snapshot.record.isSame(as: $0.record) } ?? false
            if query.renewedPast == nil || isSame { query.renewedPast = snapshot.version }
            first = first ?? snapshot
            let decision =
                reading.isCurrent
                ? renewer.decider.decide(snapshot, tenant, query, id, renewsEarly: renewsEarly) : .serve
            switch decision {
            case .serve, .serveBasic, .missing, .levelNotAvailable, .expiredOnArrival, .keptForOtherProvider:
                return try answer(decision, snapshot, tenant, outcome)
            case .refresh, .upgrade, .obtainClientCredentials, .retire:
                let isEarly = decision == .refresh(isEarly: true)
                let maySpare = policy.serves(
                    whileRenewing: snapshot.record.held, version: snapshot.version, decision: decision, query: query,
                    now: time.now)
                if maySpare, !isEarly, let degradation = degradation(id, snapshot.version, of: tenant, obstacle) {
                    return try answer(.serve, snapshot, tenant, .degraded, degradation)
                }
                // Its last tries have failed a moment ago.
                if let failure = renewer.failures.standing(
                    id, snapshot.version, decision.grant, of: tenant, time.monotonic)
                {
                    guard maySpare else { throw failure.after(snapshot.record) }
                    (renewsEarly, obstacle) = (false, failure)
                    continue
                }
                let run = await renewer.renew(
                    id, of: tenant, query, within: timer(until: maySpare ? soon(deadline) : deadline))
                guard let run else {
                    let stillRenewing = BrokerError(
                        .retryableError, "The credentials are still being renewed. Ask again.", retryAfter: 1)
                    guard maySpare else { throw stillRenewing.after(snapshot.record) }
                    (renewsEarly, obstacle) = (false, stillRenewing)
                    continue
                }
                switch run.value {
                case .failure(let error):
                    guard error != .subjectChanged, maySpare, isEarly || error.code != .storageUnavailable else {
                        throw error.after(snapshot.record)
                    }
                    // The token at hand lives. It is looked at once more, though: the renewal may have found a logout.
                    (renewsEarly, obstacle) = (false, error)
                case .success(.new(let renewed, let life)):
                    outcome = run.isOwn ? .renewed : .joined
                    // Somebody else's renewal was of the configuration before this one.
                    if let held = renewed.record.held, !held.isRenewed(by: tenant.terms) { continue }
                    // They were good for long enough when they were granted, and are not any more: a store or another
                    // replica was waited for. Asked again once: what lives hardly longer than that is given as it is.
                    if let held = renewed.record.held, let life, mayAskAgain,
                        life >= query.minimumLifetime + Self.shortestDelay,
                        held.expires < time.now.advanced(by: query.minimumLifetime)
                    {
                        mayAskAgain = false
                        continue
                    }
                    // The session ended in this very call. A local policy found something stored, so what it gets is
                    // the next lower level, as with every logout.
                    if renewed.record.held == nil { query.policy = .localValid }
                    let decision = policy.serves(
                        renewed: renewed.record.held, terms: tenant.terms, query: query, now: time.now)
                    switch decision {
                    case .serve, .levelNotAvailable, .expiredOnArrival:
                        return try answer(decision, renewed, tenant, outcome)
                    default: break
                    }
                case .success(.overtaken):
                    outcome = run.isOwn ? .renewed : .joined
                    guard let current = try await renewer.tenants.currentTenant(id.tenant) else {
                        throw BrokerError.noSuchTenant
                    }
                    tenant = current
                }
            }
        }
        throw BrokerError(.retryableError, "The credentials kept changing. Ask again.", retryAfter: 1)
    }

    /// Until when a caller waits while the token at hand lives.
    private func soon(_ deadline: MonotonicInstant?) -> MonotonicInstant? {
        guard let renewalPatience else { return deadline }
        let end = time.monotonic.advanced(by: renewalPatience)
        return deadline.map { min($0, end) } ?? end
    }

    /// Why the token at hand is given without a renewal; nil where one is to be tried.
    /// - Parameter obstacle: what the renewal failed with that this call has tried.
    private func degradation(
        _ id: CredentialsID, _ version: Int64, of tenant: Tenant, _ obstacle: BrokerError?
    ) -> Degradation? {
        let clocks = time.clocks
        guard let obstacle else { return degradations.standing(id, version, of: tenant, now: clocks.monotonic) }
        return degradations.note(obstacle, id, version, of: tenant, at: clocks)
    }

    private func timer(until deadline: MonotonicInstant?) -> (@Sendable () async -> Void)? {
        guard let deadline else { return nil }
        // A sleep that ends early, because the wait is over, has nobody left to tell.
        return { _ = try? await self.time.sleep(for: max(.zero, self.time.monotonic.duration(to: deadline))) }
    }

    /// What is stored, expired or not. Never calls the provider.
    /// - Throws: `storage_unavailable` where the store does not answer.
    package func stored(_ id: CredentialsID) async throws(BrokerError) -> CredentialsSnapshot {
        try await records.reading(id) { _ in false }.snapshot
    }

    /// The same for somebody who wants to know whether a user is logged in: where the store does not answer, a user's token
    /// that is in memory and still good shows it.
    /// - Throws: `storage_unavailable` where the store does not answer and there is none.
    package func lastKnown(_ id: CredentialsID) async throws(BrokerError) -> CredentialsSnapshot {
        try await records.reading(id) { known in
            known.record.held.map { $0.level == .user && $0.expires > time.now } ?? false
        }.snapshot
    }

    private func answer(
        _ decision: CredentialsDecision, _ snapshot: CredentialsSnapshot, _ tenant: Tenant,
        _ outcome: Metrics.TokenRead, _ degradation: Degradation? = nil
    ) throws(BrokerError) -> Answer {
        switch decision {
        case .serve:
            Answer(
                snapshot: snapshot, tenant: tenant, level: snapshot.record.held?.level ?? .basic, outcome: outcome,
                degradation: degradation)
        case .serveBasic:
            Answer(snapshot: snapshot, tenant: tenant, level: .basic, outcome: .basic, degradation: nil)
        case .missing where snapshot.record.held != nil:
            throw BrokerError(
                .missingTokenContainer,
                "The user's credentials have no refresh token, so that no refresh can be forced. Have the user log in anew."
            )
        case .missing:
            throw BrokerError(.missingTokenContainer, "Nothing is stored under this storage key.").after(
                snapshot.record)
        case .expiredOnArrival:
            throw BrokerError(.tokenResponseError, "The provider's new token has expired already.")
        case .keptForOtherProvider:
            throw BrokerError(
                .illegalConfiguration,
                "The user's credentials belong to another provider address than the one that is configured, and are kept "
                    + "for it. Configure that address again; or, if it is the same provider's, name it in "
                    + "previous_issuers or previous_token_endpoints; or have the user log in anew, or out.")
        case .levelNotAvailable, .refresh, .upgrade, .obtainClientCredentials, .retire:
            throw BrokerError(
                .levelNotAvailable, "The best credentials under this storage key are of a lower level than asked for."
            )
            .after(snapshot.record)
        }
    }

    /// How the user's session stands; nil where there is none and none was lost.
    ///
    /// A store that does not answer keeps nothing from being told but what renewals failed with.
    package func state(
        of snapshot: CredentialsSnapshot, _ id: CredentialsID, _ tenant: Tenant
    ) async -> CredentialsState? {
        let record = snapshot.record
        guard record.held?.level == .user else { return record.state() }
        if record.held?.refreshToken != nil, let fault = await renewer.clientFaults.current(of: tenant) {
            if !fault.isRefuted(by: record) { return .degraded }
            await renewer.clientFaults.lift(fault, of: tenant)
        }
        do throws(StoreError) {
            let trouble = try await records.trouble(id)?.content
            return record.state(after: trouble, of: snapshot.version, configuration: tenant.version)
        } catch {
            records.report(error, id)
            return record.state()
        }
    }

    /// How many sets of credentials wait in the journal for the store.
    package var countInJournal: Int { records.countOfUnpublished }
}

extension BrokerError {
    /// The same error where the user's session is over: the caller is told of that, too.
    fileprivate func after(_ record: CredentialRecord) -> BrokerError {
        guard record.held?.level != .user, let session = record.session else { return self }
        var error = self
        error.session = session
        return error
    }
}
