internal import CredentialStore
internal import Cryptography
internal import HTTPCodec
internal import OAuth
internal import Reactor

/// Renewing: one at a time for a storage key, in this process by the single flight and among replicas by the lease.
extension CredentialsProvider {
    /// What a renewal came to.
    enum Renewed: Sendable {
        /// Granted, and so fit to be served: stored, or safe in the journal until it can be.
        /// - Parameter life: how long they had to live when they were granted; nil where the session ended.
        case new(CredentialsSnapshot, life: Duration?)
        /// Somebody else's change came first. Decide again.
        case overtaken
    }

    /// What every step of one renewal knows.
    struct Renewal: Sendable {
        let id: CredentialsID
        let tenant: Tenant
        /// What it started from.
        let current: CredentialsSnapshot
        /// What the provider is asked for; nil when it is not asked.
        let grant: TokenRequest.Grant?
        let refreshID: RefreshID
        let lease: RenewalLease
        let urgency: ProviderBudget.Urgency
        /// Whether it starts from what is in memory. Until its claim shows that this is what is stored, it is an attempt that
        /// nobody is told of.
        let isAssumed: Bool
        var counts: Bool { !isAssumed || lease.claim == .made }
    }

    /// How often it is looked whether another replica has finished, beside its telling so.
    static let lookInterval: Duration = .seconds(1)

    /// Re-decides, acts and publishes. Runs once at a time for a storage key.
    ///
    /// It starts from what is in memory where every change of that would have been heard of, and the provider can be asked
    /// at once: the lease is given on exactly that version, so that the claim tells what a look would have told. Where it
    /// is not given, what is stored is read.
    /// - Parameter urgency: in the background, another replica's renewal is as good as one's own.
    func renew(
        _ id: CredentialsID, of tenant: Tenant, _ query: CredentialsQuery, _ urgency: ProviderBudget.Urgency = .caller
    ) async -> Result<Renewed, BrokerError> {
        var waitedSince: MonotonicInstant?
        defer { if let waitedSince { metrics.waitedForLease(waitedSince.duration(to: time.monotonic)) } }
        // A store that has lost its last commits gives their versions to other contents, which only who follows it hears of.
        var known = records.isFollowing ? cache.fresh(id, now: time.monotonic) : nil
        while true {
            let ticket = records.changes.ticket(id)
            if records.unpublished(id) != nil {
                // The store has the spent refresh token, and only the one in the journal is any good.
                guard await isPublished(id, since: ticket) else { return .failure(BrokerError(StoreError.unavailable)) }
                return .success(.overtaken)
            }
            if let snapshot = known {
                known = nil
                if let result = await renew(assuming: snapshot, id, tenant, query, urgency) { return result }
            }
            let standing: (snapshot: CredentialsSnapshot, lease: Lease?)
            do throws(StoreError) {
                standing = try await records.standing(id)
            } catch {
                records.report(error, id)
                return .failure(BrokerError(error))
            }
            let decision = decide(standing.snapshot, standing.lease, tenant, query, id)
            let renewal = Renewal(
                id: id, tenant: tenant, current: standing.snapshot, over: standing.lease,
                grant: Self.grant(of: decision), urgency, self)
            if renewal.grant == nil, decision != .retire {
                await settleAbandoned(standing.lease, renewal)
                return .success(.overtaken)
            }
            // What nobody is asked about takes no lease; but a refresh token is not put away while another replica may be
            // exchanging it.
            let heedsLease = renewal.grant != nil || standing.snapshot.record.held?.refreshToken != nil
            guard let lease = standing.lease, heedsLease else { return await carryOut(decision, renewal) }
            if lease.hasRunOut, await records.mayTakeOver(lease) { return await carryOut(decision, renewal) }
            // Another replica renews. It ends by telling so, or its lease runs out.
            if urgency == .background { return .success(.overtaken) }
            waitedSince = waitedSince ?? time.monotonic
            let pause = lease.hasRunOut ? Self.lookInterval : min(Self.lookInterval, lease.remaining)
            await records.changes.wait(for: id, since: ticket) { try? await self.time.sleep(for: pause) }
            if Task.isCancelled {
                return .failure(BrokerError(.retryableError, "The broker is shutting down.", retryAfter: 1))
            }
        }
    }

