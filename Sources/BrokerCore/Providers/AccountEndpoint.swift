import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import JSON
import OAuth

/// Creates and activates accounts at a provider that has no login page. The broker takes the place of the user's browser: it
/// sends the authorization request, keeps the session cookie of the answer for the next request, and reads the code from the
/// address that the provider redirects to. No redirect is followed.
struct AccountEndpoint: Sendable {
    /// How a user gets an account.
    enum Login: Sendable {
        /// The provider makes a new account.
        case creation
        /// The signature of a platform, such as an application store, names an account.
        case activation(signature: SecretBytes, source: WireText?)
    }

    /// What one login sends with each of its requests.
    private struct Exchange {
        let server: AuthorizationServer
        let rules: ProviderPreset.AccountRules
        let fields: [LogField]
        /// What no error code may repeat.
        var secrets: [SecretBytes]
    }

    private let endpoint: TokenEndpoint
    private let log: Log

    private static let longestCookie = 4096
    private static let longestCode = 4096
    private static let codeParameter: WireText = "code"

    init(endpoint: TokenEndpoint, log: Log) {
        self.endpoint = endpoint
        self.log = log
    }

    /// Logs in, and exchanges the code for tokens. Each request is sent once, except that the exchange of the code is repeated by
    /// the schedule where the provider fails: what created an account must not create a second one.
    /// - Throws: `unexpected_error` where the provider refuses, `unknown_account` where it does not know the account,
    ///   `token_response_error` where its answer lacks something, `illegal_configuration` where the provider has no such
    ///   accounts; `retryable_error` and `network_error`, after which another login may succeed.
    func grant(
        by login: Login, for client: ClientConfiguration, of tenant: TenantName, at server: AuthorizationServer,
        as id: RefreshID
    ) async throws(BrokerError) -> TokenResponse {
        guard let rules = server.preset.accounts, let address = login.endpoint(of: server) else {
            throw BrokerError(
                .illegalConfiguration, "Accounts of this provider are not created or activated by the broker.")
        }
        try Self.requireOneHost(server.authorizationEndpoint, address)
        let pkce: PKCE
        do {
            pkce = try PKCE()
        } catch {
            throw BrokerError(.internalError, "The system's source of random numbers failed.")
        }
        var exchange = Exchange(
            server: server, rules: rules, fields: [.tenant(tenant), .refresh(id), .provider(server.preset)],
            secrets: [pkce.codeVerifier])
        let cookie = try await session(client, pkce, exchange)
        exchange.secrets.append(cookie)
        let code = try await code(login, address, cookie, exchange)
        let response: TokenResponse
        do throws(BrokerError) {
            response = try await endpoint.redeem(
                .authorizationCode(code: code, redirectURI: rules.redirectURI, codeVerifier: pkce.codeVerifier),
                for: client, of: tenant, at: server, as: id)
        } catch {
            let answer = TokenErrorResponse(error: error.errorCode, subStatus: nil)
            throw error.code == .unexpectedError
                ? Self.unknownAccount(answer, at: server.preset) ?? error : error
        }
        // There is no login page at which the user could log in again.
        guard response.refreshToken != nil else {
            log.warning("account_without_refresh_token", exchange.fields)
            throw BrokerError(
                .tokenResponseError,
                "The provider answered without a refresh token, so that the account would be lost when its access token "
                    + "expires. Nothing was stored.")
        }
        return response
    }

    /// The cookie goes to the host that has set it only.
    private static func requireOneHost(_ first: String, _ second: String) throws(BrokerError) {
        guard let first = URLTarget(first), let second = URLTarget(second), first.origin == second.origin else {
            throw BrokerError(
                .illegalConfiguration,
                "The endpoints for authorization and for accounts must be at one scheme, host and port, since a session "
                    + "cookie connects them.")
        }
    }

    // MARK: The two requests

    /// Sends the authorization request.
    /// - Returns: the value of the session cookie.
    private func session(
        _ client: ClientConfiguration, _ pkce: PKCE, _ exchange: Exchange
    ) async throws(BrokerError) -> SecretBytes {
        let (server, rules) = (exchange.server, exchange.rules)
        var query: [FormEncoding.Pair] = [
            .init("response_type", "code"), .init("code_challenge", pkce.codeChallenge),
            .init("code_challenge_method", "S256"), .init("client_id", client.clientID),
            .init("redirect_uri", rules.redirectURI),
        ]
        if !client.scopes.isEmpty { query.append(.init("scope", client.scopes.description)) }
        let message = try ClientRequest(provider: server, .get, server.authorizationEndpoint, query: query)
        let response = try await redirect(message, .authorization, server.authorizationEndpoint, exchange)
        guard let cookie = Self.cookie(rules.sessionCookie, in: response.fields) else {
            throw unusable("sets no cookie \(rules.sessionCookie)", server.authorizationEndpoint, exchange)
        }
        return cookie
    }

