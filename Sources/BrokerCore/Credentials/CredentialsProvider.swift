import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
package import OAuth
import Reactor
import Synchronization

/// Hands out credentials: from the cache while they are valid, otherwise after one renewal for all callers (TIDAL's Auth
/// design, "Providing credentials").
package final class CredentialsProvider: Sendable {
    /// The answer to a query.
    package struct Answer: Sendable {
        package let snapshot: CredentialsSnapshot
        /// The tenant with whose configuration the answer was decided.
        package let tenant: Tenant
        /// `basic` where there is no token, only the client identifier.
        package let level: CredentialsLevel
        package let outcome: Metrics.TokenRead
        /// Why the token may have a shorter lifetime than the caller asked for; nil where it has not.
        package let degradation: Degradation?
    }

    let records: CredentialsRecords
    /// The cache of `records`, without the indirection.
    let cache: RevalidatingCache<CredentialsID, CredentialsSnapshot>
    let policy = CredentialsPolicy()
    let renewer: CredentialsRenewer
    private let time: any Time
    /// For how long a caller waits for a renewal while the present token is valid; nil for as long as the renewal takes.
    private let renewalPatience: Duration?

    /// A renewed token is asked for once more if its lifetime at the grant was longer than the query's by this, and is shorter
    /// than the query's when the renewal has ended.
    private static let shortestDelay: Duration = .seconds(1)

    /// - Parameter renewalPatience: for how long a caller waits for a renewal while the present token is valid; nil for as long
    ///   as the renewal takes.
    init(renewer: CredentialsRenewer, renewalPatience: Duration?) {
        self.renewer = renewer
        self.renewalPatience = renewalPatience
        records = renewer.records
        cache = records.cache
        time = renewer.time
    }

    // MARK: Reading

    /// The best credentials that the configuration and the query allow.
    ///
    /// While the store does not answer, a user's cached token that suits the query is served, even if its cache entry has
    /// expired. Nothing else is concluded from an expired entry: a user may have logged in since.
    ///
    /// Does not suspend while suitable credentials are in the cache. A renewal that this call starts or joins goes on when the
    /// caller stops waiting. A valid token is served although it is to be renewed, if the renewal fails or takes longer than
    /// `renewalPatience`, unless the caller or the API has refused the token.
    /// - Parameter patience: for how long the caller waits for a renewal; nil for as long as the renewal takes.
    package func credentials(
        _ id: CredentialsID, of tenant: Tenant, _ query: CredentialsQuery, patience: Duration?
    ) async throws(BrokerError) -> Answer {
        var (tenant, query) = (tenant, query)
        let deadline = patience.map { time.monotonic.advanced(by: $0) }
        var outcome = Metrics.TokenRead.fresh
        var mayAskAgain = true
        var first: CredentialsSnapshot?
        // Why the present token could not be renewed.
        var obstacle: BrokerError?
        // Each round ends with an answer, with an error, or because the record was changed meanwhile.
        for _ in 0..<16 {
            let waits = query.policy != .localForceRefresh && !query.refusedByAPI
            let reading = try await records.reading(id, waitingForKnown: waits) { known in
                policy.serves(
                    outdated: known.record.held, version: known.heldVersion, terms: tenant.terms, query: query,
                    now: time.now)
            }
            let snapshot = reading.snapshot
            // A record that was stored again under a later version was not renewed.
            let isSame = first.map { snapshot.version > $0.version && snapshot.record.isSame(as: $0.record) } ?? false
            if query.renewedPast == nil || isSame { query.renewedPast = snapshot.heldVersion }
            first = first ?? snapshot
            // An account is created where nothing was stored, and not because what was stored could not be renewed.
            if first?.record.held != nil, query.policy == .createIfNeeded { query.policy = .localValid }
            let decision =
                reading.isCurrent
                ? renewer.decider.decide(snapshot, tenant, query, id) : .serve
            switch decision {
            // This replica may not know yet that the configuration was put back for which the session is kept.
            case .serveBasic, .kept, .missing, .levelNotAvailable:
                if snapshot.record.held?.level == .user, let current = try await newer(than: tenant) {
                    tenant = current
                    continue
                }
                return try answer(decision, snapshot, tenant, outcome)
            case .serve, .tooEarly, .expiredOnArrival: return try answer(decision, snapshot, tenant, outcome)
            case .refresh(isEarly: true):
                renewer.renewBehindAnswer(id, of: tenant, query)
                return try answer(.serve, snapshot, tenant, outcome)
            case .createAccount where id.storageKey.isOfUser: throw BrokerError.storageKeyOfUser
            case .refresh, .upgrade, .obtainClientCredentials, .createAccount, .verify, .retire:
                let mayServeHeld = policy.serves(
                    whileRenewing: snapshot.record.held, version: snapshot.heldVersion, decision: decision,
                    query: query,
                    now: time.now)
                if mayServeHeld, let obstacle {
                    let degradation = degradation(by: obstacle, id, snapshot, tenant)
                    return try answer(.serve, snapshot, tenant, .degraded, degradation)
                }
                let failure = renewer.failures.current(
                    id, mayServeHeld ? [.degraded, .upgrade] : .upgrade, version: snapshot.version,
                    configuration: tenant.version, grant: decision.grant)
                switch failure?.failure {
                case .degraded(let degradation)?:
                    return try answer(.serve, snapshot, tenant, .degraded, degradation)
                // The last tries of an upgrade have failed and are not repeated yet.
                case .upgrade(let error)?:
                    guard mayServeHeld else { throw error.after(snapshot.record) }
                    obstacle = error
                    continue
                case .early?, .recovery?, nil: break
                }
                let run = await renewer.renew(
                    id, of: tenant, query, as: query.trigger,
                    within: timer(until: mayServeHeld ? soon(deadline) : deadline))
                guard let run else {
                    let stillRenewing = BrokerError(
                        .retryableError, "The credentials are still being renewed. Ask again.", retryAfter: 1)
                    if !mayServeHeld,
                        policy.serves(
                            impatient: snapshot.record.held, decision: decision, query: query, now: time.now)
                    {
                        let degradation = degradation(by: stillRenewing, id, snapshot, tenant)
                        return try answer(.serve, snapshot, tenant, .degraded, degradation)
                    }
                    guard mayServeHeld else { throw stillRenewing.after(snapshot.record) }
                    obstacle = stillRenewing
                    continue
                }
                switch run.value {
                case .failure(let error):
                    let mayBeLoggedOut = error.code == .storageUnavailable && error != .grantNotStored
                    guard !error.endsSession, mayServeHeld, !mayBeLoggedOut else {
                        throw error.after(snapshot.record)
                    }
                    // The present token is valid. The record is read once more, though: the renewal may have found a logout.
                    obstacle = error
                case .success(.new(let renewed, let life)):
                    outcome = run.isOwn ? .renewed : .joined
                    // Another caller's renewal has left the token that an API has refused to this one.
                    if renewed.record.isOver, query.refusedByAPI { continue }
                    // The renewal that this call has joined may have used an earlier configuration.
                    if let held = renewed.record.held, !held.isRenewed(by: tenant.terms) { continue }
                    // The token lived long enough when it was granted and does not any more, since the call has waited for the
                    // store or for another replica. It is renewed once more, but not twice: the lifetime may hardly be longer
                    // than what the query asks for.
                    let minimum = query.minimumLifetime ?? tenant.terms.minimumLifetime
                    if let held = renewed.record.held, let life, mayAskAgain, life >= minimum + Self.shortestDelay,
                        held.expires < time.now.advanced(by: minimum)
                    {
                        mayAskAgain = false
                        continue
                    }
                    // The session ended during this call. Credentials were stored when the call began, so the caller gets the
                    // next lower level, as after a logout.
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

    /// The tenant as it is stored; nil where this is known already.
    private func newer(than tenant: Tenant) async throws(BrokerError) -> Tenant? {
        guard let current = try await renewer.tenants.currentTenant(tenant.name) else { throw BrokerError.noSuchTenant }
        return current.version == tenant.version ? nil : current
    }

    /// Until when a caller waits while the present token is valid.
    private func soon(_ deadline: MonotonicInstant?) -> MonotonicInstant? {
        guard let renewalPatience else { return deadline }
        let end = time.monotonic.advanced(by: renewalPatience)
        return deadline.map { min($0, end) } ?? end
    }

    /// Why the present token is served without a renewal. Further callers get it at once for a while.
    private func degradation(
        by failure: BrokerError, _ id: CredentialsID, _ snapshot: CredentialsSnapshot, _ tenant: Tenant
    ) -> Degradation {
        renewer.failures.noteDegraded(failure, id, version: snapshot.version, configuration: tenant.version)
    }

    private func timer(until deadline: MonotonicInstant?) -> (@Sendable () async -> Void)? {
        guard let deadline else { return nil }
        // The sleep is cancelled when the wait is over, so its result does not matter.
        return { _ = try? await self.time.sleep(for: max(.zero, self.time.monotonic.duration(to: deadline))) }
    }

    /// The stored credentials, expired or not, read from the store. Never calls the provider.
    ///
    /// For a caller that has read an event in the log: a commit is visible there before the process that makes it has updated
    /// its cache.
    /// - Throws: `storage_unavailable` where the store does not answer.
    package func stored(_ id: CredentialsID) async throws(BrokerError) -> CredentialsSnapshot {
        do throws(StoreError) {
            return try await records.reread(id)
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
    }

    /// The stored credentials, perhaps from the cache, for a caller that wants to know whether a user is logged in. While the
    /// store does not answer, a user's cached token that has not expired is enough.
    /// - Throws: `storage_unavailable` where the store does not answer and no such token is cached.
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
                .missingTokenContainer, tenant.configuration.reasonWithoutRefresh(snapshot.record.held, at: time.now))
        case .missing:
            throw BrokerError(.missingTokenContainer, "Nothing is stored under this storage key.").after(
                snapshot.record)
        case .tooEarly(let earliest):
            let wait = time.now.duration(to: earliest).milliseconds
            throw BrokerError(
                .retryableError,
                "The provider renews this token from \(earliest) on and not before. Until then the token at hand is served.",
                retryAfter: max(1, Int((wait + 999) / 1000)))
        case .expiredOnArrival:
            throw BrokerError(.tokenResponseError, "The provider's new token has expired already.")
        case .kept:
            throw BrokerError(.illegalConfiguration, reasonToKeep(snapshot.record.held, tenant))
        // Of a user who is logged in: the configuration does not fit the credentials.
        case .levelNotAvailable where snapshot.record.held?.level == .user:
            var error = BrokerError(.levelNotAvailable, reasonToKeep(snapshot.record.held, tenant))
            error.isSessionKept = true
            throw error
        case .levelNotAvailable, .refresh, .upgrade, .obtainClientCredentials, .createAccount, .verify, .retire:
            throw BrokerError(
                .levelNotAvailable, "The best credentials under this storage key are of a lower level than asked for."
            )
            .after(snapshot.record)
        }
    }

    /// Why a user's credentials are kept and not served, and what to change.
    private func reasonToKeep(_ held: HeldCredentials?, _ tenant: Tenant) -> String {
        let accepted = renewer.providers.servers.acceptedProviders(of: tenant)
        if accepted.difference(from: held?.grantedBy) != nil {
            return
                "The user's credentials belong to another provider address than the one that is configured, and are kept "
                + "for it. Configure that address again; or, if it is the same provider's, name it in "
                + "previous_issuers or previous_token_endpoints; or have the user log in anew, or out."
        }
        return
            "The user's credentials belong to another client than the one that is configured, and are kept for it. "
            + "Configure the earlier client_id again, or have the user log in anew, or out."
    }

    /// The state of the user's session; nil where there is none and none has ended. While the store does not answer, the state
    /// leaves out the failures of renewals.
    package func state(
        of snapshot: CredentialsSnapshot, _ id: CredentialsID, _ tenant: Tenant
    ) async -> CredentialsState? {
        let record = snapshot.record
        guard record.held?.level == .user, !record.isOver else { return record.state() }
        if await renewer.waves.holds(record.held, id) { return .held }
        if record.held?.refreshToken != nil, let fault = await renewer.clientFaults.current(of: tenant) {
            if fault.isRefuted(by: record, of: tenant) {
                await renewer.clientFaults.lift(fault, of: tenant)
            } else if fault.concerns(record, of: tenant) {
                return .degraded
            }
        }
        do throws(StoreError) {
            let trouble = try await records.trouble(id)?.content
            return record.state(after: trouble, of: snapshot.version, in: tenant)
        } catch {
            records.report(error, id)
            return record.state()
        }
    }

    /// How many grants wait in the journal to be stored.
    package var countInJournal: Int { records.countOfUnpublished }
}

extension CredentialsQuery {
    /// Why a renewal begins that a caller waits for.
    fileprivate var trigger: BrokerEvent.Trigger {
        if refusedByAPI { return .apiError }
        return policy == .localForceRefresh ? .forced : .request
    }
}

extension BrokerError {
    /// The same error, with the end of the user's session where that has ended.
    fileprivate func after(_ record: CredentialRecord) -> BrokerError {
        guard record.held?.level != .user || record.isOver, let session = record.session else { return self }
        var error = self
        error.session = session
        return error
    }
}
