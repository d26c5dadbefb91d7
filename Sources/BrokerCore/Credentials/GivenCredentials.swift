package import Cryptography
import ExternalText
import JSON
package import OAuth

/// Credentials that a caller brings (TIDAL's Auth design, "setCredentials"): the members of an answer of `GET /credentials`, so
/// that one broker's answer can be given to another broker.
package struct GivenCredentials: Sendable {
    private let level: CredentialsLevel?
    private let clientID: WireText
    private let requestedScopes: ScopeSet?
    private let clientUniqueKey: WireText?
    private let grantedScopes: ScopeSet?
    private let userID: WireText?
    private let expires: Timestamp?
    private let expiresIn: Duration?
    private let token: WireText
    /// Whether the access token is bound to a key (RFC 9449).
    package let isBound: Bool
    private let extra: [WireText: JSONValue]

    /// Whether they have an access token.
    package var hasToken: Bool { !token.isEmpty }

    /// - Parameters:
    ///   - configuration: of the tenant that they are brought to.
    ///   - isImported: whether an import brings them, which may leave out the token, where it has a refresh token, and the
    ///     `client_id`, which is then the configured one.
    package init(_ body: inout ObjectReader, for configuration: TenantConfiguration, isImported: Bool = false) {
        level = body.choice("level", CredentialsLevel.self)
        clientID =
            configuration.preset.hasLogins && !isImported
            ? body.requiredString("client_id", limit: 512) ?? ""
            : body.string("client_id", limit: 512) ?? configuration.client.clientID
        requestedScopes = Self.scopes("requested_scopes", &body)
        clientUniqueKey = body.string("client_unique_key", limit: 512)
        grantedScopes = Self.scopes("granted_scopes", &body)
        userID = body.string("user_id", limit: 512)
        let expiresText = body.string("expires")
        expires = (expiresText?.text).flatMap(Timestamp.init(rfc3339:))
        if expiresText != nil, expires == nil { body.note("expires", "must be an RFC 3339 time") }
        // An answer has both; `expires` is more exact.
        expiresIn = body.integer("expires_in", in: 0...TokenResponse.longestLifetimeSeconds).map { .seconds($0) }
        let type = body.string("token_type")
        isBound = isImported && type?.equalsIgnoringCase("DPoP") == true
        if let type, !isBound, !type.equalsIgnoringCase("bearer") {
            body.note("token_type", isImported ? "must be Bearer or DPoP" : "must be Bearer")
        }
        extra = body.facts("extra")
        // These members concern the broker that has answered, and not this one.
        for name: WireText in ["degraded", "session"] { body.passOver(name) }
        token =
            (isImported ? body.string("token", limit: 65_536) : body.requiredString("token", limit: 65_536)) ?? ""
        if !token.isEmpty, !TokenText.isSendable(token) { body.note("token", "must be visible ASCII") }
    }

    private static func scopes(_ name: WireText, _ body: inout ObjectReader) -> ScopeSet? {
        body.strings(name, atMost: ScopeSet.most) { ScopeSet([$0]) == nil ? "must be one scope" : nil }.flatMap(
            ScopeSet.init)
    }

    /// - Parameter provider: the provider that has granted the credentials; nil where it is not known.
    /// - Throws: `illegal_argument` for credentials that do not fit the tenant.
    package func held(
        refreshToken: SecretBytes?, for tenant: Tenant, of provider: GrantingProvider?, now: Timestamp
    ) throws(BrokerError) -> HeldCredentials {
        let client = tenant.configuration.client
        if clientID != client.clientID {
            throw BrokerError(.illegalArgument, "The credentials' client_id is not the configured one.")
        }
        if clientUniqueKey != client.clientUniqueKey {
            throw BrokerError(.illegalArgument, "The credentials' client_unique_key is not the configured one.")
        }
        // Where a resource names the scopes, it may have named others at the login.
        for scopes in [requestedScopes, grantedScopes].compactMap({ $0 })
        where tenant.configuration.hasOwnScopes && !scopes.isSubset(of: client.scopes) {
            throw BrokerError(.illegalArgument, "The credentials have scopes that are not configured.")
        }
        let level =
            level ?? (userID != nil || refreshToken != nil || !tenant.configuration.preset.hasLogins ? .user : .client)
        if level == .basic {
            throw BrokerError(.illegalArgument, "Basic credentials hold no token; delete the credentials instead.")
        }
        if level == .client, refreshToken != nil {
            throw BrokerError(.illegalArgument, "Client credentials have no refresh token.")
        }
        if refreshToken != nil, !tenant.configuration.hasProvider {
            throw BrokerError(
                .illegalArgument,
                "A tenant of the provider \(tenant.configuration.preset.name) takes keys and access tokens only: no provider is "
                    + "known to it at which a refresh token could be used.")
        }
        let isItsOwn = level == .user && refreshToken == nil && tenant.configuration.refreshesByAccessToken
        let refreshToken = isItsOwn ? SecretBytes(utf8: token.text) : refreshToken
        let tokenExpiry = TokenResponse.expiry(ofToken: token)
        let named = expires ?? expiresIn.map { now.advanced(by: $0) }
        let known = tenant.configuration.preset.prefersTokenExpiry ? tokenExpiry ?? named : named ?? tokenExpiry
        let lifetime =
            tenant.configuration.effectiveDefaultLifetime
            ?? .assumed(canBeRenewed: level == .client || refreshToken != nil)
        var held = HeldCredentials(
            level: level, accessToken: SecretBytes(utf8: token.text), refreshToken: refreshToken,
            // Without a token, there is nothing to serve before the first refresh.
            expires: token.isEmpty ? now : known ?? lifetime.end(from: now),
            grantedScopes: grantedScopes ?? requestedScopes ?? client.scopes,
            userID: level == .user ? userID : nil,
            obtainedWith: ClientFingerprint(
                clientID: clientID, scopes: requestedScopes ?? client.scopes, clientUniqueKey: clientUniqueKey,
                clientSecretDigest: client.fingerprint.clientSecretDigest),
            grantedBy: provider)
        if level == .user {
            held.extra = ExtraFacts(nil, extra)
            // Its refreshes ask for what the tenant's logins ask for.
            held.asked = tenant.configuration.askedGrant
        }
        return held
    }
}