    /// Renews what is in memory. Nil where it is not what is stored, where it is nothing to ask the provider about, and where
    /// the provider cannot be asked at once: then nothing was done, and another replica may have done it.
    private func renew(
        assuming snapshot: CredentialsSnapshot, _ id: CredentialsID, _ tenant: Tenant, _ query: CredentialsQuery,
        _ urgency: ProviderBudget.Urgency
    ) async -> Result<Renewed, BrokerError>? {
        let decision = decide(snapshot, tenant, query, id)
        // There is no lease on what is not there.
        guard let grant = Self.grant(of: decision), snapshot.version > 0 else { return nil }
        let renewal = Renewal(
            id: id, tenant: tenant, current: snapshot, over: nil, grant: grant, urgency, self, isAssumed: true)
        let result = await carryOut(decision, renewal)
        switch renewal.lease.claim {
        case .made, .failed: return result
        case .notMade, .refused: return nil
        }
    }

    /// Like the decision about a query; but where a replica died while it renewed, the refresh token is tried at once,
    /// however good the access token still is: providers take a spent one for some seconds only.
    private func decide(
        _ current: CredentialsSnapshot, _ lease: Lease?, _ tenant: Tenant, _ query: CredentialsQuery,
        _ id: CredentialsID
    ) -> CredentialsDecision {
        let decision = decide(current, tenant, query, id)
        guard Self.grant(of: decision) == nil, let lease, lease.hasRunOut, !lease.wasGivenUp,
            current.record.held?.refreshToken != nil
        else { return decision }
        let forced = CredentialsQuery(policy: .localForceRefresh, minimumLifetime: .zero)
        let recovery = decide(current, tenant, forced, id)
        return Self.grant(of: recovery)?.spendsRefreshToken == true ? recovery : decision
    }

    /// Takes away the lease of a holder that died over something that nothing needs to be done about any more.
    private func settleAbandoned(_ lease: Lease?, _ renewal: Renewal) async {
        guard let lease, lease.hasRunOut, !lease.wasGivenUp else { return }
        // Where another provider is configured meanwhile, what became of the refresh token is found out once the one that
        // granted it is again.
        let granted = renewal.current.record.held?.grantedBy
        let change = VaultChange.release(
            CredentialsRecords.recordID(renewal.id), version: renewal.current.version, holder: lease.holder,
            isSettled: providers(of: renewal.tenant).difference(from: granted) == nil)
        do throws(StoreError) {
            try await records.commit([change])
        } catch {
            // Somebody else has seen to it, or the next look does.
            if error != .conflict { records.report(error, renewal.id) }
        }
    }

