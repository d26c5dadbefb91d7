package import CredentialStore
internal import Cryptography
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

    private let vault: Vault
    private let tenants: TenantDirectory
    private let servers: ProviderServers
    private let endpoint: TokenEndpoint
    private let time: any Time
    private let metrics: Metrics
    private let log: Log
    private let quarantine: Duration
    private let policy = CredentialsPolicy()
    private let cache: RevalidatingCache<CredentialsID, CredentialsSnapshot>
    private let versions = VersionSource()
    private let flights = SingleFlight<CredentialsID, Result<Renewed, BrokerError>>()

    /// - Parameter quarantine: how long credentials that the provider ended are kept aside.
    package init(
        vault: Vault, tenants: TenantDirectory, servers: ProviderServers, endpoint: TokenEndpoint, time: any Time,
        metrics: Metrics, log: Log, quarantine: Duration, cacheCapacity: Int
    ) {
        self.vault = vault
        self.tenants = tenants
        self.servers = servers
        self.endpoint = endpoint
        self.time = time
        self.metrics = metrics
        self.log = log
        self.quarantine = quarantine
        cache = RevalidatingCache(capacity: cacheCapacity, validity: vault.revalidateAfter)
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
        // Each round ends in an answer, an error, or the news that somebody else changed the record meanwhile.
        for _ in 0..<16 {
            let snapshot = try await snapshot(id)
            if query.renewedPast == nil { query.renewedPast = snapshot.version }
            let decision = policy.decide(
                snapshot.record.held, version: snapshot.version,
                terms: tenant.terms, query: query, now: time.now)
            switch decision {
            case .serve, .serveBasic, .missing, .levelNotAvailable, .expiredOnArrival:
                return try answer(decision, snapshot, tenant, outcome)
            case .refresh, .upgrade, .obtainClientCredentials, .retire:
                let (owner, asked) = (tenant, query)
                let run = await flights.run(id, within: timer(until: deadline)) {
                    await self.renew(id, of: owner, asked)
                }
                guard let run else {
                    throw BrokerError(
                        .retryableError, "The credentials are still being renewed. Ask again.", retryAfter: 1)
                }
                outcome = run.isOwn ? .renewed : .joined
                switch try run.value.get() {
                case .new(let renewed):
                    // The session ended in this very call. A local policy found something stored, so what it gets is
                    // the next lower level, as with every logout.
                    if renewed.record.held == nil { query.policy = .localValid }
                    let decision = policy.serves(
                        renewed: renewed.record.held,
                        terms: tenant.terms, query: query, now: time.now)
                    switch decision {
                    case .serve, .levelNotAvailable, .expiredOnArrival:
                        return try answer(decision, renewed, tenant, outcome)
                    default: break
                    }
                case .overtaken:
                    guard let current = try await tenants.currentTenant(id.tenant) else {
                        throw BrokerError.noSuchTenant
                    }
                    tenant = current
                }
            }
        }
        throw BrokerError(.retryableError, "The credentials kept changing. Ask again.", retryAfter: 1)
    }

    private func timer(until deadline: MonotonicInstant?) -> (@Sendable () async -> Void)? {
        guard let deadline else { return nil }
        // A sleep that ends early, because the wait is over, has nobody left to tell.
        return { _ = try? await self.time.sleep(for: max(.zero, self.time.monotonic.duration(to: deadline))) }
    }

    /// What is stored, whatever its age. Never calls the provider.
    package func stored(_ id: CredentialsID) async throws(BrokerError) -> CredentialsSnapshot {
        try await snapshot(id)
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

    private func snapshot(_ id: CredentialsID) async throws(BrokerError) -> CredentialsSnapshot {
        if let snapshot = cache.fresh(id, now: time.monotonic) { return snapshot }
        do throws(StoreError) {
            return try await reread(id)
        } catch {
            // What is in memory was true when it was read; a token of it that is still good is better than none.
            if error == .unavailable, let known = cache.any(id) { return known }
            report(error, id)
            throw BrokerError(error)
        }
    }

    /// What is stored, whatever is in memory.
    private func reread(_ id: CredentialsID) async throws(StoreError) -> CredentialsSnapshot {
        let ticket = cache.ticket(id, now: time.monotonic)
        guard let record = try await vault.read(Self.recordID(id)) else {
            cache.fill(id, .nothing, ticket)
            return .nothing
        }
        guard let content = CredentialRecord(decoding: record.content.revealedBytes) else {
            throw .damaged("a credentials record of tenant \(id.tenant) cannot be read by this version")
        }
        let snapshot = CredentialsSnapshot(record: content, version: record.version)
        cache.fill(id, snapshot, ticket)
        return snapshot
    }

    // MARK: Renewing

    /// What a renewal came to.
    private enum Renewed: Sendable {
        /// Stored, and so fit to be served.
        case new(CredentialsSnapshot)
        /// Somebody else's change came first. Decide again.
        case overtaken
    }

    /// Re-reads, re-decides, acts and publishes. Runs once at a time for a storage key.
    private func renew(
        _ id: CredentialsID, of tenant: Tenant, _ query: CredentialsQuery
    ) async -> Result<Renewed, BrokerError> {
        let refreshID = RefreshID()
        let start = time.monotonic
        let current: CredentialsSnapshot
        do throws(StoreError) {
            current = try await reread(id)
        } catch {
            report(error, id)
            return .failure(BrokerError(error))
        }
        let decision = policy.decide(
            current.record.held, version: current.version,
            terms: tenant.terms, query: query, now: time.now)
        let result: Result<Renewed, BrokerError>
        let outcome: Metrics.Renewal
        do throws(BrokerError) {
            switch decision {
            case .serve, .serveBasic, .missing, .levelNotAvailable, .expiredOnArrival, .upgrade:
                return .success(.overtaken)
            case .refresh:
                (result, outcome) = (.success(try await refresh(id, of: tenant, current, refreshID)), .succeeded)
            case .obtainClientCredentials:
                (result, outcome) = (
                    .success(try await obtainClientCredentials(id, of: tenant, current, refreshID)), .succeeded
                )
            case .retire:
                (result, outcome) = (.success(try await retire(id, of: tenant, current, aside: nil)), .retired)
            }
        } catch {
            (result, outcome) = (.failure(error), .failed)
        }
        finish(id, tenant, decision, outcome, result, refreshID, took: start.duration(to: time.monotonic))
        return result
    }

    private func finish(
        _ id: CredentialsID, _ tenant: Tenant, _ decision: CredentialsDecision, _ outcome: Metrics.Renewal,
        _ result: Result<Renewed, BrokerError>, _ refreshID: RefreshID, took duration: Duration
    ) {
        var outcome = outcome
        var fields: [LogField] = LogField.credentials(id) + [.refresh(refreshID), .duration(duration)]
        switch result {
        case .success(.overtaken): outcome = .overtaken
        case .success(.new(let snapshot)):
            if case .refresh = decision, snapshot.record.held == nil { outcome = .sessionEnded }
            fields.append(.version(snapshot.version))
        case .failure(let error): fields.append(.code(error.code))
        }
        let grant: TokenRequest.Grant? =
            switch decision {
            case .refresh: .refreshToken
            case .upgrade: .upgrade
            case .obtainClientCredentials: .clientCredentials
            default: nil
            }
        metrics.renewalEnded(provider: tenant.configuration.preset.name, grant, outcome, took: duration)
        switch outcome {
        case .succeeded: log.info("credentials_renewed", fields)
        case .overtaken: log.info("renewal_overtaken", fields)
        case .retired: log.info("credentials_retired", fields)
        case .sessionEnded: log.warning("session_ended_by_provider", fields)
        case .failed: log.warning("renewal_failed", fields)
        }
    }

    private func refresh(
        _ id: CredentialsID, of tenant: Tenant, _ current: CredentialsSnapshot, _ refreshID: RefreshID
    ) async throws(BrokerError) -> Renewed {
        guard let held = current.record.held, let refreshToken = held.refreshToken else { return .overtaken }
        let server = try await servers.server(for: tenant)
        let client = tenant.configuration.client
        let response: TokenResponse
        do throws(TokenEndpoint.Failure) {
            response = try await endpoint.request(.refresh(refreshToken), for: client, at: server, as: refreshID)
        } catch {
            switch error {
            case .failed(let reason): throw reason
            case .sessionEnded(let answer):
                // A refusal of another client than the one that logged the user in says nothing about the session.
                if !held.isEnded(by: answer, refreshedBy: client.fingerprint) {
                    throw BrokerError(
                        .unexpectedError,
                        "The provider refused to refresh credentials that the tenant's earlier client_id or client_secret "
                            + "obtained. Configure those again, or have the user log in anew.",
                        errorCode: answer.error)
                }
                return try await retire(id, of: tenant, current, aside: held)
            }
        }
        let renewed = HeldCredentials(
            granted: response, level: .user, to: client, replacing: held,
            defaultLifetime: server.preset.defaultLifetime, now: time.now)
        return try await publish(
            CredentialRecord(held: renewed, ended: current.record.ended), id, of: tenant,
            replacing: current)
    }

    private func obtainClientCredentials(
        _ id: CredentialsID, of tenant: Tenant, _ current: CredentialsSnapshot, _ refreshID: RefreshID
    ) async throws(BrokerError) -> Renewed {
        let server = try await servers.server(for: tenant)
        let client = tenant.configuration.client
        let response: TokenResponse
        do throws(TokenEndpoint.Failure) {
            response = try await endpoint.request(.clientCredentials, for: client, at: server, as: refreshID)
        } catch {
            switch error {
            case .failed(let reason): throw reason
            case .sessionEnded(let answer):
                // No session is behind client credentials, so no answer can end one.
                throw BrokerError(
                    .illegalConfiguration, "The provider does not grant this client credentials.",
                    errorCode: answer.subStatus ?? answer.error)
            }
        }
        let obtained = HeldCredentials(
            granted: response, level: .client, to: client,
            requested: server.preset.scopesClientCredentials ? client.scopes : .empty,
            defaultLifetime: server.preset.defaultLifetime, now: time.now)
        return try await publish(
            CredentialRecord(held: obtained, ended: current.record.ended), id, of: tenant,
            replacing: current)
    }

    /// Leaves a tombstone. Conflicts are news, not failures: a sibling that has refreshed meanwhile, or a new login,
    /// shows that the session goes on.
    private func retire(
        _ id: CredentialsID, of tenant: Tenant, _ current: CredentialsSnapshot, aside ended: HeldCredentials?
    ) async throws(BrokerError) -> Renewed {
        let mark = ended?.refreshTokenDigest ?? current.record.ended
        return try await publish(CredentialRecord(held: nil, ended: mark), id, of: tenant, replacing: current)
    }

    /// Stores what a renewal brought, in place of exactly what it started from.
    ///
    /// A provider may have replaced the refresh token by now, so a store that is away is asked until it answers: the
    /// callers' patience may end meanwhile, the result may not be lost.
    private func publish(
        _ record: CredentialRecord, _ id: CredentialsID, of tenant: Tenant, replacing current: CredentialsSnapshot
    ) async throws(BrokerError) -> Renewed {
        let (changes, version) = changes(record, id, over: current)
        var tries = 0
        while true {
            do throws(StoreError) {
                // A record that is replaced belongs to the tenant that the renewal began with. One that is new would
                // as well be stored for a tenant that was made under the same name meanwhile, or configured anew.
                if current.version == 0,
                    try await vault.read(RecordID(.tenant, id.tenant))?.version != tenant.version
                {
                    throw .conflict
                }
                let ticket = cache.ticket(id, now: time.monotonic)
                try await vault.commit(changes)
                return remember(record, version, id, ticket)
            } catch .conflict {
                return try await settle(record, version, id, of: tenant, replacing: current, mayBeOurs: tries > 0)
            } catch .unavailable {
                tries += 1
                try await waitForStore(beforeTry: tries, id)
            } catch {
                report(error, id)
                throw BrokerError(error)
            }
        }
    }

    /// After a conflict: whether the record that stands there is the one that an earlier try wrote after all, or one
    /// that our grant refutes.
    private func settle(
        _ record: CredentialRecord, _ version: Int64, _ id: CredentialsID, of tenant: Tenant,
        replacing current: CredentialsSnapshot, mayBeOurs: Bool
    ) async throws(BrokerError) -> Renewed {
        // What is in memory is what the renewal started from, and that is over.
        cache.remove(id)
        let ticket = cache.ticket(id, now: time.monotonic)
        let standing: CredentialsSnapshot
        let tenantExists: Bool
        do throws(StoreError) {
            standing = try await reread(id)
            tenantExists = try await vault.read(RecordID(.tenant, id.tenant)) != nil
        } catch {
            report(error, id)
            throw BrokerError(error)
        }
        if mayBeOurs, standing.version == version, standing.record == record {
            return remember(record, version, id, ticket)
        }
        guard tenantExists else { throw BrokerError(.notFound, "The tenant was deleted meanwhile.") }
        if Self.isRefuted(standing.record, by: record, from: current.record) {
            return try await publish(record, id, of: tenant, replacing: standing)
        }
        return .overtaken
    }

    /// Whether another replica took the session for ended because the refresh token was refused that we had just
    /// exchanged, and came to the store before us. What we were granted shows that the session goes on. A logout keeps
    /// nothing aside, so that it is never taken for that.
    private static func isRefuted(
        _ standing: CredentialRecord, by granted: CredentialRecord, from spent: CredentialRecord
    ) -> Bool {
        guard granted.held?.level == .user, standing.held?.level != .user,
            let digest = spent.held?.refreshTokenDigest
        else { return false }
        return standing.ended == digest
    }

    private func remember(
        _ record: CredentialRecord, _ version: Int64, _ id: CredentialsID,
        _ ticket: RevalidatingCache<CredentialsID, CredentialsSnapshot>.Ticket
    ) -> Renewed {
        let snapshot = CredentialsSnapshot(record: record, version: version)
        cache.put(id, snapshot, ticket)
        return .new(snapshot)
    }

    // MARK: Writing from outside

    /// What is committed together with new credentials, made anew for each try; nil when there is no longer a reason
    /// to store them.
    package typealias Companions = () async throws(StoreError) -> [VaultChange]?

    /// Stores credentials over whatever is there (TIDAL's Auth design, "Setting credentials").
    package func set(_ id: CredentialsID, to held: HeldCredentials) async throws(BrokerError) -> CredentialsSnapshot {
        do throws(StoreError) {
            let snapshot = try await overwrite(id, with: CredentialRecord(held: held)) { () throws(StoreError) in [] }
            guard let snapshot else { throw .conflict }
            return snapshot
        } catch .conflict {
            throw BrokerError(.notFound, "The tenant was deleted meanwhile.")
        } catch {
            report(error, id)
            throw BrokerError(error)
        }
    }

    /// Stores what a login brought, over whatever is there. A code is redeemed once, so a store that is away is asked
    /// until it answers.
    /// - Returns: nil when `companions` saw that the login no longer counts.
    package func settle(
        login held: HeldCredentials, for id: CredentialsID, alongside companions: Companions
    ) async throws(BrokerError) -> CredentialsSnapshot? {
        let record = CredentialRecord(held: held)
        var tries = 0
        while true {
            do throws(StoreError) {
                if let snapshot = try await overwrite(id, with: record, companions) { return snapshot }
                // An earlier try may have arrived although its answer did not.
                let standing = try await reread(id)
                return standing.record == record ? standing : nil
            } catch .unavailable {
                tries += 1
                try await waitForStore(beforeTry: tries, id)
            } catch {
                report(error, id)
                throw BrokerError(error)
            }
        }
    }

    /// Purges user and client credentials and what was kept aside (TIDAL's Auth design, "logout"). A
    /// renewal in flight loses its compare-and-set against this and cannot bring the user back.
    /// - Returns: what was purged; nil when nothing was there.
    package func purge(_ id: CredentialsID) async throws(BrokerError) -> HeldCredentials? {
        do throws(StoreError) {
            return try await retryingConflicts { () async throws(StoreError) in
                let current = try await self.reread(id)
                let nothing = CredentialRecord(held: nil)
                if current.version == 0 || current.record == nothing { return nil }
                try await self.write(nothing, id, over: current, alongside: [])
                return current.record.held
            }
        } catch {
            report(error, id)
            throw BrokerError(error)
        }
    }

    private func overwrite(
        _ id: CredentialsID, with record: CredentialRecord, _ companions: Companions
    ) async throws(StoreError) -> CredentialsSnapshot? {
        try await retryingConflicts { () async throws(StoreError) in
            guard let others = try await companions() else { return nil }
            let current = try await self.reread(id)
            return try await self.write(record, id, over: current, alongside: others)
        }
    }

    @discardableResult
    private func write(
        _ record: CredentialRecord, _ id: CredentialsID, over current: CredentialsSnapshot,
        alongside others: [VaultChange]
    ) async throws(StoreError) -> CredentialsSnapshot {
        let (changes, version) = changes(record, id, over: current)
        let ticket = cache.ticket(id, now: time.monotonic)
        do throws(StoreError) {
            try await vault.commit(others + changes)
        } catch {
            // The change may have arrived all the same.
            if error == .unavailable { cache.remove(id) }
            throw error
        }
        let snapshot = CredentialsSnapshot(record: record, version: version)
        cache.put(id, snapshot, ticket)
        return snapshot
    }

    private func changes(
        _ record: CredentialRecord, _ id: CredentialsID, over current: CredentialsSnapshot
    ) -> (changes: [VaultChange], version: Int64) {
        let version =
            current.version == 0 ? versions.first(at: time.now) : versions.next(after: current.version)
        let open = OpenRecord(id: Self.recordID(id), version: version, content: SecretBytes(record.encoded))
        if current.version == 0 { return ([.require(RecordID(.tenant, id.tenant)), .insert(open)], version) }
        return ([.replace(open, version: current.version)], version)
    }

    /// Lets a store that is away come back.
    /// - Throws: `storage_unavailable` when the wait is cut short, because the broker is being stopped.
    private func waitForStore(beforeTry tries: Int, _ id: CredentialsID) async throws(BrokerError) {
        report(.unavailable, id)
        do {
            try await time.sleep(for: Self.pause(beforeTry: tries))
        } catch {
            throw BrokerError(StoreError.unavailable)
        }
    }

    /// 0.2, 0.4, 0.8, 1.6, 3.2, then every 5 seconds.
    static func pause(beforeTry tries: Int) -> Duration {
        min(.milliseconds(100 << min(tries, 6)), .seconds(5))
    }

    /// Tells the provider that a token is no longer wanted.
    package func revoke(_ held: HeldCredentials, of tenant: Tenant) async -> Revocation {
        guard let server = try? await servers.server(for: tenant) else { return .failed }
        if server.revocationEndpoint == nil { return .unsupported }
        let token = held.refreshToken ?? held.accessToken
        let isRevoked = await endpoint.revoke(
            token, isRefreshToken: held.refreshToken != nil, for: tenant.configuration.client, at: server)
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
        cache.removeAll { id, _ in id.tenant == tenant }
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

    private func report(_ error: StoreError, _ id: CredentialsID) {
        log.error("store_failed", LogField.credentials(id) + [.store(error)])
    }

    private static func recordID(_ id: CredentialsID) -> RecordID {
        RecordID(.credentials, id.tenant, key: id.storageKey.description)
    }
}
