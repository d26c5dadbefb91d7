package import Cryptography
package import ExternalText

/// A set of credentials with a token: what a login, a refresh or the client credentials grant left.
package struct HeldCredentials: Sendable, Equatable {
    /// `user` or `client`.
    package var level: CredentialsLevel
    package var accessToken: SecretBytes
    package var refreshToken: SecretBytes?
    /// `never` for a token that lives until it is refused.
    package var expires: Timestamp
    package var grantedScopes: ScopeSet
    package var userID: WireText?
    /// What the provider has told of the user, which a refresh is held against.
    package var identity = UserIdentity()
    package var obtainedWith: ClientFingerprint
    /// Nil for credentials that an earlier build stored: they belong to the provider that is configured.
    package var grantedBy: GrantingProvider?
    /// Before when the refresh token is not to be used, because the provider may still come to a call with its
    /// predecessor; nil for at once.
    package var refreshableFrom: Timestamp?

    /// When the token ends; nil where it does not.
    package var expiry: Timestamp? { expires == .never ? nil : expires }

    /// Whether a user is logged in by these, as far as is known without asking the provider: without a refresh token
    /// for as long as the token lives.
    package func isLoggedIn(at now: Timestamp) -> Bool {
        level == .user && (refreshToken != nil || expires > now)
    }

    package init(
        level: CredentialsLevel, accessToken: SecretBytes, refreshToken: SecretBytes?, expires: Timestamp,
        grantedScopes: ScopeSet, userID: WireText?, obtainedWith: ClientFingerprint, grantedBy: GrantingProvider?,
        refreshableFrom: Timestamp? = nil
    ) {
        precondition(level != .basic, "basic credentials hold no token")
        self.level = level
        self.accessToken = accessToken
        self.refreshToken = refreshToken
        self.expires = expires
        self.grantedScopes = grantedScopes
        self.userID = userID
        self.obtainedWith = obtainedWith
        self.grantedBy = grantedBy
        self.refreshableFrom = refreshableFrom
    }

    /// Makes credentials of a new grant: a login, a refresh, an upgrade, or the client's.
    ///
    /// What the answer leaves out is taken from what it replaces: the refresh token stays good (RFC 6749 §6), the
    /// user is the same, the scopes are those granted before. Scopes that nobody ever named are the requested ones
    /// (RFC 6749 §5.1: absent means identical). Nothing passes between a user's credentials and the client's.
    /// - Parameters:
    ///   - server: where they were granted.
    ///   - requested: the scopes that the request named; nil for the client's.
    package init(
        granted response: TokenResponse, level: CredentialsLevel, to client: ClientConfiguration,
        by server: AuthorizationServer, requested: ScopeSet? = nil, replacing previous: HeldCredentials? = nil,
        now: Timestamp
    ) {
        let previous = previous?.level == level ? previous : nil
        self.init(
            level: level, accessToken: response.accessToken,
            refreshToken: level == .user ? response.refreshToken ?? previous?.refreshToken : nil,
            expires: response.expires
                ?? (response.hasUnreadableLifetime ? server.defaultLifetime.limited : server.defaultLifetime)
                .end(from: now),
            grantedScopes: response.scopes ?? previous?.grantedScopes ?? requested ?? client.scopes,
            userID: level == .user ? response.userID ?? previous?.userID : nil,
            obtainedWith: client.fingerprint, grantedBy: GrantingProvider(server))
        if level == .user { identity = response.identity.completed(by: previous?.identity) }
    }
}

extension HeldCredentials {
    /// Whether a refusal that ends a session (`TokenFailure.endsSession`) ended this one, when it was `client` that
    /// asked for the refresh. What is said to another client than the one that logged the user in is about that
    /// client. With another secret only `invalid_grant` is about the session: the provider looks at the refresh token
    /// once it has authenticated the client (RFC 6749 §6), while the other answers may be about the new secret.
    package func isEnded(by answer: TokenErrorResponse, refreshedBy client: ClientFingerprint) -> Bool {
        guard obtainedWith.clientID == client.clientID else { return false }
        return obtainedWith.clientSecretDigest == client.clientSecretDigest || answer.isInvalidGrant
    }

    /// SHA-256 of the refresh token; nil without one.
    package var refreshTokenDigest: [UInt8]? {
        refreshToken.map { $0.withRevealed { SHA256.digest($0) } }
    }
}

extension TokenErrorResponse {
    /// Whether the server says that the grant itself is not good, and not the client (RFC 6749 §5.2).
    package var isInvalidGrant: Bool { error == "invalid_grant" }

    /// Whether the server does not know the client or takes another for it (RFC 6749 §5.2), whatever the client has asked for.
    package var isInvalidClient: Bool { error == "invalid_client" }
}
