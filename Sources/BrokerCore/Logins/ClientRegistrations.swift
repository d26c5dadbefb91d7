internal import Containers
internal import Cryptography
internal import ExternalText
internal import HTTPCodec
internal import HTTPSClient
internal import JSON
internal import OAuth
internal import Reactor
internal import Synchronization

/// Registers clients at authorization servers (RFC 7591), and finds out whether a server still knows one.
final class ClientRegistrations: Sendable {
    private let providers: ProviderAccess
    private let clientFaults: ClientFaults
    private let transport: any ProviderTransport
    private let targets: TargetPolicy
    private let instruments: Instruments
    /// When servers were last seen to know their clients, of the newest 4096.
    private let seen = Mutex(BoundedTable<WireText, MonotonicInstant>(capacity: 4096))

    /// For how long a server is taken to know a client that it knew.
    private static let validity: Duration = .seconds(600)
    /// A secret that ends sooner is replaced at a login.
    private static let leastLife: Duration = .seconds(86_400)
    private static let longestRequest: Duration = .seconds(10)

    init(
        providers: ProviderAccess, clientFaults: ClientFaults, transport: any ProviderTransport, targets: TargetPolicy,
        instruments: Instruments
    ) {
        self.providers = providers
        self.clientFaults = clientFaults
        self.transport = transport
        self.targets = targets
        self.instruments = instruments
    }

    /// Whether a login can go on with the client: its redirect URIs are the tenant's, its secret lives on, and the server has not
    /// forgotten it. A user would meet a forgotten client on the server's page, of which the broker does not hear.
    func isGood(
        _ client: RegisteredClient, for asked: ClientMetadata, _ found: FoundAuthorization, of tenant: Tenant
    ) async -> Bool {
        guard Set(asked.redirectURIs).isSubset(of: client.redirectURIs) else { return false }
        if let end = client.secretExpires, end <= instruments.time.now.advanced(by: Self.leastLife) { return false }
        if await clientFaults.current(of: tenant)?.errorCode == "invalid_client" { return false }
        let last = seen.withLock { $0[Self.key(client, found.issuer)] }
        if let last, last.advanced(by: Self.validity) > instruments.time.monotonic { return true }
        guard await isKnown(client, found, of: tenant) else { return false }
        note(client, at: found.issuer)
        return true
    }

    private func note(_ client: RegisteredClient, at issuer: String) {
        let now = instruments.time.monotonic
        seen.withLock { _ = $0.setNewest(now, forKey: Self.key(client, issuer)) }
    }

    private static func key(_ client: RegisteredClient, _ issuer: String) -> WireText {
        WireText("\(issuer) \(client.clientID.text)")
    }

    /// Whether the server knows the client, by a request that changes nothing there. An answer that can mean either counts as yes.
    private func isKnown(_ client: RegisteredClient, _ found: FoundAuthorization, of tenant: Tenant) async -> Bool {
        let configuration = tenant.configuration.finding(found)
        let asking = Tenant(name: tenant.name, version: tenant.version, configuration: configuration)
        do throws(BrokerError) {
            let server = try await providers.servers.server(for: asking)
            return try await providers.trials.accepts(configuration.client, of: asking, at: server)
        } catch {
            return true
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
            timeLimit: Self.longestRequest)
        request.method = .post
        request.body = JSONWriter.object { metadata.encode(to: &$0) }
        let response = try await send(request, to: endpoint, of: tenant)
        guard (200...201).contains(response.status.code) else { throw refusal(response, at: endpoint) }
        let client = await InputReading.run(bytes: response.body.count) {
            (try? JSONValue(parsing: response.body)).flatMap { RegisteredClient($0, asked: metadata) }
        }
        guard let client else {
            throw BrokerError(
                .illegalConfiguration,
                "The authorization server registered a client at \(endpoint) whose answer has no usable client_id, or a "
                    + "token_endpoint_auth_method without what it takes.")
        }
        note(client, at: issuer)
        instruments.log.info("client_registered", [.tenant(tenant.name), .provider(configuration.preset)])
        return client
    }

    private func send(
        _ request: ClientRequest, to endpoint: String, of tenant: Tenant
    ) async throws(BrokerError) -> ClientResponse {
        let preset = tenant.configuration.preset
        let start = instruments.time.monotonic
        func count(_ code: String) {
            instruments.metrics.providerAnswered(
                provider: preset.name, endpoint: .registration, code: code,
                took: start.duration(to: instruments.time.monotonic))
        }
        do throws(TransportError) {
            let response = try await transport.send(request)
            count(String(response.status.code))
            return response
        } catch {
            count("error")
            instruments.log.warning(
                "registration_request_failed", [.tenant(tenant.name), .provider(preset), .transport(error)])
            throw .permanentFailure(error, at: endpoint)
                ?? BrokerError(
                    .networkError, "The address for registrations could not be reached at \(endpoint).",
                    retryAfter: ProviderResource.retryAfter)
        }
    }

    private func refusal(_ response: ClientResponse, at endpoint: String) -> BrokerError {
        let isPassing = response.status.code >= 500 || [408, 425, 429].contains(response.status.code)
        if isPassing {
            return BrokerError(
                .retryableError, "The authorization server cannot register a client now.",
                retryAfter: ProviderResource.retryAfter)
        }
        let error = (try? JSONValue(parsing: response.body))?["error"]?.string.flatMap { $0.count <= 100 ? $0.text : nil }
        return BrokerError(
            .illegalConfiguration,
            "The authorization server refuses to register a client at \(endpoint): it answered with status "
                + "\(response.status.code). Register one there, and set its client_id.",
            errorCode: error)
    }
}
