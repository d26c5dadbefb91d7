package import ExternalText
package import JOSE
import OAuth

/// What happens to a refresh token when it is used (RFC 9700 §4.14.2).
package enum RefreshTokenRotation: Sendable, Equatable {
    /// The refresh token stays valid, and the response contains none.
    case none
    /// Each use issues a new refresh token. The old token stays valid for `grace` after its first use, until a
    /// successor is presented. A later use revokes all tokens from the same login.
    case rotate(grace: Duration)
}

/// From when the lifetime of a refresh token counts.
package enum RefreshTokenLifetimeStart: Sendable {
    /// From the issue of each token.
    case issue
    /// From the last use of a token that is not rotated, and from the issue of any other.
    case use
    /// From the login, so that neither a use nor a rotation prolongs it.
    case login
}

/// The form of access tokens.
package enum AccessTokenFormat: String, Sendable, CaseIterable {
    /// A random text.
    case opaque
    /// A signed JWT (RFC 9068).
    case jwt
}

/// The `iss` of authorization responses (RFC 9207). Values other than `.issuer` simulate faulty providers.
package enum ResponseIssuer: Sendable, Equatable {
    case issuer
    case absent
    case other(String)
}

/// An app for Android that opens links of the provider's host.
package struct AndroidApp: Sendable, Equatable {
    package var packageName: String
    /// SHA-256 digests of its certificates, as pairs of hexadecimal digits with colons between them.
    package var fingerprints: [String]

    package init(packageName: String, fingerprints: [String]) {
        self.packageName = packageName
        self.fingerprints = fingerprints
    }
}

