package import CredentialStore
internal import Cryptography
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
    }

    private let records: CredentialsRecords
    private let tenants: TenantDirectory
    private let servers: ProviderServers
    private let endpoint: TokenEndpoint
    private let time: any Time
    private let metrics: Metrics
    private let log: Log
    private let quarantine: Duration
    private let policy = CredentialsPolicy()
    private let flights = SingleFlight<CredentialsID, Result<Renewed, BrokerError>>()
    private let earlyPauses = Mutex<[CredentialsID: EarlyPause]>([:])

    /// An early renewal that failed or brought little, and until when none is tried of the version that it left.
    private struct EarlyPause {
        let version: Int64
        let until: MonotonicInstant
    }

    private static let pauseAfterEarlyFailure: Duration = .seconds(30)
    /// How long a caller waits for a renewal ahead of time: the token is good, so a provider that does not answer keeps
    /// nobody from it.
    private static let patienceForEarlyRenewal: Duration = .seconds(5)

    /// - Parameters:
    ///   - quarantine: how long credentials that the provider ended are kept aside; zero keeps nothing.
    ///   - expiryNotice: how long ahead of their expiry listeners are told of it.
    package init(
        vault: Vault, tenants: TenantDirectory, servers: ProviderServers, endpoint: TokenEndpoint, bus: EventBus,
        time: any Time, metrics: Metrics, log: Log, quarantine: Duration, expiryNotice: Duration, cacheCapacity: Int
    ) {
        records = CredentialsRecords(
            vault: vault, bus: bus, time: time, log: log, expiryNotice: expiryNotice, cacheCapacity: cacheCapacity)
        self.tenants = tenants
        self.servers = servers
        self.endpoint = endpoint
        self.time = time
        self.metrics = metrics
        self.log = log
        self.quarantine = quarantine
    }

    // MARK: Reading

    /// The best credentials that the configuration allows and the query takes.
    ///
    /// Does not suspend while good ones are in memory. A renewal that this call starts or joins goes on when the
    /// caller stops waiting.
    /// - Parameter patience: how long the caller waits for a renewal; nil as long as it takes.
    package func credentials(
        _ id: CredentialsID, of tenant: Tenant, _ query: CredentialsQuery, patience: Duration?
    ) async throws(BrokerError) -> Answer {
        var (tenant, query) = (tenant, query)
        let deadline = patience.map { time.monotonic.advanced(by: $0) }
        var outcome = Metrics.TokenRead.fresh
        var renewsEarly = true
        // Each round ends in an answer, an error, or the news that somebody else changed the record meanwhile.
        for _ in 0..<16 {
            let snapshot = try await records.snapshot(id)
            if query.renewedPast == nil { query.renewedPast = snapshot.version }
            let decision = decide(snapshot, tenant, query, id, renewsEarly: renewsEarly)
            switch decision {
            case .serve, .serveBasic, .missing, .levelNotAvailable, .expiredOnArrival:
                return try answer(decision, snapshot, tenant, outcome)
            case .refresh, .upgrade, .obtainClientCredentials, .retire:
                let isEarly = decision == .refresh(isEarly: true)
                let (owner, asked) = (tenant, query)
                let run = await flights.run(id, within: timer(until: isEarly ? earlyDeadline(deadline) : deadline)) {
                    await self.renew(id, of: owner, asked)
                }
                guard let run else {
                    if isEarly {
                        renewsEarly = false
                        continue
                    }
                    throw BrokerError(
                        .retryableError, "The credentials are still being renewed. Ask again.", retryAfter: 1)
                }
                switch run.value {
                case .failure(let error):
                    guard isEarly else { throw error }
                    // What is stored is good for as long as the caller asked. It is looked at once more, though: the
                    // renewal may have found a logout.
                    renewsEarly = false
                case .success(.new(let renewed)):
                    outcome = run.isOwn ? .renewed : .joined
                    // Somebody else's renewal was of the configuration before this one.
                    if let held = renewed.record.held, !held.isRenewed(by: tenant.terms) { continue }
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
                    guard let current = try await tenants.currentTenant(id.tenant) else {
                        throw BrokerError.noSuchTenant
                    }
                    tenant = current
                }
            }
        }
        throw BrokerError(.retryableError, "The credentials kept changing. Ask again.", retryAfter: 1)
    }

    private func earlyDeadline(_ deadline: MonotonicInstant?) -> MonotonicInstant {
        let early = time.monotonic.advanced(by: Self.patienceForEarlyRenewal)
        return deadline.map { min($0, early) } ?? early
    }

    private func timer(until deadline: MonotonicInstant?) -> (@Sendable () async -> Void)? {
        guard let deadline else { return nil }
        // A sleep that ends early, because the wait is over, has nobody left to tell.
        return { _ = try? await self.time.sleep(for: max(.zero, self.time.monotonic.duration(to: deadline))) }
    }

    /// What is stored, whatever its age. Never calls the provider.
    package func stored(_ id: CredentialsID) async throws(BrokerError) -> CredentialsSnapshot {
        try await records.snapshot(id)
    }

    private func decide(
        _ snapshot: CredentialsSnapshot, _ tenant: Tenant, _ query: CredentialsQuery, _ id: CredentialsID,
        renewsEarly: Bool = true
    ) -> CredentialsDecision {
        var terms = tenant.terms
        if terms.leadTime > .zero, !renewsEarly || isPaused(id, snapshot.version) { terms.leadTime = .zero }
        return policy.decide(
            snapshot.record.held, version: snapshot.version, terms: terms, query: query, now: time.now)
    }

    private func isPaused(_ id: CredentialsID, _ version: Int64) -> Bool {
        let now = time.monotonic
        return earlyPauses.withLock { $0[id].map { $0.version == version && $0.until > now } ?? false }
    }

    private func pauseEarlyRenewal(_ id: CredentialsID, of version: Int64, for pause: Duration) {
        let now = time.monotonic
        earlyPauses.withLock { pauses in
            if pauses.count >= 16_384 {
                pauses = pauses.filter { $0.value.until > now }
                // Who loses a pause renews once more than needed; sweeping a full table at every failure would cost all.
                if pauses.count >= 8192 { pauses = [:] }
            }
            pauses[id] = EarlyPause(version: version, until: now.advanced(by: pause))
        }
    }

    private func answer(
        _ decision: CredentialsDecision, _ snapshot: CredentialsSnapshot, _ tenant: Tenant,
        _ outcome: Metrics.TokenRead
    ) throws(BrokerError) -> Answer {
        switch decision {
        case .serve:
            Answer(
                snapshot: snapshot, tenant: tenant, level: snapshot.record.held?.level ?? .basic, outcome: outcome)
        case .serveBasic:
            Answer(snapshot: snapshot, tenant: tenant, level: .basic, outcome: .basic)
        case .missing:
            throw BrokerError(.missingTokenContainer, "Nothing is stored under this storage key.")
        case .expiredOnArrival:
            throw BrokerError(.tokenResponseError, "The provider's new token has expired already.")
        case .levelNotAvailable, .refresh, .upgrade, .obtainClientCredentials, .retire:
            throw BrokerError(
                .levelNotAvailable, "The best credentials under this storage key are of a lower level than asked for.")
        }
    }

    // MARK: Renewing

    /// What a renewal came to.
    private enum Renewed: Sendable {
        /// Stored, and so fit to be served.
        case new(CredentialsSnapshot)
        /// Somebody else's change came first. Decide again.
        case overtaken
    }

    /// What every step of one renewal knows.
    private struct Renewal {
        let id: CredentialsID
        let tenant: Tenant
        /// What it started from.
        let current: CredentialsSnapshot
        /// What the provider is asked for; nil when it is not asked.
        let grant: TokenRequest.Grant?
        let refreshID: RefreshID
    }

    /// Re-reads, re-decides, acts and publishes. Runs once at a time for a storage key.
    private func renew(
        _ id: CredentialsID, of tenant: Tenant, _ query: CredentialsQuery
    ) async -> Result<Renewed, BrokerError> {
        let start = time.monotonic
        let current: CredentialsSnapshot
        do throws(StoreError) {
            current = try await records.reread(id)
        } catch {
            records.report(error, id)
            return .failure(BrokerError(error))
        }
        let decision = decide(current, tenant, query, id)
        let renewal = Renewal(
            id: id, tenant: tenant, current: current, grant: Self.grant(of: decision), refreshID: RefreshID())
        let result: Result<Renewed, BrokerError>
        let outcome: Metrics.Renewal
        do throws(BrokerError) {
            switch decision {
            case .serve, .serveBasic, .missing, .levelNotAvailable, .expiredOnArrival:
                return .success(.overtaken)
            case .refresh:
                (result, outcome) = (.success(try await refresh(renewal)), .succeeded)
            case .upgrade:
                (result, outcome) = (.success(try await upgrade(renewal)), .succeeded)
            case .obtainClientCredentials(let isUpgrade):
                (result, outcome) = (
                    .success(try await obtainClientCredentials(renewal, isUpgrade: isUpgrade)), .succeeded
                )
            case .retire:
                (result, outcome) = (.success(try await retire(renewal)), .retired)
            }
        } catch {
            (result, outcome) = (.failure(error), .failed)
            if decision == .refresh(isEarly: true) {
                pauseEarlyRenewal(id, of: current.version, for: Self.pauseAfterEarlyFailure)
            }
        }
        finish(renewal, outcome, result, took: start.duration(to: time.monotonic))
        return result
    }

    private static func grant(of decision: CredentialsDecision) -> TokenRequest.Grant? {
        switch decision {
        case .refresh: .refreshToken
        case .upgrade: .upgrade
        case .obtainClientCredentials: .clientCredentials
        case .serve, .serveBasic, .retire, .expiredOnArrival, .missing, .levelNotAvailable: nil
        }
    }

    private func finish(
        _ renewal: Renewal, _ outcome: Metrics.Renewal, _ result: Result<Renewed, BrokerError>,
        took duration: Duration
    ) {
        var outcome = outcome
        var fields: [LogField] =
            LogField.credentials(renewal.id) + [.refresh(renewal.refreshID), .duration(duration)]
        switch result {
        case .success(.overtaken): outcome = .overtaken
        case .success(.new(let snapshot)):
            if renewal.grant == .refreshToken, snapshot.record.held == nil { outcome = .sessionEnded }
            fields.append(.version(snapshot.version))
        case .failure(let error): fields.append(.code(error.code))
        }
        metrics.renewalEnded(
            provider: renewal.tenant.configuration.preset.name, renewal.grant, outcome, took: duration)
        switch outcome {
        case .succeeded: log.info("credentials_renewed", fields)
        case .overtaken: log.info("renewal_overtaken", fields)
        case .retired: log.info("credentials_retired", fields)
        case .sessionEnded: log.warning("session_ended_by_provider", fields)
        case .failed: log.warning("renewal_failed", fields)
        }
    }

    private func refresh(_ renewal: Renewal) async throws(BrokerError) -> Renewed {
        let client = renewal.tenant.configuration.client
        guard let held = renewal.current.record.held, let refreshToken = held.refreshToken else { return .overtaken }
        let server = try await servers.server(for: renewal.tenant)
        try endpoint.admit(client, at: server)
        try await begin(renewal)
        let response: TokenResponse
        do throws(TokenEndpoint.Failure) {
            response = try await endpoint.request(
                .refresh(refreshToken), for: client, at: server, as: renewal.refreshID)
        } catch {
            switch error {
            case .failed(let reason):
                await tellFailure(renewal, reason)
                throw reason
            case .sessionEnded(let answer):
                return try await end(renewal, held, answer)
            }
        }
        var renewed = HeldCredentials(
            granted: response, level: .user, to: client, replacing: held,
            defaultLifetime: server.preset.defaultLifetime, now: time.now)
        renewed.obtainedWith = held.obtainedWith.refreshed(by: client.fingerprint)
        let result = try await publish(
            renewal, CredentialRecord(held: renewed), events: granted(renewal, renewed, .refresh))
        // A token that lives no longer than the lead time would be due again at once, and at every read.
        let life = time.now.duration(to: renewed.expires)
        if case .new(let snapshot) = result, life <= renewal.tenant.terms.leadTime {
            pauseEarlyRenewal(renewal.id, of: snapshot.version, for: life / 2)
        }
        return result
    }

    /// Whether the configuration that a renewal goes by is the stored one. A replica may not have heard of a new one
    /// yet: what is final must not be done by the old one.
    private func isCurrent(_ tenant: Tenant) async throws(BrokerError) -> Bool {
        try await tenants.currentTenant(tenant.name)?.version == tenant.version
    }

    /// Carries a user's session over to the client that is configured now (TIDAL's Auth design, "Upgrading
    /// credentials"). No failure ends it.
    private func upgrade(_ renewal: Renewal) async throws(BrokerError) -> Renewed {
        // A replica with an old configuration would carry the session back.
        guard try await isCurrent(renewal.tenant) else { return .overtaken }
        let client = renewal.tenant.configuration.client
        guard let held = renewal.current.record.held, let refreshToken = held.refreshToken,
            let grantType = renewal.tenant.configuration.preset.upgradeGrant
        else { return .overtaken }
        let server: AuthorizationServer
        do throws(BrokerError) {
            server = try await servers.server(for: renewal.tenant)
            try endpoint.admit(client, at: server)
        } catch {
            throw error.asFailedUpgrade
        }
        try await begin(renewal)
        let response: TokenResponse
        do throws(TokenEndpoint.Failure) {
            response = try await endpoint.request(
                .upgrade(refreshToken, grantType: grantType), for: client, at: server, as: renewal.refreshID,
                retriesEveryFailure: true)
        } catch {
            let reason = error.reason.asFailedUpgrade
            await tellFailure(renewal, reason)
            throw reason
        }
        let upgraded = HeldCredentials(
            granted: response, level: .user, to: client, replacing: held,
            defaultLifetime: server.preset.defaultLifetime, now: time.now)
        return try await publish(
            renewal, CredentialRecord(held: upgraded), events: granted(renewal, upgraded, .upgrade))
    }

    private func obtainClientCredentials(
        _ renewal: Renewal, isUpgrade: Bool
    ) async throws(BrokerError) -> Renewed {
        if isUpgrade, try await !isCurrent(renewal.tenant) { return .overtaken }
        let (id, client) = (renewal.id, renewal.tenant.configuration.client)
        let server: AuthorizationServer
        let response: TokenResponse
        do throws(BrokerError) {
            server = try await servers.server(for: renewal.tenant)
            do throws(TokenEndpoint.Failure) {
                response = try await endpoint.request(
                    .clientCredentials, for: client, at: server, as: renewal.refreshID, retriesEveryFailure: isUpgrade)
            } catch {
                throw error.reason
            }
        } catch {
            throw isUpgrade ? error.asFailedUpgrade : error
        }
        let obtained = HeldCredentials(
            granted: response, level: .client, to: client,
            requested: server.preset.scopesClientCredentials ? client.scopes : .empty,
            defaultLifetime: server.preset.defaultLifetime, now: time.now)
        let now = time.now
        return try await publish(
            renewal, CredentialRecord(held: obtained, ended: renewal.current.record.ended)
        ) { version in
            [
                .updated(
                    id, to: obtained, version: version, by: isUpgrade ? .upgrade : .client, renewal.refreshID, at: now)
            ]
        }
    }

    /// Leaves a tombstone for a session that the provider ended by `answer`, and keeps its credentials aside. Conflicts
    /// are news, not failures: a sibling that has refreshed meanwhile, or a new login, shows that the session goes on.
    private func end(
        _ renewal: Renewal, _ held: HeldCredentials, _ answer: TokenErrorResponse
    ) async throws(BrokerError) -> Renewed {
        let (id, now) = (renewal.id, time.now)
        let errorCode = answer.errorCode
        do throws(BrokerError) {
            guard try await isCurrent(renewal.tenant) else {
                // It may have been the old secret that was refused.
                await tellFailure(
                    renewal, BrokerError(.conflict, "The tenant was configured anew meanwhile.", errorCode: errorCode))
                return .overtaken
            }
            // A refusal of another client than the one that logged the user in says nothing about the session.
            guard held.isEnded(by: answer, refreshedBy: renewal.tenant.terms.client) else {
                throw BrokerError(
                    .unexpectedError,
                    "The provider refused to refresh credentials that the tenant's earlier client_secret obtained. "
                        + "Configure that again, or have the user log in anew.", errorCode: errorCode)
            }
        } catch {
            await tellFailure(renewal, error)
            throw error
        }
        let reason = BrokerError(.unexpectedError, "The provider ended the session.", errorCode: errorCode)
        let tombstone = CredentialRecord(held: nil, ended: held.refreshTokenDigest)
        return try await publish(renewal, tombstone, aside: .keep(held, for: quarantine)) { version in
            [
                .deauthorized(id, from: held, version: version, by: .revoked, renewal.refreshID, at: now),
                .refreshFailed(id, .refreshToken, reason, renewal.refreshID, at: now),
            ]
        }
    }

    /// Puts away what is over and cannot be renewed. A refresh token among it belongs to another client than the one
    /// that is configured: it is kept aside, in case the configuration is the mistake.
    private func retire(_ renewal: Renewal) async throws(BrokerError) -> Renewed {
        guard let held = renewal.current.record.held else { return .overtaken }
        if held.refreshToken != nil, try await !isCurrent(renewal.tenant) { return .overtaken }
        let (id, now) = (renewal.id, time.now)
        let tombstone = CredentialRecord(held: nil, ended: renewal.current.record.ended)
        let aside: CredentialsRecords.AsideChange =
            held.refreshToken == nil ? .none : .keep(held, for: quarantine)
        return try await publish(renewal, tombstone, aside: aside) { version in
            [.deauthorized(id, from: held, version: version, by: .expired, nil, at: now)]
        }
    }

    // MARK: Telling

    /// Writes down that a renewal begins, before the provider is asked: a store that cannot be written to could not
    /// take its answer either, and then the refresh token had better not be spent.
    private func begin(_ renewal: Renewal) async throws(BrokerError) {
        let (id, now) = (renewal.id, time.now)
        guard let grant = renewal.grant else { return }
        do throws(StoreError) {
            try await records.tell(
                [
                    .step(.refreshStarted, id, grant, renewal.refreshID, at: now),
                    .step(.refreshRefreshingAccessToken, id, grant, renewal.refreshID, at: now),
                ], of: id)
        } catch .conflict {
            throw BrokerError(.notFound, "The tenant was deleted meanwhile.")
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
    }

    private func granted(
        _ renewal: Renewal, _ held: HeldCredentials, _ origin: BrokerEvent.Origin
    ) -> CredentialsRecords.Events {
        let (id, refreshID, now) = (renewal.id, renewal.refreshID, time.now)
        guard let grant = renewal.grant else { return { _ in [] } }
        return { version in
            [
                .step(.refreshRefreshedAccessToken, id, grant, refreshID, at: now),
                .step(.refreshSavingTokens, id, grant, refreshID, at: now),
                .updated(id, to: held, version: version, by: origin, refreshID, at: now),
                .step(.refreshSucceeded, id, grant, refreshID, at: now),
            ]
        }
    }

    /// Tells how a renewal ended that was told to begin and brought nothing. A listener misses it where the store does
    /// not take it; the log has it.
    private func tellFailure(_ renewal: Renewal, _ reason: BrokerError) async {
        guard let grant = renewal.grant, grant != .clientCredentials else { return }
        do throws(StoreError) {
            try await records.tell(
                [.refreshFailed(renewal.id, grant, reason, renewal.refreshID, at: time.now)], of: renewal.id)
        } catch {
            log.warning("event_not_stored", LogField.credentials(renewal.id) + [.store(error)])
        }
    }

    // MARK: Publishing

    /// Stores what a renewal brought, in place of exactly what it started from.
    ///
    /// A provider may have replaced the refresh token by now, so a store that is away is asked until it answers: the
    /// callers' patience may end meanwhile, the result may not be lost.
    private func publish(
        _ renewal: Renewal, _ record: CredentialRecord, aside: CredentialsRecords.AsideChange = .none,
        events: CredentialsRecords.Events
    ) async throws(BrokerError) -> Renewed {
        let id = renewal.id
        var (current, aside) = (renewal.current, aside)
        var prepared: CredentialsRecords.Prepared?
        var (tries, conflicts) = (0, 0)
        while true {
            do throws(StoreError) {
                let change: CredentialsRecords.Prepared
                if let prepared {
                    change = prepared
                } else {
                    change = records.prepare(record, id, over: current, try await records.changes(aside, id), events)
                    prepared = change
                }
                return .new(try await records.write(change, id, tenantVersion: renewal.tenant.version))
            } catch .conflict {
                conflicts += 1
                let standing = try await whatStands(id)
                // An earlier try may have arrived although its answer did not.
                if tries > 0, let prepared, standing.snapshot.version == prepared.snapshot.version,
                    standing.snapshot.record == record
                {
                    return .new(records.adopt(prepared, id))
                }
                guard standing.tenantExists else { throw BrokerError(.notFound, "The tenant was deleted meanwhile.") }
                if Self.isRefuted(standing.snapshot.record, by: record, from: renewal.current.record) {
                    // What was kept aside of the session is spent, and using it would end the session after all.
                    (current, aside) = (standing.snapshot, .drop)
                } else if standing.snapshot.version != current.version || aside == .none {
                    await tellFailure(
                        renewal, BrokerError(.conflict, "A login, a logout or another replica was faster."))
                    return .overtaken
                }
                // Otherwise it was only what is kept aside that somebody else has changed.
                guard conflicts < 32 else {
                    records.report(.conflict, id)
                    throw BrokerError(StoreError.conflict)
                }
                (prepared, tries) = (nil, 0)
            } catch .unavailable {
                tries += 1
                try await records.waitForStore(beforeTry: tries, id)
            } catch {
                records.report(error, id)
                throw BrokerError(error)
            }
        }
    }

    /// What is stored after a conflict. A store that is away is asked until it answers.
    private func whatStands(
        _ id: CredentialsID
    ) async throws(BrokerError) -> (snapshot: CredentialsSnapshot, tenantExists: Bool) {
        // What is in memory is what the renewal started from, and that is over.
        records.forget(id)
        return try await untilStoreAnswers(id) { () async throws(StoreError) in
            (try await self.records.reread(id), try await self.records.tenantExists(id))
        }
    }

    /// Runs `body` again while the store is away.
    private func untilStoreAnswers<R>(
        _ id: CredentialsID, _ body: () async throws(StoreError) -> R
    ) async throws(BrokerError) -> R {
        var tries = 0
        while true {
            do throws(StoreError) {
                return try await body()
            } catch .unavailable {
                tries += 1
                try await records.waitForStore(beforeTry: tries, id)
            } catch {
                records.report(error, id)
                throw BrokerError(error)
            }
        }
    }

    /// Whether another replica took the session for ended because the refresh token was refused that we had just
    /// exchanged, and came to the store before us. What we were granted shows that the session goes on. A logout leaves
    /// no such mark, so that it is never taken for that.
    private static func isRefuted(
        _ standing: CredentialRecord, by granted: CredentialRecord, from spent: CredentialRecord
    ) -> Bool {
        guard granted.held?.level == .user, standing.held?.level != .user,
            let digest = spent.held?.refreshTokenDigest
        else { return false }
        return standing.ended == digest
    }

    // MARK: Writing from outside

    /// What is committed together with new credentials, and told after them; made anew for each try. Nil when there
    /// is no longer a reason to store them.
    package typealias Companions = () async throws(StoreError) -> (changes: [VaultChange], events: [BrokerEvent])?

    /// Stores credentials over whatever is there (TIDAL's Auth design, "Setting credentials").
    package func set(_ id: CredentialsID, to held: HeldCredentials) async throws(BrokerError) -> CredentialsSnapshot {
        do throws(StoreError) {
            let snapshot = try await overwrite(id, with: held, by: .set) { () throws(StoreError) in ([], []) }
            guard let snapshot else { throw .conflict }
            return snapshot
        } catch .conflict {
            throw BrokerError(.notFound, "The tenant was deleted meanwhile.")
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
    }

    /// Stores what a login brought, over whatever is there. A code is redeemed once, so a store that is away is asked
    /// until it answers.
    /// - Returns: nil when `companions` saw that the login no longer counts.
    package func settle(
        login held: HeldCredentials, by origin: BrokerEvent.Origin, for id: CredentialsID,
        alongside companions: Companions
    ) async throws(BrokerError) -> CredentialsSnapshot? {
        try await untilStoreAnswers(id) { () async throws(StoreError) in
            if let snapshot = try await self.overwrite(id, with: held, by: origin, companions) { return snapshot }
            // An earlier try may have arrived although its answer did not.
            let standing = try await self.records.reread(id)
            return standing.record.held == held ? standing : nil
        }
    }

    private func overwrite(
        _ id: CredentialsID, with held: HeldCredentials, by origin: BrokerEvent.Origin, _ companions: Companions
    ) async throws(StoreError) -> CredentialsSnapshot? {
        try await retryingConflicts { () async throws(StoreError) in
            guard let (others, told) = try await companions() else { return nil }
            let current = try await self.records.reread(id)
            let now = self.time.now
            return try await self.records.write(CredentialRecord(held: held), id, over: current, alongside: others) {
                version in [.updated(id, to: held, version: version, by: origin, nil, at: now)] + told
            }
        }
    }

    /// Purges user and client credentials and what was kept aside (TIDAL's Auth design, "logout"). A
    /// renewal in flight loses its compare-and-set against this and cannot bring the user back.
    /// - Returns: what was purged; nil when nothing was there.
    package func purge(_ id: CredentialsID) async throws(BrokerError) -> HeldCredentials? {
        do throws(StoreError) {
            return try await retryingConflicts { () async throws(StoreError) in
                let current = try await self.records.reread(id)
                let aside = try await self.records.changes(.drop, id)
                let nothing = CredentialRecord(held: nil)
                // Even where nothing is left to purge, a tombstone's mark goes: it would let a renewal in flight
                // take the logout for another's mistake.
                if aside.isEmpty, current.version == 0 || current.record == nothing { return nil }
                let (held, now) = (current.record.held, self.time.now)
                _ = try await self.records.write(nothing, id, over: current, alongside: aside) { version in
                    held.map { [.deauthorized(id, from: $0, version: version, by: .logout, nil, at: now)] } ?? []
                }
                return held
            }
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
    }

    /// Puts back what a provider ended and was kept aside.
    /// - Throws: `not_found` where nothing is kept aside, `conflict` where a user is logged in.
    package func restore(_ id: CredentialsID) async throws(BrokerError) -> CredentialsSnapshot {
        let outcome: Result<CredentialsSnapshot, BrokerError>
        do throws(StoreError) {
            outcome = try await retryingConflicts { () async throws(StoreError) in
                let current = try await self.records.reread(id)
                if current.record.held?.level == .user {
                    return .failure(
                        BrokerError(.conflict, "User credentials are stored under this storage key already."))
                }
                guard let aside = try await self.records.aside(id), aside.content.until > self.time.now else {
                    return .failure(BrokerError(.notFound, "Nothing is kept aside under this storage key."))
                }
                let (held, now) = (aside.content.credentials, self.time.now)
                return .success(
                    try await self.records.write(
                        CredentialRecord(held: held), id, over: current, alongside: [aside.removal]
                    ) { version in [.updated(id, to: held, version: version, by: .set, nil, at: now)] })
            }
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
        return try outcome.get()
    }

    /// Tells the provider that a token is no longer wanted.
    package func revoke(_ held: HeldCredentials, of tenant: Tenant) async -> Revocation {
        guard let server = try? await servers.server(for: tenant) else { return .failed }
        if server.revocationEndpoint == nil { return .unsupported }
        let isRevoked = await endpoint.revoke(held, for: tenant.configuration.client, at: server)
        return isRevoked ? .revoked : .failed
    }

    package enum Revocation: String, Sendable {
        case revoked
        case failed
        case unsupported
    }

    // MARK: Living on

    /// Forgets the credentials of a tenant that was deleted.
    package func forget(tenant: TenantName) {
        records.forget(tenant: tenant)
    }

    /// Suspends until no renewal is in flight: what a provider has granted is stored by then.
    package func idle() async {
        await flights.idle()
    }

    /// Has the renewals in flight wait for nothing any more. What a provider has granted is lost where the store does
    /// not take it at once.
    /// - Returns: how many there are.
    package func cutShort() -> Int {
        defer { flights.cancelAll() }
        return flights.count
    }
}

extension BrokerError {
    /// Whatever kept an upgrade from succeeding is told as something that may be over next time: the user stays
    /// logged in with what is stored.
    fileprivate var asFailedUpgrade: BrokerError {
        if code.status == .serviceUnavailable || code == .notFound { return self }
        return BrokerError(
            .retryableError,
            "The stored credentials were obtained with another client configuration, and carrying them over to the "
                + "present one failed: \(detail)", errorCode: errorCode, retryAfter: 5)
    }
}
