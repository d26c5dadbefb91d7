import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth

/// Why a session could not be ended at its provider.
package struct RevocationFailure: Sendable, Equatable {
    /// What callers would get for such an answer.
    package let code: BrokerError.Code
    /// The status of the provider's answer; nil where it has given none.
    package var status: Int?
    /// The provider's error code, checked by `ErrorText`; nil for none.
    package var errorCode: String?
    /// Whether the provider would answer every further try in the same way.
    var isFinal = false
    /// Whether the provider does not accept the client.
    var isOfClient = false
    /// How long the provider is not to be asked again.
    var retryAfter: Duration?

    /// The configured provider has no endpoint that ends sessions, or has not granted the credentials.
    static let unsupported = RevocationFailure(code: .illegalConfiguration)

    var fields: [LogField] {
        var fields: [LogField] = [.code(code)]
        if let status { fields.append(.status(Status(status))) }
        if let errorCode { fields.append(.providerError(code: errorCode)) }
        return fields
    }
}

/// Ends sessions at providers.
extension TokenEndpoint {
    /// Revokes credentials by one call: at a provider that logs out by access token in that way, else (RFC 7009 §2.1) by their
    /// refresh token, which also ends the access tokens of the grant, or by the access token where there is no refresh token.
    /// - Returns: nil where the provider has confirmed that.
    func revoke(
        _ held: HeldCredentials, for client: ClientConfiguration, at server: AuthorizationServer
    ) async -> RevocationFailure? {
        if let endpoint = server.logoutEndpoint { return await logOut(held, endpoint, at: server) }
        guard let endpoint = server.revocationEndpoint else { return .unsupported }
        let shape = server.shape.revocation
        let bearsBound = shape?.bearsBoundToken(of: held) ?? false
        // A public client shows by the key that the tokens are its own.
        var server = server
        server.proofKey = bearsBound || held.refreshToken == nil ? held.proofKey : held.proofKey?.ofRefreshes
        var request: AuthenticatedRequest
        if let method = shape?.authentication {
            (server.revocationAuthentication, server.alternativeRevocationAuthentication) = (method, nil)
        }
        do throws(BrokerError) {
            request = try authenticated(
                client, at: server, for: endpoint, by: server.revocationAuthentication,
                or: server.alternativeRevocationAuthentication
            ) { client, server throws(BrokerError) in
                if let shape { return try Self.message(shape, for: held, of: client, to: endpoint, server) }
                var form: [FormEncoding.Pair] = [
                    .init("token", (held.refreshToken ?? held.accessToken).revealedText),
                    .init("token_type_hint", held.hasRefreshToken ? "refresh_token" : "access_token"),
                ]
                let authorization = ClientAuthenticator.authenticate(
                    client, by: server.revocationAuthentication, at: server, into: &form)
                return try Self.message(.form, to: endpoint, form, authorization, server)
            }
            if bearsBound { request.boundToken = held.accessToken }
        } catch {
            return RevocationFailure(code: error.code)
        }
        let (message, result): (ClientRequest, Result<ClientResponse, TransportError>)
        do throws(BrokerError) {
            (message, result) = try await send(request, at: server, isRevocation: true) {
                await self.send($0, endpoint: .revocation, server: server)
            }
        } catch {
            return RevocationFailure(code: error.code)
        }
        switch result {
        case .failure(let error): return Self.failure(of: error)
        case .success(let response) where response.status == .ok || response.status == .noContent: return nil
        case .success(let response):
            return Self.failure(of: await refusal(response, to: message, at: server, []), client, server)
        }
    }

    /// A revocation at an endpoint that is not as RFC 7009 describes it.
    private static func message(
        _ shape: RevocationShape, for held: HeldCredentials, of client: ClientConfiguration, to endpoint: String,
        _ server: AuthorizationServer
    ) throws(BrokerError) -> ClientRequest {
        let request = shape.request(for: held, of: client, at: server)
        var message = try ClientRequest(
            provider: server, shape.method == .delete ? .delete : .post, endpoint, query: request.query)
        if let authorization = request.authorization { message.fields.append("Authorization", authorization) }
        switch shape.format {
        case .form:
            message.fields.append("Content-Type", "application/x-www-form-urlencoded")
            message.body = Array(FormEncoding.encode(request.body).utf8)
        case .json:
            message.fields.append("Content-Type", "application/json")
            message.body = object(of: request.body)
        case .none: break
        }
        message.add(server.shape.tokenHeaders)
        return message
    }

    /// Ends the session of an access token at a provider with an endpoint for that.
    private func logOut(
        _ held: HeldCredentials, _ endpoint: String, at server: AuthorizationServer
    ) async -> RevocationFailure? {
        guard let rules = server.preset.accounts,
            var message = try? ClientRequest(provider: server, .post, endpoint)
        else { return .unsupported }
        message.fields.append("Authorization", "Bearer " + held.accessToken.revealedText)
        switch await send(message, endpoint: .logout, server: server) {
        case .failure(let error): return Self.failure(of: error)
        case .success(let response):
            let status = await InputReading.run(bytes: response.body.count) {
                (try? JSONValue(parsing: response.body))?["status"]?.string
            }
            if response.status == .ok, status == rules.logoutStatus { return nil }
            let refusal = await refusal(response, to: message, at: server, [])
            return RevocationFailure(
                code: refusal.code, status: refusal.status, errorCode: refusal.answer.errorCode,
                retryAfter: refusal.retryAfter)
        }
    }

    private static func failure(of error: TransportError) -> RevocationFailure {
        RevocationFailure(code: meaning(of: error, grant: .refreshToken).error.code)
    }

    /// - Returns: nil where the answer says that there is nothing to revoke any more.
    private static func failure(
        of refusal: Refusal, _ client: ClientConfiguration, _ server: AuthorizationServer
    ) -> RevocationFailure? {
        let answer = refusal.answer
        if server.preset.unknownTokenAnswers.contains(where: { $0.matches(status: refusal.status, answer) }) {
            return nil
        }
        let isDecided = RefusalPattern.isAllowed(status: refusal.status)
        let isOfClient = isDecided && refusal.isOfClient
        // A public client cannot show more of itself than it has.
        let isFinal = isDecided && (isOfClient && !client.isConfidential || refusal.isOfKind)
        return RevocationFailure(
            code: isOfClient ? .illegalConfiguration : refusal.code, status: refusal.status,
            errorCode: answer.errorCode, isFinal: isFinal, isOfClient: isOfClient, retryAfter: refusal.retryAfter)
    }
}

extension TokenEndpoint.Refusal {
    /// Whether the provider does not accept the client at this endpoint.
    fileprivate var isOfClient: Bool {
        switch answer.error {
        case "invalid_client", "unauthorized_client": true
        case nil: answer.isReadable && status == 401
        default: false
        }
    }

    /// Whether the provider revokes no tokens of this kind (RFC 7009 §2.2.1).
    fileprivate var isOfKind: Bool {
        switch answer.error {
        case "unsupported_token_type": true
        default: false
        }
    }

    /// What callers would get where nothing more is known than the status.
    fileprivate var code: BrokerError.Code {
        switch status {
        case 200...299: .tokenResponseError
        case 429, 500...: .retryableError
        default: .unexpectedError
        }
    }
}
