import Containers
import ExternalText
import JOSE
import Reactor

/// The rules of the authgear profile: codes, device keys, and one app that lets another one in.
extension TokenIssuer {
    static let fullAccess = "https://authgear.com/scopes/full-access"

    /// Where another app gets its code, and the challenge that it proves itself by when it redeems the code.
    struct AppDestination: Sendable {
        let redirectURI: String
        let challenge: String?
    }

    // MARK: Codes

    /// Exchanges a code for tokens. Only success ends the code.
    mutating func redeemApp(
        _ parameters: Parameters, _ authentication: ClientAuthentication, client: ProviderClient, now: Int64
    ) throws(OAuthError) -> Grant {
        let invalid = OAuthError(.invalidGrant, "invalid authorization code")
        let digest = Secrets.digest(try parameters.required("code").text)
        guard let entry = codes[digest], entry.clientID == client.id, now < entry.expiresAt else { throw invalid }
        let redirectURI = parameters["redirect_uri"]
        if redirectURI.map({ $0 != WireText(entry.redirectURI) }) ?? entry.redirectURIWasSent {
            throw OAuthError(.invalidRequest, "invalid redirect URI")
        }
        let verifier = parameters["code_verifier"]
        if client.secret == nil || entry.challenge != nil || verifier != nil {
            guard let verifier else { throw OAuthError(.invalidRequest, "PKCE code verifier is required") }
            guard (43...128).contains(verifier.count), verifier.utf8.allSatisfy(\.isUnreserved),
                let challenge = entry.challenge, Secrets.challenge(verifier.text) == challenge
            else { throw invalid }
        }
        try authentication.checkSecret(of: client)
        let deviceKey = try deviceKey(parameters["x_app2app_device_key_jwt"], of: client, now: now)
        codes[digest] = nil
        let family = openFamily(user: entry.user, client: client, origin: .authorizationCode, now: now)
        if let deviceKey { apps.bind(deviceKey, to: family) }
        let login = TokenMinter.Login(nonce: entry.nonce, authenticatedAt: entry.issuedAt)
        return issue(client: client, scope: entry.scope, user: entry.user, family: family, login: login, now: now)
    }

    /// The device key that a login registers; nil for a client whose sessions let no other apps in, whatever it sends.
    private mutating func deviceKey(
        _ text: WireText?, of client: ProviderClient, now: Int64
    ) throws(OAuthError) -> JSONWebKey? {
        guard client.allowsAppToApp, let text else { return nil }
        guard let proof = AppKeyProof(text, .device, now: now), let key = proof.key else { throw Self.payload }
        guard apps.consume(proof.challenge, for: .appToApp, now: now) else { throw Self.challenge }
        guard proof.isSigned(with: key) else { throw Self.signature }
        return key
    }

    // MARK: App to app

    /// A code for `target`, of the session of a refresh token.
    mutating func approveApp(
        _ parameters: Parameters, target: ProviderClient, now: Int64
    ) throws(OAuthError) -> String {
        guard let jwt = parameters["jwt"] else { throw OAuthError(.invalidRequest, "jwt is required") }
        guard let token = parameters["refresh_token"] else {
            throw OAuthError(.invalidRequest, "refresh token is required")
        }
        let destination = try destination(parameters, target)
        guard let session = liveSession(token, now: now) else {
            throw OAuthError(.invalidGrant, "invalid refresh token")
        }
        try admit(session.family.user, now: now)
        guard let original = configuration.client(WireText(session.token.clientID)) else {
            throw OAuthError(.serverError, "cannot find original client for app2app")
        }
        guard original.allowsAppToApp else { throw Self.notAllowed }
        if original.requiresBiometricProtection {
            throw OAuthError(.accessDenied, "app2app requires biometric authentication")
        }
        guard let proof = AppKeyProof(jwt, .device, now: now), let key = proof.key else { throw Self.payload }
        guard apps.consume(proof.challenge, for: .appToApp, now: now) else { throw Self.challenge }
        let bound = apps.deviceKey(of: session.family.id)
        guard bound != nil || original.bindsInsecurely else {
            throw OAuthError(.invalidGrant, "app2app is not allowed in current session")
        }
        guard proof.isSigned(with: bound ?? key) else { throw Self.signature }
        if bound == nil { apps.bind(key, to: session.family.id) }
        return issueCode(
            for: target, destination, scope: session.token.scope, user: session.family.user, now: now)
    }

    /// Where `target` gets its code, if its registration allows that.
    func destination(
        _ parameters: Parameters, _ target: ProviderClient
    ) throws(OAuthError) -> AppDestination {
        guard let redirectURI = parameters["redirect_uri"] else {
            throw OAuthError(.invalidRequest, "redirect uri is required")
        }
        let challenge = parameters["code_challenge"]
        if challenge != nil, parameters["code_challenge_method"] != "S256" {
            throw OAuthError(.invalidRequest, "only 'S256' PKCE transform is supported")
        }
        guard configuration.allowsAppToApp else { throw OAuthError(.invalidRequest, "app2app disabled") }
        guard ReceivedAuthorizationRequest.isSafe(redirectURI) else {
            throw OAuthError(.invalidRequest, "invalid redirect URI")
        }
        guard target.allows(redirectURI) else {
            throw OAuthError(.invalidRequest, "redirect URI is not allowed")
        }
        return AppDestination(redirectURI: redirectURI.text, challenge: challenge?.text)
    }

