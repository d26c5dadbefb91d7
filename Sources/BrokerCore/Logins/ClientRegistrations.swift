import Containers
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Reactor
import Synchronization

/// Registers clients at authorization servers (RFC 7591), and finds out whether a server still knows one.
final class ClientRegistrations: Sendable {
    private let providers: ProviderAccess
    private let clientFaults: ClientFaults
    private let management: ClientManagement
    private let instruments: Instruments
    /// When servers were last seen to know their clients, of the newest 4096.
    private let seen = Mutex(BoundedTable<WireText, MonotonicInstant>(capacity: 4096))

    /// For how long a server is taken to know a client that it knew.
    private static let validity: Duration = .seconds(600)
    /// A secret that ends sooner is of no use to a login. One that ends later is used on: each client has a registration of its own.
    private static let leastLife: Duration = .seconds(600)

    init(
        providers: ProviderAccess, clientFaults: ClientFaults, management: ClientManagement, instruments: Instruments
    ) {
        self.providers = providers
        self.clientFaults = clientFaults
        self.management = management
        self.instruments = instruments
    }

    /// The client as a login can go on with it: the tenant's redirect URI is registered, its secret lives on, and the server has
    /// not forgotten it. A user would meet a forgotten client on the server's page, of which the broker does not hear.
    ///
    /// Redirect URIs of the tenant that the client lacks are registered where the server lets a client change its registration.
    /// Elsewhere the client stays as it is while it has the broker's own: a server may forget clients that get no logins.
    /// - Returns: nil where another client is needed.
    func current(
        _ client: RegisteredClient, for asked: ClientMetadata, _ found: FoundAuthorization, of tenant: Tenant
    ) async -> RegisteredClient? {
        let key = Self.key(client, asked, found.issuer)
        let fault = await clientFaults.current(of: tenant)
        let isRefused = fault?.errorCode.map { WireText($0) } == ClientFault.unknownClient
        if !isRefused, isUsable(client, for: asked), wasSeen(key) { return client }
        guard var current = await known(client, found, of: tenant) else { return nil }
        if !Set(asked.redirectURIs).isSubset(of: current.redirectURIs),
            let changed = await management.change(current, to: asked, of: tenant)
        {
            current = changed
        }
        guard isUsable(current, for: asked) else { return nil }
        note(key)
        return current
    }

    private func isUsable(_ client: RegisteredClient, for asked: ClientMetadata) -> Bool {
        if let end = client.secretExpires, end <= instruments.time.now.advanced(by: Self.leastLife) { return false }
        return asked.redirectURIs.first.map { client.redirectURIs.contains($0) } ?? true
    }

    private func wasSeen(_ key: WireText) -> Bool {
        let last = seen.withLock { $0[key] }
        return last.map { $0.advanced(by: Self.validity) > instruments.time.monotonic } ?? false
    }

    private func note(_ key: WireText) {
        let now = instruments.time.monotonic
        seen.withLock { _ = $0.setNewest(now, forKey: key) }
    }

    /// A client, and what it is to have.
    private static func key(_ client: RegisteredClient, _ asked: ClientMetadata, _ issuer: String) -> WireText {
        WireText(([issuer, client.clientID.text] + asked.redirectURIs).joined(separator: " "))
    }

    /// The client as its server tells of it; nil where that has forgotten it: it says so by name, or two of its answers agree. One
    /// answer without a name may be of something else: a gateway sends 401, too, and 404 for what it does not route.
    private func known(
        _ client: RegisteredClient, _ found: FoundAuthorization, of tenant: Tenant
    ) async -> RegisteredClient? {
        let reading = await management.read(client, of: tenant)
        if case .registered(let current) = reading { return current }
        switch (await refusal(found, of: tenant), reading) {
        case (.named, _), (.unnamed, .missing): return nil
        default: return client
        }
    }

    /// How the server refuses the client in answer to a request that changes nothing there; nil where it does not, or does not answer.
    private func refusal(_ found: FoundAuthorization, of tenant: Tenant) async -> ClientTrials.ClientRefusal? {
        let configuration = tenant.configuration.finding(found)
        let asking = Tenant(name: tenant.name, version: tenant.version, configuration: configuration)
        do throws(BrokerError) {
            let server = try await providers.servers.server(for: asking)
            return try await providers.trials.refusal(of: configuration.client, of: asking, at: server)
        } catch {
            return nil
        }
    }

    /// Registers a client at the issuer, whose address for that the metadata have named.
    /// - Throws: `illegal_configuration` where the server refuses, or its answer is not usable; `retryable_error` and
    ///   `network_error` where it cannot answer now.
    func register(
        _ metadata: ClientMetadata, at endpoint: String, of issuer: String, for tenant: Tenant
    ) async throws(BrokerError) -> RegisteredClient {
        let configuration = tenant.configuration
        guard let url = URLTarget(endpoint) else {
            throw BrokerError(.illegalConfiguration, "The address for registrations is not a usable URL.")
        }
        var request = try ClientRequest(
            get: url, ["Accept": "application/json", "Content-Type": "application/json"], for: configuration,
            timeLimit: ClientManagement.longestRequest)
        request.method = .post
        request.body = JSONWriter.object { metadata.encode(to: &$0) }
        let response = try await management.send(request, to: endpoint, of: tenant)
        guard (200...201).contains(response.status.code) else { throw refusal(response, at: endpoint) }
        let client = await InputReading.run(bytes: response.body.count) {
            (try? JSONValue(parsing: response.body)).flatMap { RegisteredClient($0, asked: metadata) }
        }
        guard var client else {
            throw BrokerError(
                .illegalConfiguration,
                "The authorization server registered a client at \(endpoint) whose answer has no usable client_id, or a "
                    + "token_endpoint_auth_method without what it takes.")
        }
        // An address elsewhere would have the broker send requests to whatever the server names.
        if let uri = client.management?.uri, URLTarget(uri)?.origin != url.origin { client = client.withoutManagement }
        note(Self.key(client, metadata, issuer))
        instruments.log.info("client_registered", [.tenant(tenant.name), .provider(configuration.preset)])
        return client
    }

    private func refusal(_ response: ClientResponse, at endpoint: String) -> BrokerError {
        let isPassing = response.status.code >= 500 || [408, 425, 429].contains(response.status.code)
        if isPassing {
            return BrokerError(
                .retryableError, "The authorization server cannot register a client now.",
                retryAfter: ProviderResource.retryAfter)
        }
        let error = (try? JSONValue(parsing: response.body))?["error"]?.string.flatMap {
            $0.count <= 100 ? $0.text : nil
        }
        return BrokerError(
            .illegalConfiguration,
            "The authorization server refuses to register a client at \(endpoint): it answered with status "
                + "\(response.status.code). Register one there, and set its client_id.",
            errorCode: error)
    }
}
