import CredentialStore
import Cryptography
import ExternalText
import OAuth
import Reactor
import Renewal
import Waiting

/// Renews credentials, each storage key's by one renewal at a time: single flight within this process, a lease among replicas.
package final class CredentialsRenewer: Sendable {
    /// The result of a renewal.
    enum Renewed: Sendable {
        /// The new credentials, which are stored, or in the journal until they can be stored; or the end of the session.
        /// - Parameter life: the lifetime of the credentials when they were granted; nil where the session ended.
        case new(CredentialsSnapshot, life: Duration?)
        /// Another change came first. The caller reads and decides again.
        case overtaken
    }

    let records: CredentialsRecords
    let tenants: TenantDirectory
    let providers: ProviderAccess
    let decider: CredentialsDecider
    /// Stores the providers' grants.
    let publisher: CredentialsPublisher
    let holders: LeaseHolders
    let keeper: LeaseKeeper
    let abandoned = AbandonedLeases()
    let failures: RecentFailures
    let clientFaults: ClientFaults
    package let gate: ProviderGate
    package let outages: Outages
    package let waves: Waves
    let verification: GrantVerification
    /// Closed when the broker begins to drain.
    let draining = KeyedSignal<Int>()
    /// For how long credentials are quarantined whose session has ended; zero quarantines none.
    let quarantine: Duration
    let time: any Time
    let log: Log
    let metrics: Metrics
    /// How many renewals may be in flight when another one is begun behind an answer. A renewal that is not begun is begun by a
    /// later answer, or when the token no longer lives as long as callers ask for.
    private static let mostBehindAnswers = 1024
    private let flights: SingleFlight<CredentialsID, Result<Renewed, BrokerError>>

    /// - Parameters:
    ///   - journal: nil keeps grants that cannot be stored in memory only.
    ///   - quarantine: for how long credentials are quarantined whose session has ended; zero quarantines none.
    init(
        records: CredentialsRecords, providers: ProviderAccess, journal: Journal?, quarantine: Duration,
        instruments: Instruments
    ) {
        (time, log, metrics) = (instruments.time, instruments.log, instruments.metrics)
        self.records = records
        tenants = records.tenants
        self.providers = providers
        self.quarantine = quarantine
        failures = RecentFailures(isShared: records.isShared, time: time)
        decider = CredentialsDecider(servers: providers.servers, failures: failures, time: time)
        holders = LeaseHolders(isOnlyWriter: !records.isShared)
        keeper = LeaseKeeper(records: records, holders: holders, abandoned: abandoned)
        clientFaults = ClientFaults(records: records, health: providers.endpoint.health)
        outages = Outages(records: records, health: providers.endpoint.health)
        waves = Waves(records: records, metrics: metrics)
        gate = ProviderGate(
            decider: decider, failures: failures, clientFaults: clientFaults, waves: waves, holders: holders,
            records: records, providers: providers)
        verification = GrantVerification(
            records: records, providers: providers, quarantine: quarantine, metrics: metrics)
        publisher = CredentialsPublisher(
            records: records, holders: holders, journal: journal, quarantine: quarantine,
            callLimit: providers.callLimit, metrics: metrics)
        flights = SingleFlight(on: providers.endpoint.executor)
    }

    // MARK: Callers

    /// Renews the credentials, or joins the renewal that is under way. The renewal goes on when the caller stops waiting.
    /// - Parameters:
    ///   - trigger: why the renewal begins; listeners get it.
    ///   - urgency: a renewal in the background does not wait for another replica that renews already.
    ///   - limit: returns when the caller is to stop waiting; nil waits for as long as the renewal takes.
    /// - Returns: the result, and whether this call began the renewal; nil when the limit or the caller's task ended first.
    func renew(
        _ id: CredentialsID, of tenant: Tenant, _ query: CredentialsQuery,
        _ urgency: ProviderBudget.Urgency = .caller, as trigger: BrokerEvent.Trigger,
        within limit: (@Sendable () async -> Void)? = nil
    ) async -> (value: Result<Renewed, BrokerError>, isOwn: Bool)? {
        // A caller waits where the work runs, unless it prefers another executor.
        await withDefaultTaskExecutor(providers.endpoint.executor) {
            await flights.run(id, within: limit) { await self.run(id, of: tenant, query, urgency, trigger) }
        }
    }

    private func run(
        _ id: CredentialsID, of tenant: Tenant, _ query: CredentialsQuery, _ urgency: ProviderBudget.Urgency,
        _ trigger: BrokerEvent.Trigger
    ) async -> Result<Renewed, BrokerError> {
        // A store that has lost its last commits gives their versions to other contents. Only the change feed reports
        // that, so without it a version proves nothing.
        let known = self.records.isFollowing ? self.records.cache.fresh(id, now: self.time.monotonic) : nil
        let renewal = Renewal(
            id: id, tenant: tenant, query: query, urgency: urgency, trigger: trigger, assumed: known)
        var run = RenewalRun(self, renewal)
        return await run.run()
    }

    /// Gives this to the callers that wait for the renewal that is under way, which goes on.
    func answerCallers(_ id: CredentialsID, _ result: Result<Renewed, BrokerError>) { flights.answer(id, with: result) }

    /// The same if the store has taken nothing for `CredentialsRecords.callersPatience`.
    /// - Parameter beginning: since when it has taken nothing; nil if it has not failed.
    func answerCallers(
        _ id: CredentialsID, _ result: Result<Renewed, BrokerError>, awaySince beginning: MonotonicInstant?
    ) {
        guard let beginning, beginning.duration(to: time.monotonic) >= CredentialsRecords.callersPatience else {
            return
        }
        answerCallers(id, result)
    }

    /// Begins to renew credentials that are served meanwhile, unless they are being renewed already, or as many renewals are in
    /// flight as may be begun in this way. Does not suspend.
    func renewBehindAnswer(_ id: CredentialsID, of tenant: Tenant, _ query: CredentialsQuery) {
        flights.start(id, below: Self.mostBehindAnswers) { await self.run(id, of: tenant, query, .background, .ahead) }
    }

    /// Renews credentials before a caller asks for them, if they still have that version.
    func renewAhead(_ id: CredentialsID, of tenant: Tenant, version: Int64) async -> Metrics.RenewalAhead {
        let query = CredentialsQuery(policy: .localForceRefresh, renewedPast: version)
        return switch await renew(id, of: tenant, query, .background, as: .ahead)?.value {
        case .success(.new)?: .renewed
        case .success(.overtaken)?: .overtaken
        case .failure?: .failed
        case nil: .cancelled
        }
    }

    /// Renews a record whose lease holder died while it renewed, unless another replica does so.
    func recover(_ id: CredentialsID) async throws(BrokerError) {
        guard let tenant = try await tenants.currentTenant(id.tenant) else { return }
        let run = await renew(id, of: tenant, CredentialsQuery(), .background, as: .ahead)
        if case .failure(let error)? = run?.value { throw error }
    }

    /// Waits for a renewal that is under way, or makes one for a holder of the lease that has died. Returns after two seconds at most.
    func awaitRenewal(_ id: CredentialsID) async {
        let (changes, time) = (records.changes, time)
        let ticket = changes.ticket(id)
        guard let tenant = try? await tenants.currentTenant(id.tenant) else { return }
        let limit: @Sendable () async -> Void = { try? await time.sleep(for: CredentialsRecords.changeInterval) }
        let run = await renew(id, of: tenant, CredentialsQuery(), .background, as: .ahead, within: limit)
        switch run?.value {
        case nil, .success(.new): break
        // Another replica renews, or nothing can be renewed now.
        case .success(.overtaken), .failure: await changes.wait(for: id, since: ticket, within: limit)
        }
    }

    // MARK: The end

    /// Ends the waits between two calls: other replicas, or the next process, make the calls that are left.
    func beginDraining() {
        draining.close()
    }

    /// Suspends until no renewal is in flight: each grant is stored by then, or in the journal.
    package func finish() async {
        await flights.finish()
        await publisher.finish()
    }

    /// Cancels the renewals in flight, so that they wait for nothing any more. A grant is lost if the store does not take it at
    /// once and there is no journal.
    /// - Returns: how many renewals were in flight.
    package func cancelAll() -> Int {
        defer { flights.cancelAll() }
        return flights.count
    }

    // MARK: Rules of a renewal

    /// The rules for renewals by such a request; nil for a renewal that makes no request.
    func rules(for grant: TokenRequest.Grant?, of tenant: Tenant) -> RenewalRules {
        var waits = tenant.configuration.schedule.waits
        let callLimit = providers.callLimit(of: tenant)
        if grant == .clientCredentials || grant == .accountCreation {
            // A second try could create a second account.
            if grant == .accountCreation { waits = [] }
            // No refresh token is spent, so another replica may ask as soon as the lease has run out.
            var rules = RenewalRules(grace: .zero, callLimit: callLimit, waits: waits, turn: .zero)
            rules.span = callLimit + .seconds(2)
            return rules
        }
        // For the call that follows a refused upgrade; see `nextCall`.
        if grant == .upgrade { waits.append(.zero) }
        let configuration = tenant.configuration
        var grace = configuration.reuseGrace ?? configuration.preset.reuseGrace
        if configuration.effectiveRotation == .never { grace = RenewalRules.endlessGrace }
        var rules = RenewalRules(
            grace: grace ?? RenewalRules.usualGrace, callLimit: callLimit, waits: waits,
            patience: RenewalRules.usualPatience)
        rules.isGraceKnown = grace != nil
        // What is configured holds, and not what is assumed.
        rules.keepsWaits = grace == nil && configuration.retry.namesWaits
        return rules
    }

    /// Whether an empty record is to be written first, so that there is a row for the lease: for the first client credentials
    /// of a storage key, or the account of its user, which each replica would ask for otherwise.
    func needsRow(_ current: CredentialsSnapshot, _ decision: CredentialsDecision) -> Bool {
        current.version == 0 && records.isShared
            && (decision == .obtainClientCredentials(isUpgrade: false) || decision == .createAccount)
    }

    /// What is to be done about a lease whose holder has ended, although the credentials need no renewal: the refresh token,
    /// which may be spent, is tried at once, since providers accept a spent token for a few seconds only.
    /// - Returns: nil where nothing is to be done.
    func recovery(
        of current: CredentialsSnapshot, _ lease: Lease, _ tenant: Tenant, _ id: CredentialsID
    ) -> CredentialsDecision? {
        guard current.record.granted?.refreshToken != nil, tenant.configuration.effectiveRotation != .never else {
            return nil
        }
        // After the grace, nothing is gained by trying before a caller asks.
        if lease.wasGivenUp, !rules(for: .refreshToken, of: tenant).isWithinGrace(lease.sinceFirstUse) { return nil }
        let forced = CredentialsQuery(policy: .localForceRefresh, minimumLifetime: .zero)
        let recovery = decider.decide(current, tenant, forced, id)
        return recovery.grant?.spendsRefreshToken == true ? recovery : nil
    }

    /// Takes a lease off the record whose holder has ended and about which nothing is to be done.
    func settle(_ lease: Lease, _ id: CredentialsID, _ current: CredentialsSnapshot, _ tenant: Tenant) async {
        // If the tenant has another provider or another client by now, the refresh token may still be spent: that shows once those
        // are configured again that it was granted by.
        let held = current.record.granted
        let isKept =
            providers.servers.acceptedProviders(of: tenant).difference(from: held?.grantedBy) != nil
            || held.map { !tenant.terms.hasClient(of: $0) } ?? true
        let mayBeSpent =
            held?.refreshToken != nil && tenant.configuration.effectiveRotation != .never
            && (lease.wasGivenUp || isKept)
        do throws(StoreError) {
            try await records.commit([
                .release(
                    CredentialsRecords.recordID(id), version: current.version, holder: lease.holder,
                    LeaseRelease(mayBeSpent ? .unknown(recovery: nil) : .settled))
            ])
        } catch {
            // With a conflict, another replica has done so. After another error, `LeaseRecovery` finds the lease again.
            if error != .conflict { records.report(error, id) }
        }
    }

    /// Whether the renewal's configuration of the tenant is the one that is stored. This replica may not know a new one yet,
    /// and nothing final may be done by an old one.
    func isCurrent(_ tenant: Tenant) async throws(BrokerError) -> Bool {
        try await tenants.currentTenant(tenant.name)?.version == tenant.version
    }
}

extension CredentialsDecision {
    /// What the provider is asked for; nil where it is not to be asked.
    var grant: TokenRequest.Grant? {
        switch self {
        case .refresh: .refreshToken
        case .upgrade: .upgrade
        case .obtainClientCredentials: .clientCredentials
        case .createAccount: .accountCreation
        case .serve, .serveBasic, .verify, .retire, .tooEarly, .expiredOnArrival, .missing, .levelNotAvailable, .kept:
            nil
        }
    }
}

extension CredentialsRenewer {
    /// Whether a call may still present the refresh token of quarantined credentials, or be about to store its successor.
    func isBeingPresented(_ quarantined: CredentialsRecords.Quarantine, of tenant: Tenant) async -> Bool {
        guard let lease = quarantined.lease, !lease.isSettled else { return false }
        if holders.isActive(lease.holder) { return true }
        let reachable = await records.reachableFor()
        return rules(for: .refreshToken, of: tenant)
            .waitBeforeTakingOver(holders.standing(lease), storeReachableFor: reachable) > .zero
    }
}
