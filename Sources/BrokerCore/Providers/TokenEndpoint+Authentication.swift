import Containers
import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth
import Synchronization

/// One way in which a client can show who it is.
struct ClientWay: Hashable {
    let method: ProviderPreset.ClientAuthentication
    /// The place of the secret among those of a client that has two.
    var secret = 0
}

/// The ways in which providers have accepted clients that they refused in another one.
///
/// Some servers announce HTTP Basic and do not decode the form encoding of the two parts (RFC 6749 §2.3.1), so that they
/// refuse a secret with other characters than letters and digits: Doorkeeper, LemonLDAP::NG. Others announce several methods,
/// of which a client may use the one only that it is registered for.
final class AcceptedMethods: Sendable {
    struct Key: Hashable {
        private let endpoint: WireText
        private let clientID: WireText
        private let secretDigest: [UInt8]?

        /// - Parameter endpoint: the address. Each endpoint of a server may want another method.
        init(_ client: ClientConfiguration, at endpoint: String) {
            self.endpoint = WireText(endpoint)
            clientID = client.clientID
            secretDigest = client.fingerprint.clientSecretDigest
        }
    }

    /// The newest 4096. A client that is forgotten tries both methods again.
    private let accepted = Mutex(BoundedTable<Key, ClientWay>(capacity: 4096))

    /// The way of the first of these keys for which one is known.
    func way(of keys: Key...) -> ClientWay? {
        accepted.withLock { accepted in
            for key in keys { if let way = accepted[key] { return way } }
            return nil
        }
    }

    func note(_ way: ClientWay, for key: Key) {
        accepted.withLock { _ = $0.setNewest(way, forKey: key) }
    }
}

/// How requests show the provider who the client is.
extension TokenEndpoint {
    /// A request with the client's authentication.
    struct AuthenticatedRequest {
        /// Where there is `proving`, the request without what that adds.
        var message: ClientRequest
        /// The same by another method, for a provider that refuses the client; nil where no other one is tried.
        fileprivate var alternative: (message: ClientRequest, method: ProviderPreset.ClientAuthentication)?
        let key: AcceptedMethods.Key
        /// The access token in `Authorization` that is bound to the server's `proofKey`; nil for a request without one.
        var boundToken: SecretBytes?
        /// How the request is made for each sending, where the client shows something new in each; nil for most clients.
        fileprivate(set) var proving: Proving?

        /// The same, with that limit of the time of each try.
        func limited(to limit: Duration?) -> AuthenticatedRequest {
            var copy = self
            copy.message.timeLimit = limit
            copy.alternative?.message.timeLimit = limit
            return copy
        }
    }

    /// Makes a request by the method that the provider has accepted the client by last, at this endpoint or else at the token
    /// endpoint.
    /// - Parameters:
    ///   - endpoint: the address that the request is for.
    ///   - method: the method that is tried first where nothing is known.
    ///   - alternative: the method that is tried where the provider refuses the client; nil for none.
    ///   - make: makes the request of the client by the methods of the server that it gets.
    func authenticated(
        _ client: ClientConfiguration, at server: AuthorizationServer, for endpoint: String,
        by method: ProviderPreset.ClientAuthentication, or alternative: ProviderPreset.ClientAuthentication?,
        _ make: @escaping Proving.Make
    ) throws(BrokerError) -> AuthenticatedRequest {
        let key = AcceptedMethods.Key(client, at: endpoint)
        if client.material != nil || method == .clientSecretJWT {
            let proving = Proving(
                client, at: server, for: endpoint, by: [method, alternative].compactMap(\.self), make)
            return AuthenticatedRequest(message: try make(client, server), key: key, proving: proving)
        }
        guard let alternative else { return AuthenticatedRequest(message: try make(client, server), key: key) }
        let known = acceptedMethods.way(of: key, AcceptedMethods.Key(client, at: server.tokenEndpoint))?.method
        let (first, second) = known == alternative ? (alternative, method) : (method, alternative)
        func message(by method: ProviderPreset.ClientAuthentication) throws(BrokerError) -> ClientRequest {
            try make(client, server.authenticating(by: method))
        }
        return AuthenticatedRequest(
            message: try message(by: first), alternative: (try message(by: second), second), key: key)
    }

    /// A token request.
    func authenticated(
        _ request: TokenRequest, for client: ClientConfiguration, at server: AuthorizationServer
    ) throws(BrokerError) -> AuthenticatedRequest {
        if let own = request.ownForm(for: client, at: server) {
            return try authenticated(
                client, at: server, for: own.address, by: server.clientAuthentication, or: nil
            ) { client, server throws(BrokerError) in
                // The client may have got its secret from a file since.
                let own = request.ownForm(for: client, at: server) ?? own
                var message = try Self.message(own.format, to: own.address, own.pairs, nil, server)
                // By the method of its own form, which is GET where there is a query, whatever that of token requests is.
                if own.format == .query { message.method = .get }
                message.add(server.shape.tokenHeaders)
                return message
            }
        }
        let address = (request.grant == .refreshToken ? server.refreshEndpoint : nil) ?? server.tokenEndpoint
        return try authenticated(
            client, at: server, for: address, by: server.clientAuthentication, or: server.alternativeAuthentication
        ) { client, server throws(BrokerError) in
            let (form, authorization) = request.form(for: client, at: server)
            var message = try Self.message(
                server.preset.tokenRequestFormat, to: address, form, authorization, server)
            message.add(server.shape.tokenHeaders)
            // A code is good once. A connection that was kept may be lost after the request was sent, unanswered.
            message.needsNewConnection = request.grant == .authorizationCode
            return message
        }
    }

