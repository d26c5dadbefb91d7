internal import Cryptography
internal import ExternalText
internal import HTTPCodec
internal import HTTPSClient
internal import JOSE
internal import JSON
internal import OAuth
internal import Reactor

/// Makes device keys, and proves to a provider that the broker has them (Authgear's design of app-to-app authentication).
package struct DeviceKeyEndpoint: Sendable {
    /// A device key that is bound by a code's exchange.
    struct Proven: Sendable {
        /// The private key, as PEM.
        let key: SecretBytes
        let parameter: FormEncoding.Pair
    }

    /// The answer to a request to let another app in.
    enum Admission: Sendable {
        case code(SecretBytes)
        /// The provider's `error` and `error_description`.
        case refused(error: WireText, description: WireText?)
    }

    /// For how long a proof is valid.
    private static let proofLifetime: Int64 = 60
    private static let tries = 3
    private static let longestText = 512

    let endpoint: TokenEndpoint
    let time: any Time
    let log: Log

    /// A new device key with its proof, for a login of a tenant that takes part; nil for other tenants.
    /// - Throws: `network_error` and `retryable_error` where the provider issues no challenge now, `illegal_configuration` where its
    ///   address is not known. The code is not spent then.
    func prove(
        for configuration: TenantConfiguration, at server: AuthorizationServer
    ) async throws(BrokerError) -> Proven? {
        guard let rules = server.preset.appToApp, configuration.appToApp?.isEnabled == true else { return nil }
        let key = try Self.newKey()
        let proof = try await proof(with: key, for: configuration, at: server)
        return Proven(key: key, parameter: FormEncoding.Pair(WireText(rules.keyParameter), proof))
    }

    /// A new P-256 key, as PEM.
    static func newKey() throws(BrokerError) -> SecretBytes {
        do {
            return try PrivateKey.generate(.elliptic(.p256)).pem()
        } catch {
            throw BrokerError(.internalError, "No device key could be made.")
        }
    }

    /// A JWT that is signed with the device key over a new challenge.
    func proof(
        with pem: SecretBytes, for configuration: TenantConfiguration, at server: AuthorizationServer
    ) async throws(BrokerError) -> WireText {
        guard let rules = server.preset.appToApp else {
            throw BrokerError(.illegalConfiguration, "This provider has no app-to-app authentication.")
        }
        let challenge = try await challenge(rules, for: configuration, at: server)
        let now = time.now.milliseconds / 1000
        let payload = JSONWriter.object { json in
            json.member("challenge", challenge.text)
            json.member("action", "setup")
            json.member("iat", now)
            json.member("exp", now + Self.proofLifetime)
        }
        do {
            let key = try PrivateKey(pem: pem)
            let unnamed = PrivateJSONWebKey(key)
            let named = PrivateJSONWebKey(key, keyID: WireText(Base64URL.encode(unnamed.publicJWK.thumbprint)))
            return try TokenSigner(named, algorithm: .es256).sign(payload, type: rules.proofType, embedsKey: true)
        } catch {
            throw BrokerError(.internalError, "The device key cannot sign.")
        }
    }

    private func challenge(
        _ rules: ProviderPreset.AppToAppRules, for configuration: TenantConfiguration, at server: AuthorizationServer
    ) async throws(BrokerError) -> WireText {
        guard let address = configuration.challengeEndpoint(at: server) else {
            throw BrokerError(
                .illegalConfiguration, "The address that issues challenges is not known: configure endpoints.challenge."
            )
        }
        var message = try ClientRequest(provider: server, .post, address)
        message.fields.append("Content-Type", "application/json")
        message.body = JSONWriter.object { $0.member("purpose", rules.purpose) }
        var failure = BrokerError(.networkError, "The provider issues no challenges now.", retryAfter: 5)
        for attempt in 1...Self.tries {
            switch await endpoint.send(message, endpoint: .challenge, server: server) {
            case .success(let response):
                let token = await InputReading.run(bytes: response.body.count) {
                    (try? JSONValue(parsing: response.body))?["result"]?["token"]?.string
                }
                if response.status == .ok, let token, (1...Self.longestText).contains(token.count) { return token }
                log.warning("challenge_refused", [.provider(server.preset), .status(response.status)])
                guard response.status.code >= 500 || response.status.code == 429 else {
                    throw BrokerError(.unexpectedError, "The provider refuses to issue a challenge.")
                }
                failure = BrokerError(.retryableError, "The provider issues no challenges now.", retryAfter: 5)
            case .failure(let error):
                log.warning("challenge_request_failed", [.provider(server.preset), .transport(error)])
                if let final = BrokerError.permanentFailure(error, at: address) { throw final }
            }
            if attempt == Self.tries { break }
            do {
                try await time.sleep(for: .milliseconds(250 << attempt))
            } catch {
                break
            }
        }
        throw failure
    }

    /// Asks the provider for a code by which another app logs the session's user in.
    /// - Throws: `retryable_error` and `network_error` where the provider does not answer now, or answers 429.
    func admit(
        _ request: AppToAppRequest, with refreshToken: SecretBytes, _ proof: WireText, at server: AuthorizationServer
    ) async throws(BrokerError) -> Admission {
        guard let rules = server.preset.appToApp else {
            throw BrokerError(.illegalConfiguration, "This provider has no app-to-app authentication.")
        }
        let form: [FormEncoding.Pair] = [
            .init("grant_type", rules.grantType), .init("client_id", request.clientID),
            .init("refresh_token", WireText(refreshToken.revealedText)), .init("jwt", proof),
            .init("redirect_uri", request.redirectURI), .init("code_challenge", request.codeChallenge),
            .init("code_challenge_method", "S256"),
        ]
        let message = try TokenEndpoint.message(.form, to: server.tokenEndpoint, form, nil, server)
        switch await endpoint.send(message, endpoint: .token, server: server) {
        case .failure(let error):
            log.warning("app2app_request_failed", [.provider(server.preset), .transport(error)])
            throw BrokerError.permanentFailure(error, at: server.tokenEndpoint)
                ?? BrokerError(.networkError, "The provider could not be reached.", retryAfter: 5)
        case .success(let response):
            let json = await InputReading.run(bytes: response.body.count) { try? JSONValue(parsing: response.body) }
            if response.status == .ok, let code = json?["code"]?.string, (1...4096).contains(code.count) {
                return .code(SecretBytes(utf8: code.text))
            }
            if response.status.code == 429 || response.status.code >= 500 {
                let wait = response.fields["Retry-After"].flatMap {
                    RetryAfter.parse($0, status: response.status.code, now: time.now)
                }
                throw TokenEndpoint.retryable(nil, after: wait)
            }
            log.warning("app2app_refused", [.provider(server.preset), .status(response.status)])
            let sent = SentSecrets(form: Array(FormEncoding.encode(form).utf8), authorization: nil)
            let answer = TokenErrorResponse(body: response.body, answering: sent)
            return .refused(error: WireText(answer.errorCode ?? "unknown_error"), description: nil)
        }
    }
}
