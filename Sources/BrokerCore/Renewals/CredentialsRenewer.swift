internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import OAuth
internal import Reactor
internal import Renewal
internal import Waiting

/// Renews credentials: one renewal at a time of a storage key, in this process by the single flight and among replicas by
/// the lease.
package final class CredentialsRenewer: Sendable {
    /// What a renewal came to.
    enum Renewed: Sendable {
        /// Granted, and so fit to be served: stored, or safe in the journal until it can be.
        /// - Parameter life: how long they had to live when they were granted; nil where the session ended.
        case new(CredentialsSnapshot, life: Duration?)
        /// Another change came first. Decide again.
        case overtaken
    }

    let records: CredentialsRecords
    let tenants: TenantDirectory
    let providers: ProviderAccess
    let decider: CredentialsDecider
    /// Stores what was granted.
    let publisher: CredentialsPublisher
    let holders: LeaseHolders
    let keeper: LeaseKeeper
    let abandoned = AbandonedLeases()
    let failures: RenewalFailures
    let clientFaults: ClientFaults
    /// Closed when the broker is about to stop.
    let stop = KeyedSignal<Int>()
    /// How long credentials that the provider ended are kept aside; zero keeps nothing.
    let quarantine: Duration
    let time: any Time
    let log: Log
    let metrics: Metrics
    private let flights: SingleFlight<CredentialsID, Result<Renewed, BrokerError>>

    /// - Parameters:
    ///   - journal: nil keeps what cannot be stored in memory only.
    ///   - quarantine: how long credentials that the provider ended are kept aside; zero keeps nothing.
    init(
        records: CredentialsRecords, tenants: TenantDirectory, providers: ProviderAccess, bus: EventBus,
        journal: Journal?, quarantine: Duration, instruments: Instruments
    ) {
        (time, log, metrics) = (instruments.time, instruments.log, instruments.metrics)
        self.records = records
        self.tenants = tenants
        self.providers = providers
        self.quarantine = quarantine
        decider = CredentialsDecider(servers: providers.servers, time: time)
        holders = LeaseHolders(isOnlyWriter: !records.isShared)
        keeper = LeaseKeeper(records: records, time: time)
        failures = RenewalFailures(isShared: records.isShared)
        clientFaults = ClientFaults(records: records, bus: bus, time: time, log: log)
        publisher = CredentialsPublisher(
            records: records, holders: holders, journal: journal, quarantine: quarantine,
            callLimit: providers.callLimit,
            time: time, log: log)
        flights = SingleFlight(on: providers.endpoint.executor)
    }

    // MARK: Callers

    /// Re-decides, acts and publishes, or joins the renewal that is under way. A renewal that this call starts or joins
    /// goes on when the caller stops waiting.
    /// - Parameters:
    ///   - urgency: in the background, another replica's renewal is as good as one's own.
    ///   - limit: suspends until it is over and ends the wait, not the renewal; nil waits as long as the renewal takes.
    /// - Returns: nil when the limit or the caller's task ended first.
    func renew(
        _ id: CredentialsID, of tenant: Tenant, _ query: CredentialsQuery,
        _ urgency: ProviderBudget.Urgency = .caller, within limit: (@Sendable () async -> Void)? = nil
    ) async -> (value: Result<Renewed, BrokerError>, isOwn: Bool)? {
        // A caller waits where the work runs, unless it prefers another executor.
        await withDefaultTaskExecutor(providers.endpoint.executor) {
            await flights.run(id, within: limit) {
                // A store that has lost its last commits gives their versions to other contents, which only a process hears
                // of that follows it.
                let known = self.records.isFollowing ? self.records.cache.fresh(id, now: self.time.monotonic) : nil
                return await RenewalRun(self, id, of: tenant, query, urgency, assuming: known).run()
            }
        }
    }

    /// Renews credentials that no caller asks for, if they still have that version.
    func renewAhead(_ id: CredentialsID, of tenant: Tenant, version: Int64) async -> Metrics.RenewalAhead {
        let query = CredentialsQuery(policy: .localForceRefresh, renewedPast: version)
        return switch await renew(id, of: tenant, query, .background)?.value {
        case .success(.new)?: .renewed
        case .success(.overtaken)?: .overtaken
        case .failure?: .failed
        case nil: .cancelled
        }
    }

    /// Sees to a record whose lease holder died while it renewed, if no other replica does.
    func recover(_ id: CredentialsID) async throws(BrokerError) {
        guard let tenant = try await tenants.currentTenant(id.tenant) else { return }
        let run = await renew(id, of: tenant, CredentialsQuery(), .background)
        if case .failure(let error)? = run?.value { throw error }
    }

    // MARK: The end

    /// Renewals that wait for another try are left to other replicas, or to the next process.
    func beginDraining() {
        stop.close()
    }

    /// Suspends until no renewal is in flight: what a provider has granted is stored by then, or in the journal.
    package func finish() async {
        await flights.finish()
        await publisher.finish()
    }

    /// Has the renewals in flight wait for nothing any more. What a provider has granted is lost where the store does
    /// not take it at once.
    /// - Returns: how many there are.
    package func cancelAll() -> Int {
        defer { flights.cancelAll() }
        return flights.count
    }

    // MARK: Rules of a renewal

    /// What renewals by such a request are held to.
    func rules(for grant: TokenRequest.Grant?, of tenant: Tenant) -> RenewalRules {
        var waits = (1...BackoffSchedule.retries).compactMap { retry in
            BackoffSchedule.standard.wait(before: retry, retryAfter: nil)
        }
        if grant == .clientCredentials {
            // Nothing is spent, so another replica may ask as soon as the holder is gone.
            var rules = RenewalRules(grace: .zero, callLimit: providers.callLimit, waits: waits, turn: .zero)
            rules.span = providers.callLimit + .seconds(2)
            return rules
        }
        // The call behind a refused upgrade: see `RenewalRun.call`.
        if grant == .upgrade { waits.append(.zero) }
        let grace = tenant.configuration.reuseGrace ?? tenant.configuration.preset.reuseGrace
        var rules = RenewalRules(
            grace: grace ?? RenewalRules.usualGrace, callLimit: providers.callLimit, waits: waits,
            patience: RenewalRules.usualPatience)
        rules.isGraceKnown = grace != nil
        return rules
    }

    /// Whether a lease is to be had for what is not stored yet: the first client credentials of a storage key, which each
    /// replica would ask for otherwise.
    func needsRow(_ current: CredentialsSnapshot, _ decision: CredentialsDecision) -> Bool {
        current.version == 0 && records.isShared && decision == .obtainClientCredentials(isUpgrade: false)
    }

    /// What is to be done about a lease whose holder is gone, where the credentials themselves are good: the refresh token is
    /// tried at once, for providers take a spent one for some seconds only. Nil for nothing.
    func recovery(
        of current: CredentialsSnapshot, _ lease: Lease, _ tenant: Tenant, _ id: CredentialsID
    ) -> CredentialsDecision? {
        guard current.record.held?.refreshToken != nil else { return nil }
        // Later than the grace a renewal by a caller finds out as well what became of the token.
        if lease.wasGivenUp, !rules(for: .refreshToken, of: tenant).isWithinGrace(lease.sinceFirstUse) { return nil }
        let forced = CredentialsQuery(policy: .localForceRefresh, minimumLifetime: .zero)
        let recovery = decider.decide(current, tenant, forced, id)
        return recovery.grant?.spendsRefreshToken == true ? recovery : nil
    }

    /// Ends the search for what became of a lease: nothing needs to be done about it any more, or nothing can be.
    func rest(_ lease: Lease, _ id: CredentialsID, _ current: CredentialsSnapshot, _ tenant: Tenant) async {
        // Where another provider is configured meanwhile, what became of the refresh token is found out once the one that
        // granted it is again.
        let held = current.record.held
        let mayBeSpent =
            held?.refreshToken != nil
            && (lease.wasGivenUp
                || providers.servers.acceptedProviders(of: tenant).difference(from: held?.grantedBy) != nil)
        do throws(StoreError) {
            try await records.commit([
                .release(
                    CredentialsRecords.recordID(id), version: current.version, holder: lease.holder,
                    LeaseRelease(mayBeSpent ? .unknown(recovery: nil) : .settled))
            ])
        } catch {
            // Another replica has seen to it, or the next look does.
            if error != .conflict { records.report(error, id) }
        }
    }

    /// Whether the configuration that a renewal goes by is the stored one. A replica may not have heard of a new one
    /// yet: what is final must not be done by the old one.
    func isCurrent(_ tenant: Tenant) async throws(BrokerError) -> Bool {
        try await tenants.currentTenant(tenant.name)?.version == tenant.version
    }
}

extension CredentialsDecision {
    /// What the provider is asked for; nil where it is not asked.
    var grant: TokenRequest.Grant? {
        switch self {
        case .refresh: .refreshToken
        case .upgrade: .upgrade
        case .obtainClientCredentials: .clientCredentials
        case .serve, .serveBasic, .retire, .expiredOnArrival, .missing, .levelNotAvailable, .keptForOtherProvider: nil
        }
    }
}
