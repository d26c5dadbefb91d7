package import CredentialStore
package import HTTPSClient
package import OAuth
internal import Synchronization

/// What brokers credentials, put together over one store: the tenants, their logins, and the renewals of what those
/// brought. It serves a server, and a program that needs none.
package final class CredentialsBroker: Sendable {
    package struct Settings: Sendable {
        /// Where browsers reach the broker, without a slash at its end: the base of its own redirect URI.
        package var publicBaseURL = "http://127.0.0.1"
        /// Where providers may be; what the transport is told, too. Default: on the public internet, over https.
        package var providerTargets = TargetPolicy()
        /// How long credentials that a provider ended are kept aside; zero keeps none.
        package var quarantine: Duration = .seconds(7 * 86_400)
        /// How long ahead of a token's expiry listeners are told of it.
        package var expiryNotice: Duration = .seconds(300)
        /// How long events are kept.
        package var eventRetention: Duration = .seconds(7 * 86_400)
        /// How many commits' events are kept at most.
        package var eventLimit = 1_000_000
        /// How many may listen to one tenant's events in this process, and as many to those of all tenants; nil for any
        /// number.
        package var listenersPerTenant: Int? = 2000
        /// How many may listen with one API key in this process; nil for any number.
        package var listenersPerKey: Int? = 100
        /// How many logins of a tenant may be pending at once, over all replicas; nil for any number.
        package var pendingLogins: Int? = 10_000
        /// The same of device logins, each of which is polled at its provider.
        package var pendingDeviceLogins: Int? = 2000
        /// How long events that follow others are kept, to be sent together; see `EventFeed`. Zero keeps none.
        package var eventSpan: Duration = .zero
        /// What the credentials that are kept in memory may take of it, in bytes.
        package var cacheBytes = 256 << 20
        /// For how long what this process stored is kept, for a store that loses its last commits; zero keeps nothing.
        package var grantMemory: Duration = .seconds(900)
        /// How long a caller waits for a renewal while the token at hand lives; nil for as long as the renewal takes.
        package var renewalPatience: Duration? = .seconds(2)
        /// The longest that one call to a provider takes, which the transport must see to. A lease lasts a little longer.
        package var providerTimeout: Duration = .seconds(10)
        /// How many token requests a provider is to answer at once.
        package var providerBudget = ProviderBudget.Limits()

        package init() {}

        /// Gives a transport the limits that these settings count on (a call that outlasts its lease would have another
        /// replica present the same refresh token) and the providers that it may call.
        package func limit(_ transport: inout HTTPSClientConfiguration) {
            transport.exchangeTimeout = providerTimeout
            transport.maximumConnectionsPerOrigin = providerBudget.connections
            transport.targets = providerTargets
        }
    }

    package let time: any Time
    package let log: Log
    package let metrics: Metrics
    package let budget: ProviderBudget
    package let tenants: TenantDirectory
    package let providers: ProviderAccess
    package let credentials: CredentialsProvider
    package let writer: CredentialsWriter
    package let list: CredentialsList
    package let renewer: CredentialsRenewer
    package let logins: LoginFlow
    package let deviceLogins: DeviceFlow
    package let events: EventFeed
    package let expiryJob: ExpiryJob
    package let bus: EventBus
    /// What is not of the core can have its caches included, too.
    package let beliefRenewal: BeliefRenewal
    package let tenantCheck: TenantCheck
    private let leaseRecovery: LeaseRecovery
    let storeRecovery: StoreRecovery
    private let housekeeping: Housekeeping
    /// Tells the log and the metrics when its store is away.
    package let vault: Vault
    private let jobs = Mutex(Jobs())

    /// The tasks of the work in the background.
    private struct Jobs {
        var tasks: [Task<Void, Never>] = []
        /// That of `storeRecovery`, which works until everything else has ended.
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
        let vault = vault.behind { ReportingStore(inner: $0, reports: reports) }
        self.vault = vault
        let bus = EventBus(trust: Trust(validity: vault.revalidateAfter))
        self.bus = bus
        events = EventFeed(
            vault: vault, bus: bus, time: time, log: log, maximumPerTenant: settings.listenersPerTenant,
            maximumPerKey: settings.listenersPerKey, span: settings.eventSpan)

        let transport = TracingTransport(transport)
        budget = ProviderBudget(limits: settings.providerBudget, time: time)
        let servers = ProviderServers(
            transport: transport, targets: settings.providerTargets, time: time, metrics: metrics, log: log)
        let endpoint = TokenEndpoint(transport: transport, budget: budget, time: time, metrics: metrics, log: log)
        providers = ProviderAccess(
            servers: servers, endpoint: endpoint,
            trials: ClientTrials(
                endpoint: endpoint, publicBaseURL: settings.publicBaseURL, callLimit: settings.providerTimeout,
                time: time, log: log),
            callLimit: settings.providerTimeout)
        tenants = TenantDirectory(vault: vault, bus: bus, time: time) { [pauses = budget.pauses] tenant in
            // Whoever puts a tenant may have mended what its provider could not bear.
            guard let server = servers.knownServer(for: tenant.configuration) else { return }
            pauses.lift(ProviderPauses.Key(tenant.configuration.client, at: server))
        }
        tenantCheck = TenantCheck(providers: providers, transport: transport, time: time)

        let schedule = ExpirySchedule(notice: settings.expiryNotice)
        let memory = GrantMemory(
            GrantMemory.Limits(span: settings.grantMemory), vault: vault, journal: journal, time: time, log: log)
        let records = CredentialsRecords(
            vault: vault, tenants: tenants, bus: bus, time: time, log: log, schedule: schedule,
            cacheBytes: settings.cacheBytes, memory: memory)
        renewer = CredentialsRenewer(
            records: records, tenants: tenants, providers: providers, bus: bus, journal: journal,
            quarantine: settings.quarantine, instruments: instruments)
        credentials = CredentialsProvider(renewer: renewer, renewalPatience: settings.renewalPatience)
        writer = CredentialsWriter(records: records)
        list = CredentialsList(records: records, clientFaults: renewer.clientFaults)
        logins = LoginFlow(
            vault: vault, providers: providers, writer: writer, bus: bus, publicBaseURL: settings.publicBaseURL,
            limit: settings.pendingLogins, instruments: instruments)
        deviceLogins = DeviceFlow(
            vault: vault, providers: providers, writer: writer, bus: bus, limit: settings.pendingDeviceLogins,
            instruments: instruments)

        storeRecovery = StoreRecovery(vault: vault, records: records, time: time, log: log)
        leaseRecovery = LeaseRecovery(vault: vault, renewer: renewer, time: time, log: log)
        expiryJob = ExpiryJob(
            renewer: renewer, bus: bus, schedule: schedule, budget: settings.providerBudget, instruments: instruments)
        beliefRenewal = BeliefRenewal(vault: vault, trust: bus.trust, time: time, log: log) { entry, stored in
            bus.announce(missedBy: entry, stored: stored)
        }
        beliefRenewal.include(records.renewable)
        beliefRenewal.include(tenants.renewable)
        housekeeping = Housekeeping(
            vault: vault, memory: memory, events: (settings.eventRetention, settings.eventLimit), time: time, log: log)
        ChangeFeed(bus: bus, time: time, log: log).listen(to: vault)
    }

    /// Takes up what an earlier process could not store. To be done before anybody is served.
    /// - Throws: `storage_unavailable` and `internal_error` where the journal cannot be read.
    package func takeUpJournal() async throws(BrokerError) {
        try await storeRecovery.takeUp()
        try await renewer.publisher.takeUpJournal()
    }

    /// Begins the work that nobody asks for: removing what has expired, polling for device logins, looking after
    /// tokens that are about to expire, finishing renewals whose process has died, keeping believed what is in memory.
    package func start() {
        jobs.withLock { [deviceLogins, storeRecovery, leaseRecovery, beliefRenewal, expiryJob, housekeeping] jobs in
            jobs.tasks = [
                Task { await deviceLogins.run() }, Task { await leaseRecovery.run() },
                Task { await beliefRenewal.run() }, Task { await expiryJob.run() }, Task { await housekeeping.run() },
            ]
            jobs.recovery = Task { await storeRecovery.run() }
        }
    }

    /// Nobody is kept waiting any more for what may yet happen.
    package func beginDraining() {
        renewer.beginDraining()
        logins.beginDraining()
        deviceLogins.beginDraining()
        events.beginDraining()
    }

    /// Lets what is under way come to its end: renewals and redemptions are stored by then, and no task of the
    /// broker's own uses the store any more.
    ///
    /// After `limit`, what still waits for a provider or a store that does not answer is cut short and logged: whoever
    /// stops the process does not wait longer, and would end it without a word.
    /// - Parameter limit: nil waits as long as it takes.
    package func finish(within limit: Duration? = nil) async {
        let jobs = jobs.withLock { jobs in
            defer { jobs = Jobs() }
            return jobs
        }
        for task in jobs.tasks { task.cancel() }
        let cutOff = limit.map { limit in
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
        await deviceLogins.finish()
        await logins.finish()
        await renewer.finish()
        // A store that goes back meanwhile is to get what this process alone may know.
        if let recovery = jobs.recovery {
            recovery.cancel()
            await recovery.value
            await storeRecovery.finish()
        }
        await events.finish()
        cutOff?.cancel()
    }

    private func cancelAll() {
        let count = renewer.cancelAll() + logins.cancelAll() + deviceLogins.cancelAll()
        providers.servers.cancelAll()
        log.error("work_cut_short", [.count(count)])
    }

    /// Removes a tenant with everything under it.
    package func deleteTenant(_ name: TenantName) async throws(BrokerError) -> Bool {
        // Where the deletion's answer is lost, everything may be gone all the same.
        defer { bus.announce(removalOf: name) }
        return try await tenants.delete(name)
    }
}
