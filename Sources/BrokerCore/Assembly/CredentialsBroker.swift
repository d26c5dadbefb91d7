package import CredentialStore
package import HTTPSClient
package import OAuth
import Synchronization

/// A broker over one store: tenants, logins and the credentials that they bring, renewals, events, and the background jobs. The
/// service and the library use it; see `BrokerResources` for what it runs on.
package final class CredentialsBroker: Sendable {
    package struct Settings: Sendable {
        /// The URL at which browsers reach the broker, without a slash at its end: the base of its own redirect URI.
        package var publicBaseURL = "http://127.0.0.1"
        /// Where providers may be; see `limit`. Default: on the public internet, over https.
        package var providerTargets = TargetPolicy()
        /// The directories in which, or below which, the files must be that tenants name for their clients. Default: nil, anywhere.
        package var clientFileDirectories: [String]?
        /// For how long credentials are quarantined whose session has ended. Default 7 days; zero quarantines none.
        package var quarantine: Duration = .seconds(7 * 86_400)
        /// How long before a token's expiry listeners are notified. Default 300 s.
        package var expiryNotice: Duration = .seconds(300)
        /// For how long events are kept. Default 7 days.
        package var eventRetention: Duration = .seconds(7 * 86_400)
        /// The events of how many commits are kept at most. Default 1,000,000.
        package var eventLimit = 1_000_000
        /// How many listeners one tenant's events may have in this process, and how many the events of all tenants. Nil for any
        /// number; default 2000.
        package var listenersPerTenant: Int? = 2000
        /// How many listeners one API key may have in this process. Nil for any number; default 100.
        package var listenersPerKey: Int? = 100
        /// How many logins of a tenant may be pending at once, over all replicas. Nil for any number; default 10,000.
        package var pendingLogins: Int? = 10_000
        /// The same for device logins, each of which is polled at its provider. Default 2000.
        package var pendingDeviceLogins: Int? = 2000
        /// How many logins of the tenant's apps may come back to one process within ten minutes without success. One address may
        /// have a tenth of them. Default 10,000.
        package var pendingAppLogins: Int? = 10_000
        /// How many requests the token endpoint of apps takes in a minute.
        package var appRequests = TokenEndpointLimits.Limits()
        /// For how long later events are collected, to be sent together; see `EventFeed.Limits`. Zero, the default, collects
        /// none.
        package var eventSpan: Duration = .zero
        /// The memory that cached credentials may take, in bytes. Default 256 MiB.
        package var cacheBytes = 256 << 20
        /// For how long this process remembers what it has stored, in case the store loses its last commits; see `RecentCommits`.
        /// Default 900 s; zero remembers nothing.
        package var grantMemory: Duration = .seconds(900)
        /// For how long, after the store has lost its last commits, the journals of replicas that do not run are waited for; see
        /// `JournalRegistry`. Default 60 s; zero waits for none.
        package var journalWait: Duration = .seconds(60)
        /// For how long a caller waits for a renewal while the present token is valid. Nil for as long as the renewal takes;
        /// default 2 s.
        package var renewalPatience: Duration? = .seconds(2)
        /// The longest time of one call to a provider, unless its preset has a longer one; see `limit`. A lease lasts a little longer. Default 10 s.
        package var providerTimeout: Duration = .seconds(10)
        /// What the audit log tells of. Default: nothing.
        package var audit = AuditTrail.Settings()
        /// Whose tokens say who a workload is. Default: none.
        package var workloadIssuers: [WorkloadIssuer] = []
        /// How many token requests a provider gets at once.
        package var providerBudget = ProviderBudget.Limits()

        package init() {}

        /// Gives the transport the limits that the broker relies on: if a call outlasted its lease, another replica would
        /// present the same refresh token.
        package func limit(_ transport: inout HTTPSClientConfiguration) {
            transport.exchangeTimeout = max(providerTimeout, ProviderPreset.longestTokenRequest)
            transport.maximumConnectionsPerOrigin = providerBudget.connections
            transport.targets = providerTargets
        }
    }

    package let time: any Time
    package let log: Log
    package let metrics: Metrics
    package let audit: AuditTrail
    package let budget: ProviderBudget
    package let tenants: TenantDirectory
    package let profiles: OperatorProfiles
    package let tombstones: Tombstones
    package let providers: ProviderAccess
    /// Nil where no tokens of workloads are accepted.
    package let workloads: WorkloadTokens?
    package let credentials: CredentialsProvider
    package let writer: CredentialsWriter
    package let importer: CredentialsImporter
    package let restorer: CredentialsRestorer
    package let exporter: CredentialsExporter
    package let list: CredentialsList
    package let renewer: CredentialsRenewer
    package let waveJob: WaveJob
    package let revocations: RevocationJob
    package let accounts: AccountFlow
    /// The token endpoint of apps.
    package let apps: AppGrants
    package let appToApp: AppToAppGrants
    package let challenges: AppChallenges
    /// The files by which devices know which apps open the broker's links.
    package let appLinks: AppLinkFiles
    package let sessionEndings: SessionEndings
    private let deferralReports: DeferralReports
    /// Finds the authorization servers of resources.
    package let discovery: ResourceDiscovery
    package let logins: LoginFlow
    package let deviceLogins: DeviceFlow
    package let appAdmission: AppToAppFlow
    package let biometrics: BiometricLogins
    package let softwareKeys: SoftwareKeys
    package let events: EventFeed
    package let expiryJob: ExpiryJob
    package let bus: EventBus
    /// Also takes caches of other modules.
    package let cacheRevalidation: CacheRevalidation
    package let tenantCheck: TenantCheck
    private let leaseRecovery: LeaseRecovery
    let baseURL: BaseURLWatch
    package let journals: JournalRegistry
    let storeRecovery: StoreRecovery
    private let recent: RecentCommits
    private let housekeeping: Housekeeping
    /// The vault that the broker uses: it reports failures of the store to the log and the metrics.
    package let vault: Vault
    private let jobs = Mutex(Jobs())

    /// The tasks of the background jobs.
    private struct Jobs {
        var tasks: [Task<Void, Never>] = []
        /// The task of `storeRecovery`, which works until everything else has ended.
        var recovery: Task<Void, Never>?
    }

    package init(
        settings: Settings, vault: Vault, journal: Journal? = nil, transport: any ProviderTransport, time: any Time,
        log: Log
    ) {
        self.time = time
        self.log = log
        metrics = Metrics()
        let instruments = Instruments(time: time, log: log, metrics: metrics)
        let reports = StoreReports(log, metrics, time: time)
        let reporting = vault.observed { reports.note($0, isAnswered: $1) }
        audit = AuditTrail(settings.audit, vault: reporting, time: time, log: log)
        let recent = RecentCommits(
            RecentCommits.Limits(span: settings.grantMemory), vault: vault, journal: journal, time: time, log: log)
        self.recent = recent
        let vault = audit.audited(reporting).telling { await recent.note($0) }
        self.vault = vault
        let bus = EventBus(cacheValidity: CacheValidity(lifetime: vault.revalidateAfter))
        self.bus = bus
        let events = EventFeed(
            vault: vault, bus: bus,
            limits: EventFeed.Limits(
                perTenant: settings.listenersPerTenant, perKey: settings.listenersPerKey, span: settings.eventSpan),
            instruments: instruments)
        self.events = events

        let transport = TracingTransport(transport)
        budget = ProviderBudget(
            limits: settings.providerBudget, health: ProviderHealths(time: time, metrics: metrics, log: log),
            metrics: metrics)
        let servers = ProviderServers(
            transport: transport, targets: settings.providerTargets, time: time, metrics: metrics, log: log)
        let endpoint = TokenEndpoint(
            transport: transport, budget: budget, callLimit: settings.providerTimeout,
            clientFileDirectories: settings.clientFileDirectories, time: time, metrics: metrics, log: log)
        providers = ProviderAccess(
            servers: servers, moves: MovedEndpoints(servers: servers, time: time, log: log), endpoint: endpoint,
            trials: ClientTrials(
                endpoint: endpoint, publicBaseURL: settings.publicBaseURL, callLimit: settings.providerTimeout,
                time: time, log: log),
            verifier: GrantVerifier(endpoint: endpoint, transport: transport, instruments: instruments),
            accounts: AccountEndpoint(endpoint: endpoint, log: log), callLimit: settings.providerTimeout)
        workloads =
            settings.workloadIssuers.isEmpty
            ? nil
            : WorkloadTokens(
                settings.workloadIssuers, keys: providers.verifier.keys, transport: transport, instruments: instruments)
        tenants = TenantDirectory(vault: vault, bus: bus, time: time) { [health = budget.health] tenant in
            // The new configuration may have corrected what the provider asked to pause for, or did not answer.
            health.reset(tenant.name)
            guard let server = servers.knownServer(for: tenant.configuration) else { return }
            health.lift(ProviderClient(tenant.configuration.client, at: server))
        }
        profiles = OperatorProfiles(vault: vault, tenants: tenants, time: time, log: log)
        tenantCheck = TenantCheck(providers: providers, transport: transport, time: time)

        let schedule = ExpirySchedule(notice: settings.expiryNotice)
        tombstones = Tombstones(vault: vault, bus: bus, instruments: instruments)
        let records = CredentialsRecords(
            vault: vault, tenants: tenants, tombstones: tombstones, bus: bus, memory: recent,
            options: CredentialsRecords.Options(
                schedule: schedule, cacheBytes: settings.cacheBytes, journal: journal,
                journalWait: settings.journalWait),
            instruments: instruments)
        renewer = CredentialsRenewer(
            records: records, providers: providers, journal: journal, quarantine: settings.quarantine,
            instruments: instruments)
        credentials = CredentialsProvider(renewer: renewer, renewalPatience: settings.renewalPatience)
        writer = CredentialsWriter(records: records)
        importer = CredentialsImporter(renewer: renewer, writer: writer)
        exporter = CredentialsExporter(records: records)
        revocations = RevocationJob(
            records: records, providers: providers, clientFaults: renewer.clientFaults)
        restorer = CredentialsRestorer(
            renewer: renewer, writer: writer, credentials: credentials, revocations: revocations)
        let intake = GrantIntake(
            verifier: providers.verifier, writer: writer, renewer: renewer, revocations: revocations)
        accounts = AccountFlow(records: records, providers: providers, intake: intake)
        let clients = AppClientDirectory(records: records)
        let sessions = AppSessions(records: records, clients: clients)
        apps = AppGrants(
            clients: clients, sessions: sessions, credentials: credentials,
            limits: TokenEndpointLimits(settings.appRequests, vault: vault, instruments: instruments), audit: audit)
        appLinks = AppLinkFiles(clients: clients, base: settings.publicBaseURL, instruments: instruments)
        challenges = AppChallenges(vault: vault, time: time)
        appToApp = AppToAppGrants(grants: apps, challenges: challenges)
        sessionEndings = SessionEndings(sessions: sessions)
        deferralReports = sessions.deferralReports
        list = CredentialsList(
            records: records, clientFaults: renewer.clientFaults, waves: renewer.waves, servers: providers.servers)
        discovery = ResourceDiscovery(
            providers: providers, tenants: tenants, clientFaults: renewer.clientFaults, transport: transport,
            options: (settings.publicBaseURL, settings.providerTargets), instruments: instruments)
        logins = LoginFlow(
            vault: vault, tenants: tenants, clients: clients, providers: providers, discovery: discovery,
            intake: intake,
            revocations: revocations, bus: bus,
            options: LoginFlow.Options(
                publicBaseURL: settings.publicBaseURL, limit: settings.pendingLogins,
                strangersLimit: settings.pendingAppLogins),
            instruments: instruments)
        deviceLogins = DeviceFlow(
            vault: vault, providers: providers, discovery: discovery, intake: intake, bus: bus,
            limit: settings.pendingDeviceLogins, instruments: instruments)

        appAdmission = AppToAppFlow(
            renewer: renewer,
            links: AppLinkCheck(
                transport: transport, allowsHTTP: settings.providerTargets.allowsHTTP, time: time, log: log))

        biometrics = BiometricLogins(renewer: renewer, credentials: credentials, intake: intake)
        softwareKeys = SoftwareKeys(vault: vault, log: log)

        journals = records.journals
        storeRecovery = StoreRecovery(
            vault: vault, records: records,
            others: StoreRecovery.Others(
                before: [SettingsRecovery(records: records)],
                after: [LoginRecovery(records: records), SessionRecovery(sessions: sessions)],
                events: EventRecovery(vault: vault, feed: events, bus: bus, log: log)), time: time, log: log)
        leaseRecovery = LeaseRecovery(vault: vault, renewer: renewer, time: time, log: log)
        waveJob = WaveJob(renewer: renewer)
        expiryJob = ExpiryJob(
            renewer: renewer, bus: bus, schedule: schedule, budget: settings.providerBudget, instruments: instruments)
        cacheRevalidation = CacheRevalidation(vault: vault, validity: bus.cacheValidity, instruments: instruments) {
            entry, stored in
            bus.announce(missedBy: entry, stored: stored)
        }
        cacheRevalidation.include(records.revalidatedCache)
        cacheRevalidation.include(tenants.revalidatedCache)
        cacheRevalidation.include(clients.revalidatedCache)
        cacheRevalidation.include(sessions.revalidatedCache)
        baseURL = BaseURLWatch(vault: vault, url: settings.publicBaseURL, instruments: instruments)
        housekeeping = Housekeeping(
            vault: vault, memory: recent, baseURL: baseURL, profiles: profiles,
            events: (settings.eventRetention, settings.eventLimit), time: time, log: log)
        ChangeFeed(bus: bus, time: time, log: log).subscribe(to: vault)
    }

    /// Stores or serves what an earlier process left in the journal, and finds out whether the store has lost commits since. To
    /// be called before the first caller is served.
    /// - Throws: `storage_unavailable` and `internal_error` where the journal cannot be read.
    package func takeUpJournal() async throws(BrokerError) {
        try await storeRecovery.takeUp()
        try await renewer.publisher.takeUpJournal()
    }

    /// Starts the background jobs: removing expired records, polling for device logins, renewing tokens before they expire,
    /// finding outages of providers whose end is still to be told, trying sessions that are held in a wave, finishing renewals
    /// whose process has died, repeating revocations that failed, ending sessions of apps, telling other replicas which of their
    /// requests could not be answered, revalidating cache entries, storing again what the store has lost. Each job is a
    /// task, which ends when it is cancelled; `JobInterval` says how often each looks again.
    package func start() {
        jobs.withLock {
            [
                others = [
                    deviceLogins, cacheRevalidation, expiryJob, revocations, sessionEndings, deferralReports,
                    housekeeping,
                    audit, renewer.outages, waveJob,
                ] as [any BackgroundJob], leaseRecovery, storeRecovery
            ] jobs in
            jobs.tasks = [Task { await leaseRecovery.run() }] + others.map { job in Task { await job.run() } }
            jobs.recovery = Task { await storeRecovery.run() }
        }
    }

    /// From now on callers do not wait for later events any more: logins, retries, changes. Callers that wait get their answer.
    package func beginDraining() {
        renewer.beginDraining()
        logins.beginDraining()
        deviceLogins.beginDraining()
        events.beginDraining()
    }

    /// Ends the background jobs, and waits for the work that is under way. When this returns, renewals and redemptions are
    /// stored, and no task of the broker uses the store any more.
    ///
    /// After `limit`, work that still waits for a provider or for a store is cancelled and logged: the system would end the
    /// process soon after that, without a log line.
    /// - Parameter limit: nil waits for as long as the work takes.
    package func finish(within limit: Duration? = nil) async {
        let jobs = jobs.withLock { jobs in
            defer { jobs = Jobs() }
            return jobs
        }
        for task in jobs.tasks { task.cancel() }
        let canceller = limit.map { limit in
            Task {
                do {
                    try await self.time.sleep(for: limit)
                } catch {
                    return
                }
                self.cancelAll()
            }
        }
        events.beginDraining()
        for task in jobs.tasks { await task.value }
        await discovery.finish()
        await deviceLogins.finish()
        await logins.finish()
        await accounts.finish()
        await appAdmission.finish()
        await biometrics.finish()
        await importer.finish()
        await restorer.finish()
        await apps.limits.finish()
        await deferralReports.finish()
        await appLinks.finish()
        await renewer.finish()
        await renewer.outages.finish()
        // If the store has lost commits meanwhile, only this process may have their content.
        if let recovery = jobs.recovery {
            recovery.cancel()
            await recovery.value
            await storeRecovery.finish()
        }
        await events.finish()
        await audit.close()
        canceller?.cancel()
    }

    private func cancelAll() {
        let count =
            renewer.cancelAll() + discovery.cancelAll() + logins.cancelAll() + accounts.cancelAll()
            + deviceLogins.cancelAll()
            + appAdmission.cancelAll() + biometrics.cancelAll() + importer.cancelAll()
            + restorer.cancelAll()
        providers.servers.cancelAll()
        providers.moves.cancelAll()
        providers.verifier.keys.cancelAll()
        workloads?.cancelAll()
        log.error("work_cut_short", [.count(count)])
    }

    /// Removes a tenant with everything under it.
    /// - Parameter isWanted: whether the tenant may be removed that has this version now; nil for any.
    /// - Throws: `precondition_failed` for one that may not.
    package func deleteTenant(
        _ name: TenantName, isWanted: (@Sendable (Int64?) -> Bool)? = nil
    ) async throws(BrokerError) -> Bool {
        // The store may have removed everything although its answer was lost.
        defer { bus.announce(removalOf: name) }
        // A tenant that cannot be read is removed all the same.
        let tenant = try? await tenants.tenant(name)
        guard let version = try await tenants.delete(name, isWanted: isWanted) else { return false }
        await recent.note([.remove(RecordID(.tenant, name), version: version)])
        if let tenant { discovery.endRegistrations(of: tenant) }
        return true
    }
}
