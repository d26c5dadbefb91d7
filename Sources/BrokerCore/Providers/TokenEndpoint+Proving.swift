import Cryptography
import ExternalText
import HTTPSClient
import OAuth

/// Requests of clients that show something new in each: a JWT for this request, what a file has now, one of two secrets, or a
/// certificate.
extension TokenEndpoint {
    /// How such a request is made.
    final class Proving: Sendable {
        /// Makes the request of the client by the methods of the server that it gets.
        typealias Make =
            @Sendable (_ client: ClientConfiguration, _ server: AuthorizationServer) throws(BrokerError) ->
            ClientRequest

        let client: ClientConfiguration
        let server: AuthorizationServer
        /// The address that the request is for.
        let endpoint: String
        let make: Make
        /// In the order in which they are tried where nothing is known.
        private let ways: [ClientWay]

        init(
            _ client: ClientConfiguration, at server: AuthorizationServer, for endpoint: String,
            by methods: [ProviderPreset.ClientAuthentication], _ make: @escaping Make
        ) {
            self.client = client
            self.server = server
            self.endpoint = endpoint
            self.make = make
            // The next secret by the first method comes before the first secret by another one: while secrets are changed, that is
            // what a refusal is about.
            ways = methods.flatMap { method in
                let secrets = method.showsSecret || method == .clientSecretJWT ? client.material?.secrets.count ?? 1 : 1
                return (0..<max(1, secrets)).map { ClientWay(method: method, secret: $0) }
            }
        }

        /// The ways in their order, that first which is known to be accepted.
        func ways(known: ClientWay?) -> [ClientWay] {
            guard let known, ways.contains(known) else { return ways }
            return [known] + ways.filter { $0 != known }
        }
    }

    /// Sends a request, and in another way once more where the provider refuses the client.
    /// - Throws: `illegal_configuration` where the client lacks what it shows. Nothing was sent then in that way.
    func sendProving(
        _ request: AuthenticatedRequest, _ proving: Proving, isRevocation: Bool,
        by send: (ClientRequest) async -> Result<ClientResponse, TransportError>
    ) async throws(BrokerError) -> (message: ClientRequest, result: Result<ClientResponse, TransportError>) {
        let known = acceptedMethods.way(
            of: request.key, AcceptedMethods.Key(proving.client, at: proving.server.tokenEndpoint))
        var ways = proving.ways(known: known)[...]
        let (message, first) = try await self.send(Sending(request, proving, ways.removeFirst()), by: send)
        guard !ways.isEmpty, case .success(let refusal) = first,
            await Self.refusesClient(refusal, isRevocation: isRevocation)
        else { return (message, first) }
        for way in ways {
            let (other, result): (ClientRequest, Result<ClientResponse, TransportError>)
            do throws(BrokerError) {
                (other, result) = try await self.send(Sending(request, proving, way), by: send)
            } catch {
                // Nothing was sent in this way. The provider's refusal says more of the client than what this way lacks.
                continue
            }
            guard case .success(let response) = result else { return (other, result) }
            guard let isAccepted = await Self.acceptsClient(response) else { continue }
            if isAccepted { note(way, for: request.key, at: proving.server) }
            return (other, result)
        }
        return (message, first)
    }

    /// Makes a request anew.
    /// - Parameter message: the same without what the client shows, with the limit of the time of each try.
    func message(
        _ message: ClientRequest, _ proving: Proving, _ way: ClientWay
    ) async throws(BrokerError) -> ClientRequest {
        let limit = message.timeLimit
        var server = proving.server.authenticating(by: way.method)
        server.requestedEndpoint = proving.endpoint
        let client = try await shown(proving.client, by: way.method, secret: way.secret, at: server)
        var message = try proving.make(client, server)
        message.timeLimit = limit
        message.certificate = client.material?.certificate.map { ClientCertificate(pem: $0) }
        return message
    }

    /// The client with what one request shows of it.
    /// - Parameter secret: the place of the secret among those of a client that has two.
    /// - Throws: `illegal_configuration` where the client lacks that, such as a file.
    func shown(
        _ client: ClientConfiguration, by method: ProviderPreset.ClientAuthentication, secret: Int = 0,
        at server: AuthorizationServer
    ) async throws(BrokerError) -> ClientConfiguration {
        let (now, directories) = (time.now, clientFileDirectories)
        let secrets = client.material?.secrets ?? []
        let client = secrets.indices.contains(secret) ? client.showing(secret: secrets[secret]) : client
        switch method {
        case .none, .tlsClientAuth: return client
        case .clientSecretBasic, .clientSecretPost, .clientSecretBearer:
            if client.material?.secretFile == nil { return client }
        case .privateKeyJWT, .clientSecretJWT, .clientAssertionFile: break
        }
        // Files and signatures take longer than an event loop has time for.
        return try await InputReading.runOnGlobalPool { () throws(BrokerError) in
            try Self.shown(client, by: method, at: server, now: now, filesBelow: directories)
        }
    }

    private static func shown(
        _ client: ClientConfiguration, by method: ProviderPreset.ClientAuthentication, at server: AuthorizationServer,
        now: Timestamp, filesBelow directories: [String]?
    ) throws(BrokerError) -> ClientConfiguration {
        switch method {
        case .none, .tlsClientAuth: return client
        case .clientSecretBasic, .clientSecretPost, .clientSecretBearer:
            return try withSecret(client, below: directories)
        case .clientAssertionFile:
            guard let path = client.material?.assertionFile else { throw lacking("client_assertion_file") }
            return client.showing(assertion: try ClientFile.assertion(at: path, below: directories))
        case .privateKeyJWT, .clientSecretJWT:
            let isByKey = method == .privateKeyJWT
            let client = isByKey ? client : try withSecret(client, below: directories)
            do throws(ClientAssertion.Fault) {
                return client.showing(
                    assertion: try ClientAssertion.sign(
                        by: isByKey ? .privateKey : .secret, for: client, at: server, now: now))
            } catch {
                throw switch error {
                case .missing: lacking(isByKey ? "private_key" : "client_secret")
                case .shortSecret:
                    BrokerError(
                        .illegalConfiguration,
                        "The tenant's client secret is too short to sign with: client_secret_jwt needs 32 bytes.")
                case .unavailable: BrokerError(.internalError, "The client's JWT could not be signed.")
                }
            }
        }
    }

    /// The client with the secret of its file, if it has one.
    private static func withSecret(
        _ client: ClientConfiguration, below directories: [String]?
    ) throws(BrokerError) -> ClientConfiguration {
        guard let path = client.material?.secretFile else { return client }
        return client.showing(secret: try ClientFile.secret(at: path, below: directories))
    }

    private static func lacking(_ member: String) -> BrokerError {
        BrokerError(
            .illegalConfiguration,
            "The tenant has no \(member), which its token_endpoint_auth_method needs. Users stay logged in meanwhile.")
    }
}