    /// The parameters as the members of a JSON object. One that is repeated, as `resource` can be, becomes a list.
    static func object(of pairs: [FormEncoding.Pair]) -> [UInt8] {
        JSONWriter.object { json in
            for (index, pair) in pairs.enumerated() where !pairs[..<index].contains(where: { $0.name == pair.name }) {
                let values = pairs[index...].filter { $0.name == pair.name }.map(\.value.text)
                if values.count > 1 {
                    json.member(pair.name.text, values)
                } else {
                    json.member(pair.name.text, pair.value.text)
                }
            }
        }
    }

    static func message(
        _ format: ProviderPreset.TokenRequestFormat, to endpoint: String, _ form: [FormEncoding.Pair],
        _ authorization: String?, _ server: AuthorizationServer
    ) throws(BrokerError) -> ClientRequest {
        switch format {
        case .form:
            var message = try ClientRequest(provider: server, .post, endpoint)
            message.fields.append("Content-Type", "application/x-www-form-urlencoded")
            if let authorization { message.fields.append("Authorization", authorization) }
            message.body = Array(FormEncoding.encode(form).utf8)
            return message
        case .json:
            var message = try ClientRequest(provider: server, .post, endpoint)
            message.fields.append("Content-Type", "application/json")
            if let authorization { message.fields.append("Authorization", authorization) }
            message.body = object(of: form)
            return message
        case .query:
            let method: Method = server.preset.tokenRequestMethod == .get ? .get : .post
            var message = try ClientRequest(provider: server, method, endpoint, query: form)
            if let authorization { message.fields.append("Authorization", authorization) }
            return message
        }
    }

    /// Sends a token request, and notes whether the provider answers.
    /// - Throws: `illegal_configuration` where the client lacks what it shows, such as a file. Nothing was sent.
    func send(
        _ request: AuthenticatedRequest, through circuit: ProviderClient.OfTenant?, at server: AuthorizationServer
    ) async throws(BrokerError) -> (message: ClientRequest, result: Result<ClientResponse, TransportError>) {
        try await send(request, at: server) { await self.send($0, through: circuit, at: server) }
    }

    /// Sends a request, and by the other method once more where the provider refuses the client. A provider authenticates the
    /// client before it looks at anything else (RFC 6749 §5.2), so that the first try has spent nothing.
    /// - Parameter isRevocation: whether it is a revocation, where Doorkeeper and the servers of the MCP SDK refuse a client with
    ///   `unauthorized_client`.
    /// - Returns: the request that has the result, and the result. Where neither method is accepted, they are the first ones.
    /// - Throws: `illegal_configuration` where the client lacks what it shows, such as a file. Nothing was sent.
    func send(
        _ request: AuthenticatedRequest, at server: AuthorizationServer, isRevocation: Bool = false,
        by send: (ClientRequest) async -> Result<ClientResponse, TransportError>
    ) async throws(BrokerError) -> (message: ClientRequest, result: Result<ClientResponse, TransportError>) {
        if let proving = request.proving {
            return try await sendProving(request, proving, isRevocation: isRevocation, by: send)
        }
        let key = server.proofKey
        let (message, first) = try await self.send(
            Sending(message: request.message, key: key, bearing: request.boundToken), by: send)
        guard let alternative = request.alternative, case .success(let refusal) = first,
            await Self.refusesClient(refusal, isRevocation: isRevocation)
        else { return (message, first) }
        let (other, second) = try await self.send(
            Sending(message: alternative.message, key: key, bearing: request.boundToken), by: send)
        guard case .success(let response) = second else { return (other, second) }
        guard let isAccepted = await Self.acceptsClient(response) else { return (message, first) }
        if isAccepted { note(ClientWay(method: alternative.method), for: request.key, at: server) }
        return (other, second)
    }

    /// Notes that the provider has accepted a client in another way than the first one.
    func note(_ way: ClientWay, for key: AcceptedMethods.Key, at server: AuthorizationServer) {
        acceptedMethods.note(way, for: key)
        log.info(
            "client_accepted_by_other_method", [.provider(server.preset), .endpoint(server.tokenEndpoint)])
    }

    /// Whether an answer says that the provider does not accept the client.
    static func refusesClient(_ response: ClientResponse, isRevocation: Bool) async -> Bool {
        guard let error = await error(in: response) else { return false }
        return error.isInvalidClient || isRevocation && error.isUnauthorizedClient
    }

    /// Whether the answer to another try shows that the provider accepts the client by it; nil where it refuses the client again.
    static func acceptsClient(_ response: ClientResponse) async -> Bool? {
        guard let error = await error(in: response) else { return (200..<300).contains(response.status.code) }
        let verdict = ClientVerdict(ofMadeUpCode: error, status: response.status.code)
        if case .accepted = verdict { return true }
        return nil
    }

    /// The error of a refusal that is not about the moment; nil for other answers.
    private static func error(in response: ClientResponse) async -> TokenErrorResponse? {
        guard RefusalPattern.isAllowed(status: response.status.code) else { return nil }
        return await InputReading.run(bytes: response.body.count) {
            TokenErrorResponse(body: response.body, answering: .none)
        }
    }
}

extension AuthorizationServer {
    /// The same server, where the client authenticates by that method at each endpoint.
    func authenticating(by method: ProviderPreset.ClientAuthentication) -> AuthorizationServer {
        var copy = self
        (copy.clientAuthentication, copy.revocationAuthentication) = (method, method)
        return copy
    }
}
