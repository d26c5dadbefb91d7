import Cryptography
import ExternalText
import HTTPCodec
import HTTPSClient
import OAuth

/// The requests by which a key of a device, guarded by biometrics, is set up and logs its user in.
extension TokenEndpoint {
    /// What a provider has answered to a biometric proof.
    enum BiometricAnswer: Sendable {
        /// - Parameters:
        ///   - grant: nil where the answer has no usable token.
        ///   - code: for another app; nil where the answer has none.
        case accepted(grant: TokenResponse?, code: WireText?)
        /// - Parameters:
        ///   - isUnknownKey: whether the provider says that it does not know the key.
        ///   - description: for the app that was to be let in; nil where there is none that can be passed on.
        case refused(BrokerError, isUnknownKey: Bool, description: WireText?)
    }

    /// Asks for a challenge for a biometric key.
    /// - Throws: as `proof` does.
    func biometricChallenge(
        at server: AuthorizationServer, of tenant: TenantName
    ) async throws(BrokerError) -> (challenge: WireText, rules: ProviderPreset.AppToAppRules) {
        let (rules, address) = try Self.challengeEndpoint(at: server)
        return (try await challenge(for: rules.biometricPurpose, address, server, tenant, retries: 2), rules)
    }

    /// Sends a biometric proof, by one call.
    /// - Parameters:
    ///   - bearer: the access token of the user who is logged in, for whom a key is set up; nil to log in.
    ///   - refreshToken: of that user, which servers want that other callers share the access token with; nil to log in.
    ///   - target: the app that is to be let in; nil for none.
    /// - Throws: `network_error`, `retryable_error`, `provider_untrusted`, `illegal_configuration`: the provider has not decided.
    func send(
        biometricProof proof: WireText, bearer: SecretBytes?, refreshToken: SecretBytes?,
        lettingIn target: AppToAppRequest?, at server: AuthorizationServer, of tenant: Tenant
    ) async throws(BrokerError) -> BiometricAnswer {
        guard let rules = server.preset.appToApp else {
            throw BrokerError(.illegalConfiguration, "This provider has no biometric logins.")
        }
        var client = tenant.configuration.client
        var form: [FormEncoding.Pair] = [.init("grant_type", rules.biometricGrantType), .init("jwt", proof)]
        if bearer == nil, !client.scopes.isEmpty { form.append(.init("scope", client.scopes.description)) }
        if let refreshToken { form.append(.init("refresh_token", refreshToken.revealedText)) }
        if let target {
            form += [
                .init("redirect_uri", target.redirectURI), .init("code_challenge", target.codeChallenge),
                .init("code_challenge_method", "S256"),
            ]
        }
        if client.material != nil || server.clientAuthentication == .clientSecretJWT {
            client = try await shown(client, by: server.clientAuthentication, at: server)
        }
        // One header cannot have both the client's secret and the user's token.
        var authorization = ClientAuthenticator.authenticate(
            client,
            by: bearer == nil || client.clientSecret == nil || !server.clientAuthentication.showsSecret
                ? server.clientAuthentication : .clientSecretPost,
            at: server, into: &form)
        if let bearer { authorization = "Bearer " + bearer.revealedText }
        var message = try Self.message(.form, to: server.tokenEndpoint, form, authorization, server)
        message.certificate = client.material?.certificate.map { ClientCertificate(pem: $0) }
        let fields = Self.fields(of: tenant.name, at: server, as: RefreshID())
        let asked = time.now
        switch await send(message, through: ProviderClient.OfTenant(tenant.name, client, at: server), at: server) {
        case .failure(let error):
            log.warning("biometric_request_failed", fields + [.transport(error)])
            throw Self.meaning(of: error, grant: .deviceCode).error
        case .success(let response) where (200..<300).contains(response.status.code):
            if bearer != nil { return .accepted(grant: nil, code: nil) }
            let grant = await readGrant(response, of: server, askedAt: asked, fields)
            return .accepted(grant: grant, code: await Self.value(in: response, at: ["code"]))
        case .success(let response):
            let sent = SentSecrets(form: message.parameters, authorization: message.fields["Authorization"])
            let refusal = await refusal(response, to: sent, at: server, fields)
            log.warning("biometric_request_refused", refusal.fields)
            try requireDecision(refusal, for: client, at: server)
            let description = await Self.description(in: response, answering: sent)
            let error = BrokerError(
                .unexpectedError, "The provider refused the biometric request with status \(refusal.status).",
                errorCode: refusal.answer.errorCode)
            return .refused(
                error, isUnknownKey: refusal.answer.isInvalidGrant && description == rules.biometricRefusal,
                description: description)
        }
    }
}