    /// Sends the request that logs in.
    /// - Returns: the authorization code.
    private func code(
        _ login: Login, _ address: String, _ cookie: SecretBytes, _ exchange: Exchange
    ) async throws(BrokerError) -> SecretBytes {
        var exchange = exchange
        var message = try ClientRequest(provider: exchange.server, .post, address)
        message.needsNewConnection = true
        message.fields.append("Cookie", "\(exchange.rules.sessionCookie)=" + cookie.revealedText)
        if case .activation(let signature, let source) = login {
            exchange.secrets.append(signature)
            message.fields.append("Content-Type", "application/json")
            message.body = JSONWriter.object { json in
                json.member("method", "signature")
                json.member("signature", signature.revealedText)
                json.member("source", (source ?? exchange.rules.signatureSource).text)
            }
        }
        let response = try await redirect(message, login.metric, address, exchange)
        guard let location = response.fields["Location"] else {
            throw unusable("redirects without a Location", address, exchange)
        }
        guard let code = Self.code(in: location, at: WireText(exchange.rules.redirectURI)) else {
            throw unusable("redirects without an authorization code", address, exchange)
        }
        return code
    }

    /// Sends a request whose success is a redirect with status 302.
    private func redirect(
        _ message: ClientRequest, _ name: Metrics.ProviderEndpoint, _ address: String, _ exchange: Exchange
    ) async throws(BrokerError) -> ClientResponse {
        let fields = exchange.fields + [.endpoint(address)]
        let response: ClientResponse
        switch await endpoint.send(message, endpoint: name, server: exchange.server) {
        case .success(let answer): response = answer
        case .failure(let error):
            log.warning("account_request_failed", fields + [.transport(error)])
            throw TokenEndpoint.meaning(of: error, grant: .accountCreation).error
        }
        if response.status == .found { return response }
        guard response.status.code >= 400 else {
            throw unusable("answers with status \(response.status.code) instead of 302", address, exchange)
        }
        let refusal = await endpoint.refusal(
            response, to: SentSecrets(exchange.secrets), at: exchange.server, fields)
        log.warning("account_request_refused", refusal.fields)
        if refusal.status >= 500 || refusal.status == 429 { throw refusal.retryable }
        throw Self.unknownAccount(refusal.answer, at: exchange.server.preset) ?? refused(refusal, exchange.rules)
    }

    // MARK: What the answers mean

    private func refused(_ refusal: TokenEndpoint.Refusal, _ rules: ProviderPreset.AccountRules) -> BrokerError {
        let reason: String
        if let error = refusal.answer.error {
            reason =
                rules.errors.contains(WireText(error)) ? "" : " and an error code that is not known of this provider"
        } else {
            reason = " and named no error code"
        }
        return BrokerError(
            .unexpectedError, "The provider refused the account with status \(refusal.status)\(reason).",
            errorCode: refusal.answer.errorCode)
    }

    private static func unknownAccount(_ answer: TokenErrorResponse, at preset: ProviderPreset) -> BrokerError? {
        BrokerError.named(by: answer, at: preset).flatMap { $0.code == .unknownAccount ? $0 : nil }
    }

    private func unusable(_ what: String, _ address: String, _ exchange: Exchange) -> BrokerError {
        log.warning("account_answer_unusable", exchange.fields + [.endpoint(address)])
        return BrokerError(.tokenResponseError, "The provider \(what), so that there is no account to get tokens for.")
    }

    /// The value of the cookie that is set last under that name (RFC 6265 §4.1.1); nil where there is none, or where it has other
    /// characters than a cookie's value.
    private static func cookie(_ name: WireText, in fields: Fields) -> SecretBytes? {
        let prefix = WireText("\(name)=")
        guard
            let pair = fields.values("Set-Cookie").map({ $0.split(at: ";", limit: 2)[0].trimmed })
                .last(where: { $0.starts(with: prefix) })
        else { return nil }
        let value = pair.dropping(prefix.count)
        guard (1...longestCookie).contains(value.count), value.utf8.allSatisfy(isCookieByte) else { return nil }
        return SecretBytes(utf8: value.text)
    }

    private static func isCookieByte(_ byte: UInt8) -> Bool {
        switch byte {
        case 0x21, 0x23...0x2b, 0x2d...0x3a, 0x3c...0x5b, 0x5d...0x7e: true
        default: false
        }
    }

    /// The code in the query of the address that the provider redirects to; nil where there is none, or more than one, or where
    /// the address is not the redirect URI, as the code is then for another application.
    private static func code(in location: WireText, at redirectURI: WireText) -> SecretBytes? {
        let address = location.split(at: "#", limit: 2)[0].split(at: "?", limit: 2)
        guard address.count == 2, address[0] == redirectURI, let pairs = try? FormEncoding.decode(address[1].utf8.span)
        else { return nil }
        let codes = pairs.filter { $0.name == codeParameter }.map(\.value)
        guard codes.count == 1, (1...longestCode).contains(codes[0].count),
            codes[0].utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7f })
        else { return nil }
        return SecretBytes(utf8: codes[0].text)
    }
}

extension AccountEndpoint.Login {
    /// Where the login is sent; nil where the provider has no such login.
    fileprivate func endpoint(of server: AuthorizationServer) -> String? {
        switch self {
        case .creation: server.accountCreationEndpoint
        case .activation: server.activationEndpoint
        }
    }

    fileprivate var metric: Metrics.ProviderEndpoint {
        switch self {
        case .creation: .accountCreation
        case .activation: .activation
        }
    }
}
