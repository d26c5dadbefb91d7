package import Cryptography
package import ExternalText
package import JOSE
import JSON
package import OAuth

/// Verifies the tokens that a provider has granted: access tokens and refresh tokens as the tenant says, ID tokens always
/// (OpenID Connect Core §3.1.3.7, §12.2).
package struct GrantVerifier: Sendable {
    /// A set of credentials, and what else is needed to verify it.
    package struct Grant: Sendable {
        let credentials: HeldCredentials
        /// The ID token that came with them; nil where none did.
        let idToken: SecretBytes?
        /// What the ID token must say of the request that it answers.
        let nonce: IDTokenExpectations.Nonce
        /// When the set was granted: its tokens must be valid at that time. Nil for now.
        var granted: Timestamp?
        /// Whether a login has brought it, after which the provider is asked for the user, too.
        var isLogin = false

        /// - Parameter nonce: that of the authorization request; nil where it had none.
        package static func login(_ credentials: HeldCredentials, idToken: SecretBytes?, nonce: WireText?) -> Grant {
            Grant(
                credentials: credentials, idToken: idToken, nonce: nonce.map { .required($0) } ?? .absent, isLogin: true
            )
        }

        /// A refresh need not repeat the nonce of the login, but must not bring another one.
        package static func refresh(_ credentials: HeldCredentials, idToken: SecretBytes?) -> Grant {
            let earlier = credentials.proof.idToken.flatMap { token in
                token.withRevealed { WireText(validating: $0) }.flatMap(JSONWebToken.payload(of:))?["nonce"]?.string
            }
            return Grant(
                credentials: credentials, idToken: idToken, nonce: earlier.map { .sameIfPresent($0) } ?? .unchecked)
        }

        /// Credentials that a caller brings.
        package static func adopted(_ credentials: HeldCredentials) -> Grant {
            Grant(credentials: credentials, idToken: nil, nonce: .unchecked)
        }

        /// A set that was stored before it was verified; nil where the record has none.
        static func waiting(_ record: CredentialRecord) -> Grant? {
            guard let waiting = record.waiting, let credentials = record.granted else { return nil }
            var grant: Grant =
                switch waiting.origin {
                case .login, .device, .activation:
                    .login(credentials, idToken: waiting.idToken, nonce: waiting.nonce)
                case .refresh, .upgrade, .client, .imported: .refresh(credentials, idToken: waiting.idToken)
                }
            grant.granted = waiting.granted
            return grant
        }
    }

    package enum Verdict: Sendable {
        /// The set may be served. Its proof says what was verified, and its user is the one whom the tokens name.
        /// - Parameter told: what the grant has told of the user.
        case verified(HeldCredentials, told: UserIdentity)
        /// A token is not believed, `token_response_error`. Retrying with the same set cannot help.
        case refused(BrokerError)
        /// The provider's keys are not there. Retrying later helps.
        case unavailable(BrokerError)
    }

    /// Why a token is not verified.
    package enum Failure: Error, Sendable {
        case refused(BrokerError)
        case unavailable(BrokerError)
    }

    package let keys: ProviderKeys
    private let userInfo: UserInfoEndpoint
    private let time: any Time
    private let log: Log

    init(endpoint: TokenEndpoint, transport: any ProviderTransport, instruments: Instruments) {
        (time, log) = (instruments.time, instruments.log)
        keys = ProviderKeys(transport: transport, instruments: instruments)
        userInfo = UserInfoEndpoint(endpoint: endpoint, transport: transport, instruments: instruments)
    }

    /// Whether tokens of these credentials are verified before they are served.
    package func verifies(_ credentials: HeldCredentials, for configuration: TenantConfiguration) -> Bool {
        guard let verification = configuration.effectiveTokenVerification else { return false }
        return verification.accessToken != nil
            || verification.refreshToken != nil && credentials.refreshToken != nil
    }

    /// Verifies a set with the keys that are known, and asks the provider for keys where `waits`.
    /// - Parameter waits: whether to wait for the provider's keys, which takes up to 5 seconds. Otherwise nothing is waited
    ///   for, and a verdict for which keys are missing is `unavailable`.
    package func verdict(
        on grant: Grant, of configuration: TenantConfiguration, at server: AuthorizationServer, waits: Bool
    ) async -> Verdict {
        var held = grant.credentials
        let verification = configuration.effectiveTokenVerification
        let source = Source(
            configuration: configuration, server: server, now: Self.date(grant.granted ?? time.now), waits: waits)
        var subject: WireText?
        do throws(Failure) {
            (held.proof.accessToken, held.proof.refreshToken) = (false, false)
            if let expectations = verification?.accessToken {
                let token = try await verified(held.accessToken, .access, expectations, source)
                held.proof.accessToken = true
                subject = token.claims.subject
            }
            if let expectations = verification?.refreshToken, let refreshToken = held.refreshToken {
                let token = try await verified(refreshToken, .refresh, expectations, source)
                if verification?.namesOneUser == true, held.proof.accessToken, token.claims.subject != subject {
                    throw Self.refused(.refresh, "its subject is not that of the access token.")
                }
                held.proof.refreshToken = true
            }
            if held.level == .user, let idToken = grant.idToken,
                let claims = try await verified(idToken, grant, verification, source)
            {
                held.proof.idToken = idToken
                subject = claims.subject
                if grant.isLogin { try await compareUser(named: subject, held, source) }
            } else if held.proof.idToken != nil {
                // The subject of an access token may be of another kind than that of an ID token.
                subject = nil
            }
        } catch {
            return switch error {
            case .refused(let reason): .refused(reason)
            case .unavailable(let reason): .unavailable(reason)
            }
        }
        if held.level == .user, let subject {
            held.identity.subject = subject
            if held.identity.userID == nil { held.userID = subject }
        }
        return .verified(held, told: UserIdentity(userID: held.identity.userID, subject: subject))
    }

    // MARK: One token

    /// A kind of token, as texts name it.
    package enum Kind: String, Sendable {
        case access = "access token"
        case refresh = "refresh token"
        case id = "ID token"
    }

    /// A token that was verified.
    package struct Verified: Sendable {
        package let token: VerifiedJWS
        package let claims: ClaimsSet
    }

    private struct Source {
        let configuration: TenantConfiguration
        let server: AuthorizationServer
        let now: NumericDate
        let waits: Bool
    }

    /// Verifies an access token or a refresh token that a caller of the library brings. Takes up to 5 seconds.
    /// - Throws: `.refused` with `illegal_configuration` where the tenant does not say how such tokens are verified.
    package func verified(
        _ token: SecretBytes, _ kind: Kind, of configuration: TenantConfiguration, at server: AuthorizationServer
    ) async throws(Failure) -> Verified {
        let verification = configuration.effectiveTokenVerification
        guard let expectations = kind == .refresh ? verification?.refreshToken : verification?.accessToken else {
            throw .refused(
                BrokerError(
                    .illegalConfiguration, "The tenant's token_verification does not say how such tokens are verified.")
            )
        }
        return try await verified(
            token, kind, expectations,
            Source(configuration: configuration, server: server, now: Self.date(time.now), waits: true))
    }

    private func verified(
        _ token: SecretBytes, _ kind: Kind, _ expectations: TokenVerification.Expectations, _ source: Source
    ) async throws(Failure) -> Verified {
        guard let address = source.server.jwksURI else {
            throw .unavailable(
                BrokerError(
                    .illegalConfiguration,
                    "The tenant's tokens are to be verified, and no address of the provider's keys is known: name it in "
                        + "token_verification.jwks."))
        }
        let verified = try await signed(token, kind, expectations.policy, at: address, source)
        do throws(ClaimsRejection) {
            let issuer = source.configuration.tokenIssuer(at: source.server)
            let claims = try expectations.claims(of: issuer).check(verified, now: source.now)
            return Verified(token: verified, claims: claims)
        } catch {
            throw Self.refused(kind, error.description)
        }
    }

    /// - Returns: nil where nothing is known with which to verify it; then nothing of it is believed.
    private func verified(
        _ idToken: SecretBytes, _ grant: Grant, _ verification: TokenVerification?, _ source: Source
    ) async throws(Failure) -> ClaimsSet? {
        guard let issuer = source.server.issuer, let address = source.server.jwksURI else {
            log.debug("id_token_passed_over", [.provider(source.configuration.preset)])
            return nil
        }
        let algorithms = Set(SignatureAlgorithm.allCases)
        let verified = try await signed(idToken, .id, JWSPolicy(algorithms: algorithms), at: address, source)
        var expectations = IDTokenExpectations(
            issuer: WireText(issuer), clientID: grant.credentials.obtainedWith.clientID, algorithms: algorithms,
            nonce: grant.nonce)
        let leeway = verification?.accessToken?.leeway ?? TokenVerification.usualLeeway
        expectations.leeway = leeway
        expectations.trustedAudiences = source.configuration.trustedAudiences.map { Set($0) }
        expectations.maximumLead = Self.longestFromIssue
        // The ID token of a refresh may be that of the login.
        if grant.isLogin { expectations.maximumTokenAge = Self.longestFromIssue - leeway }
        // The hash is optional where a code brought the tokens (OpenID Connect Core §3.1.3.6).
        expectations.accessToken = grant.credentials.accessToken.withRevealed { WireText(validating: $0) }
            .map { .init($0, requiresHash: false) }
        do throws(ClaimsRejection) {
            return try expectations.check(verified, now: source.now)
        } catch .untrustedAudience {
            throw Self.refused(
                .id,
                ClaimsRejection.untrustedAudience.description
                    + " If the provider means it so, name that audience in the configured trusted_audiences.")
        } catch {
            throw Self.refused(.id, error.description)
        }
    }

    /// How far the `iat` of an ID token may be from now (OpenID Connect Core §3.1.3.7): a token of long ago is a repeated one.
    private static let longestFromIssue: Duration = .seconds(600)

    /// Compares the user of an ID token with the one that the userinfo endpoint names, where the tenant has one.
    private func compareUser(
        named subject: WireText?, _ held: HeldCredentials, _ source: Source
    ) async throws(Failure) {
        guard let address = source.configuration.endpoints.userInfo else { return }
        guard source.waits else {
            throw .unavailable(BrokerError(.networkError, "The userinfo endpoint was not asked yet.", retryAfter: 1))
        }
        // The endpoint takes no token that has expired while it waited. The ID token has named the user.
        guard held.expires > time.now else { return log.warning("userinfo_not_asked", [.endpoint(address)]) }
        let other = try await userInfo.subject(of: held, at: address, for: source.configuration)
        if other != subject {
            throw UserInfoEndpoint.refused("\(address) names another user than the ID token.")
        }
    }

    private func signed(
        _ token: SecretBytes, _ kind: Kind, _ policy: JWSPolicy, at address: String, _ source: Source
    ) async throws(Failure) -> VerifiedJWS {
        let unverified: CompactJWS
        do throws(JWSError) {
            guard let text = token.withRevealed({ WireText(validating: $0) }) else { throw .malformed }
            unverified = try CompactJWS(parsing: text, policy: policy)
        } catch {
            throw Self.refused(kind, error.description)
        }
        do throws(ProviderKeys.Failure) {
            return source.waits
                ? try await keys.verified(unverified, at: address, for: source.configuration)
                : try keys.verifiedAtOnce(unverified, at: address, for: source.configuration)
        } catch {
            switch error {
            case .unavailable(let reason): throw .unavailable(reason)
            case .refused(let reason): throw Self.refused(kind, reason.description)
            }
        }
    }

    private static func date(_ time: Timestamp) -> NumericDate {
        NumericDate(sinceEpoch: .milliseconds(time.milliseconds))
    }

    private static func refused(_ kind: Kind, _ reason: String) -> Failure {
        .refused(
            BrokerError(
                .tokenResponseError,
                "The provider's \(kind.rawValue) could not be verified: \(reason) What was stored before stays. Check the "
                    + "configured token_verification, issuer and client_id; or the provider's keys or clock are wrong.")
        )
    }
}
