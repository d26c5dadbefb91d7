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
    /// Whose leases attempts of this process could not give back, since the store was away.
    let unreleased = Mutex<Set<CredentialsID>>([])
    /// The records', so that a warm read has it at hand.
    let cache: RevalidatingCache<CredentialsID, CredentialsSnapshot>
    let tenants: TenantDirectory
    let servers: ProviderServers
    let endpoint: TokenEndpoint
    let time: any Time
    let metrics: Metrics
    let log: Log
    let quarantine: Duration
    let policy = CredentialsPolicy()
    /// The longest that one call to the provider takes.
    let callLimit: Duration
    /// Nil keeps what cannot be stored in memory only.
    let journal: Journal?
    /// What stores the journal's entries.
    let publications = Mutex<[CredentialsID: KeptPublication]>([:])
    /// Signalled when an entry of the journal is to be stored without delay.
    let nudges = Signals<CredentialsID>()
    /// Signalled when a lease was given up that is to be seen to at once.
    let lapses = Signals<Int>()
    /// Closed when the broker is about to stop.
    let stop = Signals<Int>()
    let holders: LeaseHolders
    let keeper: LeaseKeeper
    let failures: RenewalFailures
    let clientFaults: ClientFaults
    let clientTrials: ClientTrials
    private let degradations = Degradations()
    /// How long a caller waits for a renewal while the token at hand lives; nil as long as it takes.
    private let renewalPatience: Duration?
    private let flights: SingleFlight<CredentialsID, Result<Renewed, BrokerError>>
    private let earlyPauses = Mutex<[CredentialsID: EarlyPause]>([:])

    /// An early renewal that failed or brought little, and until when none is tried of the version that it left.
    private struct EarlyPause {
        let version: Int64
        let until: MonotonicInstant
    }

    static let pauseAfterEarlyFailure: Duration = .seconds(30)
    /// By how much a token must have outlived a query when it was granted, for its having grown too short to be a delay.
    private static let shortestDelay: Duration = .seconds(1)

    /// - Parameters:
    ///   - quarantine: how long credentials that the provider ended are kept aside; zero keeps nothing.
    ///   - schedule: when something is to be done about what is about to expire.
    ///   - renewalPatience: how long a caller waits for a renewal while the token at hand lives; nil as long as it takes.
    ///   - callLimit: the longest that one call to the provider takes, which `transport` must see to.
    init(
        vault: Vault, tenants: TenantDirectory, servers: ProviderServers, endpoint: TokenEndpoint, bus: EventBus,
        time: any Time, metrics: Metrics, log: Log, quarantine: Duration, schedule: ExpirySchedule, cacheBytes: Int,
        memory: GrantMemory, renewalPatience: Duration?, clientTrials: ClientTrials,
        callLimit: Duration, journal: Journal?
    ) {
        records = CredentialsRecords(
            vault: vault, tenants: tenants, bus: bus, time: time, log: log, schedule: schedule, cacheBytes: cacheBytes,
            memory: memory)
        cache = records.cache
        holders = LeaseHolders(isOnlyWriter: !records.isShared)
        keeper = LeaseKeeper(records: records, time: time)
        failures = RenewalFailures(isShared: records.isShared)
        clientFaults = ClientFaults(records: records, bus: bus, time: time, log: log)
        self.renewalPatience = renewalPatience
        self.tenants = tenants
        self.servers = servers
        self.endpoint = endpoint
        flights = SingleFlight(on: endpoint.executor)
        self.time = time
        self.metrics = metrics
        self.log = log
        self.quarantine = quarantine
        self.clientTrials = clientTrials
        self.callLimit = callLimit
        self.journal = journal
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
                reading.isCurrent ? decide(snapshot, tenant, query, id, renewsEarly: renewsEarly) : .serve
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
                if let failure = failures.standing(
                    id, snapshot.version, Self.grant(of: decision), of: tenant, time.monotonic)
                {
                    guard maySpare else { throw failure.after(snapshot.record) }
                    (renewsEarly, obstacle) = (false, failure)
                    continue
                }
                let (owner, asked) = (tenant, query)
                let run = await flights.run(id, within: timer(until: maySpare ? soon(deadline) : deadline)) {
                    await self.renew(id, of: owner, asked)
                }
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
                    guard let current = try await tenants.currentTenant(id.tenant) else {
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

    /// Renews credentials that nobody asks for, if they still have that version. Joins a renewal that is under way; it
    /// goes on when the task that waits is cancelled.
    func renewAhead(_ id: CredentialsID, of tenant: Tenant, version: Int64) async -> Metrics.RenewalAhead {
        let query = CredentialsQuery(policy: .localForceRefresh, renewedPast: version)
        let run = await flights.run(id, within: nil) { await self.renew(id, of: tenant, query, .background) }
        return switch run?.value {
        case .success(.new)?: .renewed
        case .success(.overtaken)?: .overtaken
        case .failure?: .failed
        case nil: .cancelled
        }
    }

    func decide(
        _ snapshot: CredentialsSnapshot, _ tenant: Tenant, _ query: CredentialsQuery, _ id: CredentialsID,
        renewsEarly: Bool = true
    ) -> CredentialsDecision {
        var terms = tenant.terms
        if terms.leadTime > .zero, !renewsEarly || isPaused(id, snapshot.version) { terms.leadTime = .zero }
        // Where the configuration has an issuer alone, and the credentials none to compare with it.
        if terms.providers.tokenEndpoint == nil, let granted = snapshot.record.held?.grantedBy, granted.issuer == nil {
            terms.providers = providers(of: tenant)
        }
        return policy.decide(
            snapshot.record.held, version: snapshot.version, terms: terms, query: query, now: time.now)
    }

    private func isPaused(_ id: CredentialsID, _ version: Int64) -> Bool {
        let now = time.monotonic
        return earlyPauses.withLock { $0[id].map { $0.version == version && $0.until > now } ?? false }
    }

    func pauseEarlyRenewal(_ id: CredentialsID, of version: Int64, for pause: Duration) {
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
        if record.held?.refreshToken != nil, let fault = await clientFaults.current(of: tenant) {
            if !fault.isRefuted(by: record) { return .degraded }
            await clientFaults.lift(fault, of: tenant)
        }
        do throws(StoreError) {
            let trouble = try await records.trouble(id)?.content
            return record.state(after: trouble, of: snapshot.version, configuration: tenant.version)
        } catch {
            records.report(error, id)
            return record.state()
        }
    }

    // MARK: Providers

    /// Whose refresh tokens the tenant's provider is sent, as far as that is known without asking it.
    package func providers(of tenant: Tenant) -> AcceptedProviders {
        var providers = tenant.terms.providers
        if providers.tokenEndpoint == nil {
            providers.tokenEndpoint = servers.tokenEndpoint(inMetadataFor: tenant.configuration)
        }
        return providers
    }

    /// The names of what is otherwise in the tenant's configuration than it was when these credentials were granted.
    package func differences(of held: HeldCredentials, from tenant: Tenant) -> [String] {
        var names = held.obtainedWith.differences(from: tenant.terms.client).map(\.rawValue)
        if let difference = providers(of: tenant).difference(from: held.grantedBy) { names.append(difference.rawValue) }
        return names
    }

    /// The tenant's provider where what is held may be shown to it; nil where another one granted it.
    func server(
        for tenant: Tenant, holding held: HeldCredentials
    ) async throws(BrokerError) -> AuthorizationServer? {
        var providers = providers(of: tenant)
        if providers.difference(from: held.grantedBy) != nil { return nil }
        let server = try await servers.server(for: tenant)
        providers.tokenEndpoint = WireText(server.tokenEndpoint)
        return providers.difference(from: held.grantedBy) == nil ? server : nil
    }

    // MARK: Living on

    /// Renewals that wait for another try are left to other replicas, or to the next process.
    package func beginDraining() {
        stop.close()
    }

    /// Suspends until no renewal is in flight: what a provider has granted is stored by then.
    package func idle() async {
        await flights.idle()
        await leaveJournalled()
    }

    /// How many sets of credentials wait in the journal for the store.
    package var countInJournal: Int { records.countOfUnpublished }

    /// The store did not answer just now.
    func noteStoreFailure() { records.noteFailure() }

    /// Sees to a record whose holder died while it renewed, if nobody else does.
    func recover(_ id: CredentialsID) async throws(BrokerError) {
        guard let tenant = try await tenants.currentTenant(id.tenant) else { return }
        let run = await flights.run(id, within: nil) {
            await self.renew(id, of: tenant, CredentialsQuery(), .background)
        }
        if case .failure(let error)? = run?.value { throw error }
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
    /// The same error where the user's session is over: the caller is told of that, too.
    fileprivate func after(_ record: CredentialRecord) -> BrokerError {
        guard record.held?.level != .user, let session = record.session else { return self }
        var error = self
        error.session = session
        return error
    }
}
