package import BrokerCore
package import CredentialStore
package import HTTPServer
package import OAuth

/// All parts of the service that a route needs.
package final class Broker: Sendable {
    /// The settings of the core are also members of this type.
    @dynamicMemberLookup
    package struct Settings: Sendable {
        package var core = CredentialsBroker.Settings()
        package var adminKeys: AdminKeys
        package var rates = Rates()
        /// How long an API key is valid whose creator does not say it; nil for without end, which is the default.
        package var apiKeyLifetime: Duration?
        /// For how long an API key may be valid from its creation or rotation on; nil for any time, which is the default.
        package var apiKeyLongestLifetime: Duration?
        /// The version that `/` shows; empty shows none.
        package var version = ""
        /// Whether probes and metrics are answered by a listener of their own.
        package var hasOperationsListener = false
        /// Whether each successful `GET /credentials` gets a line in the log. If not, the metrics only count them.
        package var logsReads = false

        package subscript<Value>(dynamicMember member: WritableKeyPath<CredentialsBroker.Settings, Value>) -> Value {
            get { core[keyPath: member] }
            set { core[keyPath: member] = newValue }
        }

        /// - Parameter publicBaseURL: the URL without a slash at its end.
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

    package init(
        settings: Settings, vault: Vault, journal: Journal? = nil, transport: any ProviderTransport, time: any Time,
        log: Log
    ) {
        self.settings = settings
        core = CredentialsBroker(
            settings: settings.core, vault: vault, journal: journal, transport: transport, time: time, log: log)
        keys = CallerKeyDirectory(vault: core.vault, tombstones: core.tombstones, bus: core.bus, time: time)
        core.cacheRevalidation.include(keys.revalidatedCache)
        authenticator = CallerAuthenticator(
            adminKeys: settings.adminKeys, keys: keys, workloads: core.workloads, time: time)
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

    /// Starts the background jobs.
    package func start() {
        core.start()
    }

    /// Reports the service as not ready from now on, and ends every long poll and event stream.
    package func beginDraining() {
        health.beginDraining()
        core.beginDraining()
    }

    /// Waits until running work has ended; see `CredentialsBroker.finish`.
    package func finish(within limit: Duration? = nil) async {
        await core.finish(within: limit)
    }

    /// Removes a tenant with its API keys, logins and credentials.
    /// - Parameter isWanted: whether the tenant may be removed that has this version now; nil for any.
    /// - Throws: `precondition_failed` for one that may not.
    package func deleteTenant(
        _ name: TenantName, isWanted: (@Sendable (Int64?) -> Bool)? = nil
    ) async throws(BrokerError) -> Bool {
        try await core.deleteTenant(name, isWanted: isWanted)
    }

    /// Adds the server's counts to the metrics.
    package func observe(_ counters: @escaping @Sendable () -> ServerStatistics) {
        metrics.show(server: counters)
    }

    /// Adds the counts of the separate server for probes and metrics to the metrics.
    package func observeOperations(_ counters: @escaping @Sendable () -> ServerStatistics) {
        metrics.show(operationsServer: counters)
    }

    /// Adds the expiry of the listener's certificate to the metrics.
    package func observeCertificate(_ expires: @escaping @Sendable () -> Timestamp) {
        metrics.show(.tlsCertificateExpirySeconds) { Int(expires().seconds) }
    }
}
