internal import Containers
internal import ExternalText
internal import HTTPCodec
internal import HTTPSClient
internal import JSON
internal import OAuth
internal import Synchronization

/// The methods by which providers have accepted clients that they refused by another one.
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
    private let accepted = Mutex(BoundedTable<Key, ProviderPreset.ClientAuthentication>(capacity: 4096))

    /// The method of the first of these keys for which one is known.
    func method(of keys: Key...) -> ProviderPreset.ClientAuthentication? {
        accepted.withLock { accepted in
            for key in keys { if let method = accepted[key] { return method } }
            return nil
        }
    }

    func note(_ method: ProviderPreset.ClientAuthentication, for key: Key) {
        accepted.withLock { _ = $0.setNewest(method, forKey: key) }
    }
}

/// How requests show the provider who the client is.
extension TokenEndpoint {
    /// A request with the client's authentication.
    struct AuthenticatedRequest {
        var message: ClientRequest
        /// The same by another method, for a provider that refuses the client; nil where no other one is tried.
        fileprivate var alternative: (message: ClientRequest, method: ProviderPreset.ClientAuthentication)?
        fileprivate let key: AcceptedMethods.Key

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
    ///   - make: makes the request by the methods of the server that it gets.
    func authenticated(
        _ client: ClientConfiguration, at server: AuthorizationServer, for endpoint: String,
        by method: ProviderPreset.ClientAuthentication, or alternative: ProviderPreset.ClientAuthentication?,
        _ make: (AuthorizationServer) throws(BrokerError) -> ClientRequest
    ) throws(BrokerError) -> AuthenticatedRequest {
        let key = AcceptedMethods.Key(client, at: endpoint)
        guard let alternative else { return AuthenticatedRequest(message: try make(server), key: key) }
        let known = acceptedMethods.method(of: key, AcceptedMethods.Key(client, at: server.tokenEndpoint))
        let (first, second) = known == alternative ? (alternative, method) : (method, alternative)
        func message(by method: ProviderPreset.ClientAuthentication) throws(BrokerError) -> ClientRequest {
            var server = server
            (server.clientAuthentication, server.revocationAuthentication) = (method, method)
            return try make(server)
        }
        return AuthenticatedRequest(
            message: try message(by: first), alternative: (try message(by: second), second), key: key)
    }

    /// A token request.
    func authenticated(
        _ request: TokenRequest, for client: ClientConfiguration, at server: AuthorizationServer
    ) throws(BrokerError) -> AuthenticatedRequest {
        try authenticated(
            client, at: server, for: server.tokenEndpoint, by: server.clientAuthentication,
            or: server.alternativeAuthentication
        ) { server throws(BrokerError) in
            let (form, authorization) = request.form(for: client, at: server)
            let address = request.grant == .refreshToken ? server.refreshEndpoint : nil
            var message = try Self.message(
                server.preset.tokenRequestFormat, to: address ?? server.tokenEndpoint, form, authorization, server)
            for field in server.shape.tokenHeaders.fields { message.fields.set(field.name.text, field.value.text) }
            // A code is good once. A connection that was kept may be lost after the request was sent, unanswered.
            message.needsNewConnection = request.grant == .authorizationCode
            return message
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
            message.body = JSONWriter.object { json in
                for pair in form { json.member(pair.name.text, pair.value.text) }
            }
            return message
        case .query:
            var message = try ClientRequest(provider: server, .get, endpoint, query: form)
            if let authorization { message.fields.append("Authorization", authorization) }
            return message
        }
    }

    /// Sends a token request, and notes whether the provider answers.
    func send(
        _ request: AuthenticatedRequest, through circuit: ProviderCircuits.Key?, at server: AuthorizationServer
    ) async -> (message: ClientRequest, result: Result<ClientResponse, TransportError>) {
        await send(request, at: server) { await self.send($0, through: circuit, at: server) }
    }

    /// Sends a request, and by the other method once more where the provider refuses the client. A provider authenticates the
    /// client before it looks at anything else (RFC 6749 §5.2), so that the first try has spent nothing.
    /// - Parameter isRevocation: whether it is a revocation, where Doorkeeper and the servers of the MCP SDK refuse a client with
    ///   `unauthorized_client`.
    /// - Returns: the request that has the result, and the result. Where neither method is accepted, they are the first ones.
    func send(
        _ request: AuthenticatedRequest, at server: AuthorizationServer, isRevocation: Bool = false,
        by send: (ClientRequest) async -> Result<ClientResponse, TransportError>
    ) async -> (message: ClientRequest, result: Result<ClientResponse, TransportError>) {
        let first = await self.send(request.message, proving: server.proofKey, by: send)
        guard let alternative = request.alternative, case .success(let refusal) = first,
            let error = await Self.error(in: refusal),
            error.isInvalidClient || isRevocation && error.isUnauthorizedClient
        else { return (request.message, first) }
        let second = await self.send(alternative.message, proving: server.proofKey, by: send)
        guard case .success(let response) = second else { return (alternative.message, second) }
        var isAccepted = (200..<300).contains(response.status.code)
        if let error = await Self.error(in: response) {
            let verdict = ClientVerdict(ofMadeUpCode: error, status: response.status.code)
            guard case .accepted = verdict else { return (request.message, first) }
            isAccepted = true
        }
        if isAccepted {
            acceptedMethods.note(alternative.method, for: request.key)
            log.info(
                "client_accepted_by_other_method",
                [.provider(server.preset), .endpoint(server.tokenEndpoint)])
        }
        return (alternative.message, second)
    }

    /// The error of a refusal that is not about the moment; nil for other answers.
    private static func error(in response: ClientResponse) async -> TokenErrorResponse? {
        guard RefusalPattern.isAllowed(status: response.status.code) else { return nil }
        return await InputReading.run(bytes: response.body.count) {
            TokenErrorResponse(body: response.body, answering: .none)
        }
    }
}
