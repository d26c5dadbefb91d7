package import BrokerCore
package import CredentialStore
package import HTTPServer
package import OAuth
internal import Synchronization

/// The service, put together: everything that a route needs.
package final class Broker: Sendable {
    /// Those of the core can be set as if they were these.
    @dynamicMemberLookup
    package struct Settings: Sendable {
        package var core = CredentialsBroker.Settings()
        package var adminKeys: AdminKeys
        package var rates = Rates()
        /// What `/` says of the build; empty says nothing.
        package var version = ""
        /// Whether probes and metrics are answered by a listener of their own.
        package var hasOperationsListener = false
        /// Whether each `GET /credentials` that goes well gets a line in the log. Without it they are only counted.
        package var logsReads = false

        package subscript<Value>(dynamicMember member: WritableKeyPath<CredentialsBroker.Settings, Value>) -> Value {
            get { core[keyPath: member] }
            set { core[keyPath: member] = newValue }
        }

        /// - Parameter publicBaseURL: without a slash at its end.
        package init(publicBaseURL: String, adminKeys: AdminKeys) {
            self.adminKeys = adminKeys
            core.publicBaseURL = publicBaseURL
        }
    }

    package let settings: Settings
    package let core: CredentialsBroker
    package let keys: CallerKeyDirectory
    package let authenticator: CallerAuthenticator
    package let health: Health
    let rateLimits: RateLimits
    let authenticationFailures: AuthenticationFailures
    private let serverStatistics = Mutex<(@Sendable () -> ServerStatistics)?>(nil)
    private let operationsStatistics = Mutex<(@Sendable () -> ServerStatistics)?>(nil)

    package init(
        settings: Settings, vault: Vault, journal: Journal? = nil, transport: any ProviderTransport, time: any Time,
        log: Log
    ) {
        self.settings = settings
        core = CredentialsBroker(
            settings: settings.core, vault: vault, journal: journal, transport: transport, time: time, log: log)
        keys = CallerKeyDirectory(vault: core.vault, bus: core.bus, time: time)
        core.cacheRevalidation.include(keys.revalidatedCache)
        authenticator = CallerAuthenticator(adminKeys: settings.adminKeys, keys: keys, time: time)
        rateLimits = RateLimits(settings.rates, time: time)
        authenticationFailures = AuthenticationFailures(
            settings.rates.authenticationFailures, metrics: core.metrics, time: time)
        health = Health(vault: core.vault, time: time)
    }

    package var time: any Time { core.time }
    package var log: Log { core.log }
    package var metrics: Metrics { core.metrics }
    package var tenants: TenantDirectory { core.tenants }
    package var credentials: CredentialsProvider { core.credentials }
    package var logins: LoginFlow { core.logins }
    package var deviceLogins: DeviceFlow { core.deviceLogins }
    package var events: EventFeed { core.events }

    /// Begins the work that nobody asks for.
    package func start() {
        core.start()
    }

    /// Not ready from now on, and nobody is kept waiting for what may yet happen.
    package func beginDraining() {
        health.beginDraining()
        core.beginDraining()
    }

    /// Lets what is under way come to its end; see `CredentialsBroker.finish`.
    package func finish(within limit: Duration? = nil) async {
        await core.finish(within: limit)
    }

    /// Removes a tenant with everything under it.
    package func deleteTenant(_ name: TenantName) async throws(BrokerError) -> Bool {
        try await core.deleteTenant(name)
    }

    /// Shows the server's own counts in the metrics.
    package func observe(_ counters: @escaping @Sendable () -> ServerStatistics) {
        serverStatistics.withLock { $0 = counters }
    }

    /// Shows the counts of the server for probes and metrics, where they have one of their own.
    package func observeOperations(_ counters: @escaping @Sendable () -> ServerStatistics) {
        operationsStatistics.withLock { $0 = counters }
    }

    var currentServerStatistics: ServerStatistics? { serverStatistics.withLock { $0 }?() }
    var currentOperationsStatistics: ServerStatistics? { operationsStatistics.withLock { $0 }?() }
}
