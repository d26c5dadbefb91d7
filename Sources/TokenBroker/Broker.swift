package import BrokerCore
package import CredentialStore
package import HTTPServer
package import OAuth

/// All parts of the service that a route needs.
package final class Broker: Sendable {
    package struct Settings: Sendable {
        package var core = CredentialsBroker.Settings()
        /// The operators' keys. Nil, the default, lets no operator in.
        package var adminKeys: AdminKeys?
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

        package init() {}
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

    /// Reports the service as not ready from now on, and ends every long poll and event stream.
    package func beginDraining() {
        health.beginDraining()
        core.beginDraining()
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
