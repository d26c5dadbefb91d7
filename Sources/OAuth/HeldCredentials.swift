package import Cryptography

/// A set of credentials with a token: what a login, a refresh or the client credentials grant left.
package struct HeldCredentials: Sendable, Equatable {
    /// `user` or `client`.
    package var level: CredentialsLevel
    package var accessToken: SecretBytes
    package var refreshToken: SecretBytes?
    package var expires: Timestamp
    package var grantedScopes: ScopeSet
    package var userID: String?
    package var obtainedWith: ClientFingerprint

    package init(
        level: CredentialsLevel, accessToken: SecretBytes, refreshToken: SecretBytes?, expires: Timestamp,
        grantedScopes: ScopeSet, userID: String?, obtainedWith: ClientFingerprint
    ) {
        precondition(level != .basic, "basic credentials hold no token")
        self.level = level
        self.accessToken = accessToken
        self.refreshToken = refreshToken
        self.expires = expires
        self.grantedScopes = grantedScopes
        self.userID = userID
        self.obtainedWith = obtainedWith
    }

    /// Makes credentials of a new grant.
    ///
    /// What the answer leaves out is taken from what it replaces: the refresh token stays good (RFC 6749 §6), the
    /// user is the same, the scopes are those granted before. Scopes that nobody ever named are the requested ones
    /// (RFC 6749 §5.1: absent means identical). Nothing passes between a user's credentials and the client's.
    /// - Parameter requested: the scopes that the request named; nil for the client's.
    package init(
        granted response: TokenResponse, level: CredentialsLevel, to client: ClientConfiguration,
        requested: ScopeSet? = nil, replacing previous: HeldCredentials? = nil, defaultLifetime: Duration,
        now: Timestamp
    ) {
        let previous = previous?.level == level ? previous : nil
        self.init(
            level: level, accessToken: response.accessToken,
            refreshToken: level == .user ? response.refreshToken ?? previous?.refreshToken : nil,
            expires: response.expires ?? now.advanced(by: defaultLifetime),
            grantedScopes: response.scopes ?? previous?.grantedScopes ?? requested ?? client.scopes,
            userID: level == .user ? response.userID ?? previous?.userID : nil,
            obtainedWith: client.fingerprint)
    }
}

/// What is kept under a storage key. With nothing held it is a tombstone: it keeps the version rising.
package struct CredentialRecord: Sendable, Equatable {
    package var held: HeldCredentials?
    /// What the provider ended, kept aside until `QuarantinedCredentials.until` so that an operator can put it back.
    package var quarantined: QuarantinedCredentials?

    package init(held: HeldCredentials?, quarantined: QuarantinedCredentials? = nil) {
        self.held = held
        self.quarantined = quarantined
    }
}

package struct QuarantinedCredentials: Sendable, Equatable {
    package var credentials: HeldCredentials
    package var until: Timestamp

    package init(credentials: HeldCredentials, until: Timestamp) {
        self.credentials = credentials
        self.until = until
    }
}