    private func carryOut(
        _ decision: CredentialsDecision, _ renewal: Renewal
    ) async -> Result<Renewed, BrokerError> {
        let start = time.monotonic
        let result: Result<Renewed, BrokerError>
        let outcome: Metrics.Renewal
        do throws(BrokerError) {
            switch decision {
            case .serve, .serveBasic, .missing, .levelNotAvailable, .expiredOnArrival, .keptForOtherProvider:
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
            // A store that takes nothing makes callers wait as a provider does that does not answer.
            if decision == .refresh(isEarly: true), renewal.counts || renewal.lease.claim == .failed {
                pauseEarlyRenewal(renewal.id, of: renewal.current.version, for: Self.pauseAfterEarlyFailure)
            }
        }
        if renewal.counts { finish(renewal, outcome, result, took: start.duration(to: time.monotonic)) }
        return result
    }

    private static func grant(of decision: CredentialsDecision) -> TokenRequest.Grant? {
        switch decision {
        case .refresh: .refreshToken
        case .upgrade: .upgrade
        case .obtainClientCredentials: .clientCredentials
        case .serve, .serveBasic, .retire, .expiredOnArrival, .missing, .levelNotAvailable, .keptForOtherProvider: nil
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
        case .success(.new(let snapshot, _)):
            if renewal.grant == .refreshToken, snapshot.record.held == nil {
                let isUncertain = renewal.lease.isUncertain || records.rollback.isDoubtful(renewal.current.version)
                outcome = isUncertain ? .sessionLost : .sessionEnded
            }
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
        case .sessionLost: log.error("session_lost", fields)
        case .failed: log.warning("renewal_failed", fields)
        }
    }

    /// Whether the configuration that a renewal goes by is the stored one. A replica may not have heard of a new one
    /// yet: what is final must not be done by the old one.
    private func isCurrent(_ tenant: Tenant) async throws(BrokerError) -> Bool {
        try await tenants.currentTenant(tenant.name)?.version == tenant.version
    }

    /// Takes a place at the provider and the lease, in that order, and asks. Nil where somebody else was faster.
    private func ask(
        _ renewal: Renewal, _ request: TokenRequest, at server: AuthorizationServer, retriesEveryFailure: Bool = false
    ) async throws(BrokerError) -> Result<TokenResponse, TokenEndpoint.Failure>? {
        let client = renewal.tenant.configuration.client
        let spends = renewal.grant?.spendsRefreshToken == true
        if spends { try await records.waitForOthersAfterRollback(renewal.id, renewal.current.version) }
        return try await endpoint.budget.withPlace(
            for: client, at: server, of: renewal.tenant.name, renewal.urgency, mayWait: !renewal.isAssumed
        ) { () async throws(BrokerError) in
            guard try await self.begin(renewal) else { return nil }
            // The claim may have been the first to meet a store that has gone back.
            if spends, self.records.rollback.remainingHold != nil {
                await self.letGo(renewal, BrokerError(.retryableError, "The store has gone back."))
                return nil
            }
            do throws(TokenEndpoint.Failure) {
                return .success(
                    try await self.endpoint.request(
                        request, for: client, at: server, as: renewal.refreshID, under: renewal.lease,
                        retriesEveryFailure: retriesEveryFailure))
            } catch .overtaken {
                await self.letGo(renewal, TokenEndpoint.Failure.overtaken.reason, isOvertaken: true)
                return nil
            } catch {
                return .failure(error)
            }
        }
    }

    private func refresh(_ renewal: Renewal) async throws(BrokerError) -> Renewed {
        let client = renewal.tenant.configuration.client
        guard let held = renewal.current.record.held, let refreshToken = held.refreshToken else { return .overtaken }
        // Only its metadata may have shown that the provider is another one; the next decision knows it.
        guard let server = try await server(for: renewal.tenant, holding: held) else { return .overtaken }
        let response: TokenResponse
        switch try await ask(renewal, .refresh(refreshToken), at: server) {
        case nil, .failure(.overtaken)?: return .overtaken
        case .success(let granted)?: response = granted
        case .failure(.failed(let reason))?:
            await letGo(renewal, reason)
            throw reason
        case .failure(.sessionEnded(let answer))?: return try await end(renewal, held, answer)
        }
        var renewed = HeldCredentials(
            granted: response, level: .user, to: client, by: server, replacing: held, now: time.now)
        renewed.obtainedWith = held.obtainedWith.refreshed(by: client.fingerprint)
        let result = try await publish(
            renewal, CredentialRecord(held: renewed), events: granted(renewal, renewed, .refresh))
        // A token that lives no longer than the lead time would be due again at once, and at every read.
        if case .new(let snapshot, let life?) = result, life <= renewal.tenant.terms.leadTime {
            pauseEarlyRenewal(renewal.id, of: snapshot.version, for: life / 2)
        }
        return result
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
        let answer: Result<TokenResponse, TokenEndpoint.Failure>?
        do throws(BrokerError) {
            guard let present = try await self.server(for: renewal.tenant, holding: held) else { return .overtaken }
            server = present
            answer = try await ask(
                renewal, .upgrade(refreshToken, grantType: grantType), at: server, retriesEveryFailure: true)
        } catch {
            throw error.asFailedUpgrade
        }
        let response: TokenResponse
        switch answer {
        case nil, .failure(.overtaken)?: return .overtaken
        case .success(let granted)?: response = granted
        case .failure(let failure)?:
            let reason = failure.reason.asFailedUpgrade
            await letGo(renewal, reason)
            throw reason
        }
        let upgraded = HeldCredentials(
            granted: response, level: .user, to: client, by: server, replacing: held, now: time.now)
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
            switch try await ask(renewal, .clientCredentials, at: server, retriesEveryFailure: isUpgrade) {
            case nil, .failure(.overtaken)?: return .overtaken
            case .success(let granted)?: response = granted
            case .failure(let failure)?:
                await letGo(renewal, failure.reason)
                throw failure.reason
            }
        } catch {
            throw isUpgrade ? error.asFailedUpgrade : error
        }
        let obtained = HeldCredentials(
            granted: response, level: .client, to: client, by: server,
            requested: server.preset.scopesClientCredentials ? client.scopes : .empty, now: time.now)
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
    ///
    /// Where the refresh token may have been spent by a call whose answer was lost, the refusal need not be the
    /// provider's or the user's will, and the events and the metrics tell it apart.
    private func end(
        _ renewal: Renewal, _ held: HeldCredentials, _ answer: TokenErrorResponse
    ) async throws(BrokerError) -> Renewed {
        let (id, now, errorCode) = (renewal.id, time.now, answer.errorCode)
        do throws(BrokerError) {
            guard try await isCurrent(renewal.tenant) else {
                // It may have been the old secret that was refused.
                await letGo(
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
            await letGo(renewal, error)
            throw error
        }
        let reason = BrokerError(.unexpectedError, "The provider ended the session.", errorCode: errorCode)
        let tombstone = CredentialRecord(held: nil, ended: held.refreshTokenDigest)
        let isUncertain = renewal.lease.isUncertain || records.rollback.isDoubtful(renewal.current.version)
        return try await publish(renewal, tombstone, aside: .keep(held, for: quarantine)) { version in
            [
                .deauthorized(
                    id, from: held, version: version, by: .revoked, isUncertain: isUncertain, renewal.refreshID,
                    at: now),
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

    /// Claims the lease, and writes down that a renewal begins, before the provider is asked: a store that cannot be
    /// written to could not take its answer either, and then the refresh token had better not be spent.
    /// - Returns: false where somebody else was faster.
    private func begin(_ renewal: Renewal) async throws(BrokerError) -> Bool {
        let (id, now) = (renewal.id, time.now)
        guard let grant = renewal.grant else { return true }
        let events: [BrokerEvent] =
            grant.spendsRefreshToken
            ? BrokerEvent.steps(
                [.refreshStarted, .refreshRefreshingAccessToken], id, grant, renewal.refreshID, at: now) : []
        do throws(StoreError) {
            try await renewal.lease.claim(telling: events)
            return true
        } catch .conflict {
            return false
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
            var events = BrokerEvent.steps(
                [.refreshRefreshedAccessToken, .refreshSavingTokens, .refreshSucceeded], id, grant, refreshID, at: now)
            events.insert(
                .updated(id, to: held, version: version, by: origin, refreshID, at: now), at: events.endIndex - 1)
            return events
        }
    }

    /// Gives the lease back and tells how the renewal ended that brought nothing. Where the store does not take it, the
    /// lease runs out by itself, this process knows that nothing comes of it, and a listener misses the event; the log has
    /// it.
    /// - Parameter isOvertaken: whether another one's change has taken the lease away already.
    func letGo(_ renewal: Renewal, _ reason: BrokerError, isOvertaken: Bool = false) async {
        var events: [BrokerEvent] = []
        if let grant = renewal.grant, grant.spendsRefreshToken {
            events = [.refreshFailed(renewal.id, grant, reason, renewal.refreshID, at: time.now)]
        }
        do throws(StoreError) {
            do throws(StoreError) {
                try await records.tell(events, of: renewal.id, with: isOvertaken ? [] : renewal.lease.release())
            } catch .conflict {
                try await records.tell(events, of: renewal.id)
            }
        } catch {
            if error == .conflict { return }
            if let holder = renewal.lease.holder { records.noteAbandoned(holder) }
            log.warning("event_not_stored", LogField.credentials(renewal.id) + [.store(error)])
        }
    }
}

extension CredentialsProvider.Renewal {
    fileprivate init(
        id: CredentialsID, tenant: Tenant, current: CredentialsSnapshot, over lease: Lease?,
        grant: TokenRequest.Grant?, _ urgency: ProviderBudget.Urgency, _ provider: CredentialsProvider,
        isAssumed: Bool = false
    ) {
        let refreshID = RefreshID()
        self.init(
            id: id, tenant: tenant, current: current, grant: grant, refreshID: refreshID,
            lease: RenewalLease(
                id, version: current.version, over: lease, as: refreshID,
                spendsRefreshToken: grant?.spendsRefreshToken == true, callLimit: provider.callLimit,
                records: provider.records, time: provider.time, stop: provider.stop),
            urgency: urgency, isAssumed: isAssumed)
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