    private mutating func issueCode(
        for target: ProviderClient, _ destination: AppDestination, scope: [String], user: ProviderUser, now: Int64
    ) -> String {
        issueCode(
            AuthorizationCode(
                clientID: target.id, redirectURI: destination.redirectURI, redirectURIWasSent: true,
                challenge: destination.challenge, scope: scope, user: user, nonce: nil, issuedAt: now,
                expiresAt: Self.time(now, configuration.authorizationCodeLifetime)))
    }

    /// The session of a refresh token that a refresh would accept; nil for another token.
    private func liveSession(_ token: WireText, now: Int64) -> (family: Family, token: RefreshTokenRecord)? {
        guard let entry = refreshTokens[Secrets.digest(token.text)], let family = families[entry.family],
            family.revocation == nil, entry.expiresAt.map({ now < $0 }) ?? true
        else { return nil }
        if let supersededAt = entry.supersededAt, let client = configuration.client(WireText(entry.clientID)),
            case .rotate(let grace) = rotation(of: client),
            entry.isConfirmed && configuration.successorEndsGrace || now - supersededAt >= grace.milliseconds
        {
            return nil
        }
        return (family, entry)
    }

    private mutating func admit(_ user: ProviderUser, now: Int64) throws(OAuthError) {
        guard !configuration.limitsTokenRequests || apps.admit(user, now: now) else { throw Self.rateLimited }
    }

    // MARK: Biometric keys

    /// Registers a biometric key for the user of an access token.
    mutating func setUpBiometric(
        _ proof: AppKeyProof, bearer: WireText?, client: ProviderClient, now: Int64
    ) throws(OAuthError) {
        guard let bearer, let token = introspect(accessToken: bearer.text, now: now), let user = token.user,
            token.clientID == client.id
        else { throw OAuthError(.unauthenticated, "biometric setup requires authenticated user") }
        try admit(user, now: now)
        guard apps.consume(proof.challenge, for: .biometric, now: now), let key = proof.key, let id = key.keyID,
            proof.isSigned(with: key)
        else { throw Self.credentials }
        if let known = apps[biometricKey: id] {
            guard known.key.thumbprint == key.thumbprint, known.user == user, known.clientID == client.id else {
                throw Self.credentials
            }
            return
        }
        apps[biometricKey: id] = AppDirectory.BiometricKey(key: key, clientID: client.id, user: user)
    }

    /// Logs the user of a biometric key in, and ends the session that the key began before.
    /// - Parameter target: an app that is let in besides, and where it gets its code.
    mutating func logInBiometric(
        _ proof: AppKeyProof, client: ProviderClient, scope requested: [String]?,
        target: (client: ProviderClient, destination: AppDestination)? = nil, now: Int64
    ) throws(OAuthError) -> (grant: Grant, code: String?) {
        let scope = requested ?? configuration.behaviour.usualScopes
        let names = Set(scope.map { WireText($0) })
        guard names.isSuperset(of: ["offline_access", WireText(Self.fullAccess)]) else {
            throw OAuthError(.invalidScope, "The scope lacks offline_access or full access")
        }
        let allowed = try Self.scope(scope, of: client)
        guard apps.consume(proof.challenge, for: .biometric, now: now), let id = proof.keyID ?? proof.key?.keyID,
            var key = apps[biometricKey: id], key.clientID == client.id, proof.isSigned(with: key.key)
        else { throw Self.credentials }
        try admit(key.user, now: now)
        if let earlier = key.family { revoke(family: earlier, .biometricLogin, now: now) }
        let family = openFamily(user: key.user, client: client, origin: .biometric, now: now)
        key.family = family
        apps[biometricKey: id] = key
        let login = TokenMinter.Login(nonce: nil, authenticatedAt: now)
        let grant = issue(client: client, scope: allowed, user: key.user, family: family, login: login, now: now)
        let code = target.map { issueCode(for: $0.client, $0.destination, scope: allowed, user: key.user, now: now) }
        return (grant, code)
    }

    // MARK: Errors

    static let notAllowed = OAuthError(.unauthorizedClient, "this client may not use app2app authentication")
    static let rateLimited = OAuthError(.rateLimited, "rate limit exceeded, please try again later.")
    static let credentials = OAuthError(.invalidGrant, "InvalidCredentials")
    private static let payload = OAuthError(.invalidRequest, "invalid app2app jwt payload")
    private static let challenge = OAuthError(.invalidRequest, "invalid app2app jwt challenge")
    private static let signature = OAuthError(.invalidRequest, "invalid app2app jwt signature")
}
