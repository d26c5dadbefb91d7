import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Reactor
import Waiting

/// Reads, changes and ends the registrations of clients at servers that let a client do so (RFC 7592), and sends what registers
/// one.
final class ClientManagement: Sendable {
    private let transport: any ProviderTransport
    private let instruments: Instruments
    private let endings = SingleFlight<WireText, Void>()

    /// The longest time of a request.
    static let longestRequest: Duration = .seconds(10)
    /// More registrations than that are not being ended at once.
    private static let mostEndings = 64

    init(transport: any ProviderTransport, instruments: Instruments) {
        self.transport = transport
        self.instruments = instruments
    }

    /// Suspends until no registration is being ended.
    func finish() async { await endings.finish() }

    /// Cancels the requests that end registrations.
    /// - Returns: how many there were.
    func cancelAll() -> Int {
        defer { endings.cancelAll() }
        return endings.count
    }

    /// What a server says of the registration of a client.
    enum Reading: Sendable {
        /// The client as it is registered now.
        case registered(RegisteredClient)
        /// The registration is not there (401, 404, 410). That alone does not show that the client is gone: another replica may have
        /// been given the next token for the registration, and what misroutes a request answers 404 to it, too.
        case missing
        /// Any other answer, or none.
        case unclear
    }

    /// Asks the server for the registration of a client (RFC 7592 §2.1).
    func read(_ client: RegisteredClient, of tenant: Tenant) async -> Reading {
        guard let response = await ask(.get, client, of: tenant) else { return .unclear }
        switch response.status.code {
        case 200: return await told(response, client).map { .registered($0) } ?? .unclear
        case 401, 404, 410: return .missing
        default: return .unclear
        }
    }

    /// Gives the registration the metadata (RFC 7592 §2.2).
    /// - Returns: the client as it is registered now; nil where the server does not take that.
    func change(
        _ client: RegisteredClient, to metadata: ClientMetadata, of tenant: Tenant
    ) async -> RegisteredClient? {
        var metadata = metadata
        metadata.method = client.method
        let body = JSONWriter.object { json in
            json.member("client_id", client.clientID.text)
            json.memberIfPresent("client_secret", client.secret?.revealedText)
            metadata.encode(to: &json)
        }
        guard let response = await ask(.put, client, body: body, of: tenant), response.status == .ok else { return nil }
        return await told(response, client, redirectURIs: metadata.redirectURIs)
    }

    /// Begins to end registrations that are of no use any more (RFC 7592 §2.3), and does not wait for that. What a server does
    /// not answer to stays registered there, with a line in the log.
    func end(_ clients: [RegisteredClient], of tenant: Tenant) {
        for client in clients {
            guard let management = client.management else { continue }
            endings.start(WireText(management.uri), below: Self.mostEndings) {
                let response = await self.ask(.delete, client, of: tenant)
                let fields: [LogField] = [.tenant(tenant.name), .provider(tenant.configuration.preset)]
                guard let response else { return }
                if [200, 202, 204, 404, 410].contains(response.status.code) {
                    self.instruments.log.info("client_registration_ended", fields)
                } else {
                    self.instruments.log.warning("client_registration_kept", fields + [.status(response.status)])
                }
            }
        }
    }

    /// Sends one request about a registration that exists.
    /// - Returns: nil where there is no answer, or no address to ask at.
    private func ask(
        _ method: Method, _ client: RegisteredClient, body: [UInt8] = [], of tenant: Tenant
    ) async -> ClientResponse? {
        guard let management = client.management, let url = URLTarget(management.uri) else { return nil }
        do throws(BrokerError) {
            var request = try ClientRequest(
                get: url, ["Accept": "application/json"], for: tenant.configuration, timeLimit: Self.longestRequest)
            request.method = method
            request.fields.append("Authorization", "Bearer \(management.token.revealedText)")
            if !body.isEmpty {
                request.fields.append("Content-Type", "application/json")
                request.body = body
            }
            return try await send(request, to: management.uri, of: tenant)
        } catch {
            return nil
        }
    }

    private func told(
        _ response: ClientResponse, _ client: RegisteredClient, redirectURIs: [String]? = nil
    ) async -> RegisteredClient? {
        await InputReading.run(bytes: response.body.count) {
            (try? JSONValue(parsing: response.body)).flatMap { client.updated(by: $0, redirectURIs: redirectURIs) }
        }
    }

    /// Sends one request about a registration. Counts it, and logs a failure.
    /// - Throws: `illegal_configuration`, `provider_untrusted` and `network_error` where there is no answer.
    func send(
        _ request: ClientRequest, to address: String, of tenant: Tenant
    ) async throws(BrokerError) -> ClientResponse {
        let call = ProviderResource.Call(
            request: request, address: address, preset: tenant.configuration.preset, fields: [.tenant(tenant.name)])
        return try await ProviderResource.registration.send(call, over: transport, instruments)
    }
}