/// The behaviour of a provider, which may be changed while it runs.
package struct ProviderConfiguration: Sendable {
    package var profile: ProviderProfile
    /// The profile of the broker's that is played at the edges of the profile `rfc`; nil for none.
    package private(set) var translation: ProfileTranslation?
    package var clients: [ProviderClient]
    /// The URL at which browsers and clients reach the provider, which is also the issuer's name.
    package var baseURL: BaseURL
    package var accessTokenLifetime: Duration
    /// Counted from `refreshTokenLifetimeStart`; nil means that refresh tokens do not expire.
    package var refreshTokenLifetime: Duration?
    package var refreshTokenLifetimeStart = RefreshTokenLifetimeStart.issue
    package var authorizationCodeLifetime: Duration
    package var deviceCodeLifetime: Duration
    package var deviceInterval: Duration
    package var rotation: RefreshTokenRotation
    /// Whether the grace period of a rotated refresh token ends when a successor is presented.
    package var successorEndsGrace: Bool
    /// Whether a refresh ends the access tokens that the same login was granted before. Applies to the rfc and tidal
    /// profiles.
    package var refreshEndsAccessTokens = false
    /// Applies to the rfc and tidal profiles. The duckduckgo profile signs all access and refresh tokens.
    package var accessTokenFormat: AccessTokenFormat
    /// The algorithm of all signatures. A change takes effect for keys that are made later.
    package var signingAlgorithm: SignatureAlgorithm
    /// The password for one use that the duckduckgo profile would send to every email address.
    package var oneTimePassword = "123456"
    /// TIDAL issues no refresh tokens to third-party clients.
    package var issuesRefreshTokens = true
    /// The scope without which a login brings no refresh token; nil for none.
    package var refreshTokenScope: WireText?
    /// The status of an `invalid_grant` for an invalid refresh token, in the tidal profile only: 400, or 401, which
    /// TIDAL has been observed to send.
    package var deadRefreshTokenStatus = 400
    /// Refuses authorization requests without `code_challenge` and `code_challenge_method=S256` (RFC 7636 §4.4.1).
    package var requiresProofKey = true
    /// Responds with `slow_down` to a poll before the end of its interval (RFC 8628 §3.5).
    package var slowsDownEagerPolls: Bool
    /// The metadata member `authorization_response_iss_parameter_supported`.
    package var announcesResponseIssuer = true
    package var responseIssuer: ResponseIssuer
    /// Whether the rfc profile takes pushed authorization requests (RFC 9126), and announces that.
    package var pushedRequests = OptionalPart.off
    package var pushedRequestLifetime: Duration = .seconds(60)
    /// Whether the rfc profile binds tokens to the keys that token requests prove (RFC 9449), and announces that.
    package var boundTokens = OptionalPart.off
    /// The nonce that proofs must have; nil for none.
    package var proofNonce: String?
    /// Whether the authgear profile has the grant app2app.
    package var allowsAppToApp = true
    /// Whether the authgear profile refuses more than 120 token requests a minute of one address, and more than 60 of
    /// one user that use a session or a biometric key for app2app.
    package var limitsTokenRequests = true
    /// The apps of `assetlinks.json`, in the authgear profile.
    package var androidApps: [AndroidApp] = []
    /// The application identifiers of `apple-app-site-association`, in the authgear profile.
    package var appleApps: [String] = []
    /// The most tokens of each kind that are remembered; for sessions a quarter of this, for requests a tenth. The
    /// oldest are removed first. A change takes effect at the next reset.
    package var capacity = 200_000

    /// Sets the defaults of the profile.
    package init(profile: ProviderProfile, clients: [ProviderClient], baseURL: BaseURL = .default) {
        self.profile = profile
        self.clients = clients
        self.baseURL = baseURL
        let behaviour = profile.behaviour
        let defaults = behaviour.defaults
        accessTokenLifetime = defaults.accessTokenLifetime
        refreshTokenLifetime = defaults.refreshTokenLifetime
        authorizationCodeLifetime = defaults.authorizationCodeLifetime
        deviceCodeLifetime = defaults.deviceCodeLifetime
        deviceInterval = defaults.deviceInterval
        slowsDownEagerPolls = defaults.slowsDownEagerPolls
        rotation = defaults.rotation
        successorEndsGrace = defaults.successorEndsGrace
        refreshTokenScope = defaults.refreshTokenScope
        accessTokenFormat = defaults.accessTokenFormat
        signingAlgorithm = defaults.signingAlgorithm
        responseIssuer = behaviour.hasMetadata ? .issuer : .absent
    }

    /// Plays the other side of a profile of the broker's, with the lifetimes and the rules for refresh tokens that it names. Access
    /// tokens live an hour where it names nothing, and ten years where they do not end.
    package init(playing translation: ProfileTranslation, clients: [ProviderClient], baseURL: BaseURL = .default) {
        self.init(profile: .rfc, clients: clients, baseURL: baseURL)
        self.translation = translation
        let played = translation.profile
        if !translation.isFoundByMetadata { (announcesResponseIssuer, responseIssuer) = (false, .absent) }
        requiresProofKey = played.shape.pkce == .required
        rotation = played.usualRotation
        refreshEndsAccessTokens = played.accessTokenAfterRefresh == .ends
        if played.prefersTokenExpiry { accessTokenFormat = .jwt }
        issuesRefreshTokens = played.lives.refreshTokens != .never
        refreshTokenScope = played.lives.refreshTokenScope
        refreshTokenLifetime = played.lives.refreshToken
        refreshTokenLifetimeStart = played.lives.isFixed ? .login : .use
        limitAccessTokens()
    }

    /// Has access tokens live as long as the profile that is played says, by whether there are refresh tokens.
    mutating func limitAccessTokens() {
        guard let translation else { return }
        if case .limited(let lifetime)? = translation.profile.defaultLifetime { accessTokenLifetime = lifetime }
        if !translation.tokensEnd(self) { accessTokenLifetime = .seconds(TokenResponse.longestLifetimeSeconds) }
    }

    /// What is done in the way of the profile. A profile that is played has its own rules before these.
    var behaviour: ProviderBehaviour { profile.behaviour }

    /// The values of `grant_type` that the token endpoint accepts.
    var grants: [GrantType] { translation?.grants ?? behaviour.grants }

    /// The path of an endpoint below the base URL; nil where there is no such endpoint. Metadata is at the well-known paths.
    func path(of endpoint: Endpoint) -> String? {
        translation.map { $0.path(of: endpoint) } ?? behaviour.paths[endpoint]
    }

    func client(_ id: WireText) -> ProviderClient? { clients.first { WireText($0.id) == id } }
}
