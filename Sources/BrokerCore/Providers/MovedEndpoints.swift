import Containers
import ExternalText
import OAuth
import Reactor
import Synchronization
import Waiting

/// Reads a provider's metadata again where its token endpoint answers as one that has moved: there is none at the address (404), or
/// it does not know the client. The metadata that are known are valid for an hour, in which no refresh would succeed.
///
/// Such answers have other reasons as well, a wrong secret above all, and come for all users at once. So the metadata of a provider are
/// read at most once a minute, whatever is found in them, and callers that come meanwhile wait for that read: at most as long as one
/// takes.
final class MovedEndpoints: Sendable {
    private static let pause: Duration = .seconds(60)

    private let servers: ProviderServers
    private let time: any Time
    private let log: Log
    /// When the metadata were read because of such an answer, of the newest 4096 providers. That of one that is forgotten are read
    /// once more than needed.
    private let last = Mutex(BoundedTable<ProviderSource, MonotonicInstant>(capacity: 4096))
    private let reads = SingleFlight<ProviderSource, Void>()

    init(servers: ProviderServers, time: any Time, log: Log) {
        self.servers = servers
        self.time = time
        self.log = log
    }

    /// Cancels the reads that are under way.
    func cancelAll() { reads.cancelAll() }

    /// Where a token request goes that has got such an answer, and how the client authenticates there, by the metadata as they are
    /// now.
    /// - Parameters:
    ///   - server: which has answered.
    ///   - tenant: with the client that has asked.
    /// - Returns: nil where they say the same as before, or cannot be had, and where no metadata name the token endpoint.
    func server(insteadOf server: AuthorizationServer, of tenant: Tenant) async -> AuthorizationServer? {
        let configuration = tenant.configuration
        guard configuration.configuredServer == nil, let issuer = configuration.effectiveIssuer else { return nil }
        // Another answer may have had them read since the request was made.
        if let moved = known(configuration, insteadOf: server) { return moved }
        let source = ProviderSource(issuer, for: configuration)
        _ = await reads.run(source, within: nil) { await self.read(source, for: tenant) }
        guard let moved = known(configuration, insteadOf: server) else { return nil }
        log.info(
            "token_endpoint_moved", [.tenant(tenant.name), .provider(moved.preset), .endpoint(moved.tokenEndpoint)])
        return moved
    }

    private func known(
        _ configuration: TenantConfiguration, insteadOf server: AuthorizationServer
    ) -> AuthorizationServer? {
        servers.knownServer(for: configuration).flatMap { $0.asksTokens(as: server) ? nil : $0 }
    }

    private func read(_ source: ProviderSource, for tenant: Tenant) async {
        let now = time.monotonic
        let isDue = last.withLock { last in
            if let time = last[source], time.advanced(by: Self.pause) > now { return false }
            _ = last.setNewest(now, forKey: source)
            return true
        }
        // What cannot be read now, or is no metadata, changes nothing.
        if isDue { _ = await servers.fetchAnew(for: tenant) }
    }
}

extension AuthorizationServer {
    /// Whether token requests go to the same address as those to the other one, and the client authenticates in the same ways.
    fileprivate func asksTokens(as other: AuthorizationServer) -> Bool {
        WireText(tokenEndpoint) == WireText(other.tokenEndpoint) && clientAuthentication == other.clientAuthentication
            && alternativeAuthentication == other.alternativeAuthentication
    }
}
