internal import ExternalText

/// What becomes of a refresh token when it is used (RFC 9700 §4.14.2).
package enum RefreshTokenRotation: Sendable, Equatable {
    /// It stays as it is, and answers carry none.
    case none
    /// Each use gives a new one. The predecessor works on for `grace` after its first use, as long as no successor has
    /// been presented; after that its use revokes everything that came from the same login.
    case rotate(grace: Duration)
}

/// The `iss` of authorization responses (RFC 9207). Others than `.issuer` are a provider's mistakes.
package enum ResponseIssuer: Sendable, Equatable {
    case issuer
    case absent
    case other(String)
}

/// How a provider behaves. May be changed while it runs.
package struct ProviderConfiguration: Sendable {
    package var profile: ProviderProfile
    package var clients: [ProviderClient]
    /// How browsers and clients reach the provider, and the issuer's name.
    package var baseURL: BaseURL
    package var accessTokenLifetime: Duration
    /// From the issue of each refresh token; nil: they do not expire.
    package var refreshTokenLifetime: Duration?
    package var authorizationCodeLifetime: Duration = .seconds(60)
    package var deviceCodeLifetime: Duration
    package var deviceInterval: Duration
    package var rotation: RefreshTokenRotation
    /// TIDAL gives third-party clients none.
    package var issuesRefreshTokens = true
    /// The status beside `invalid_grant` for a refresh token that does not work: 400, or 401 as TIDAL was seen to
    /// answer too. The tidal profile only.
    package var deadRefreshTokenStatus = 400
    /// Refuses authorization requests without `code_challenge` and `code_challenge_method=S256` (RFC 7636 §4.4.1).
    package var requiresProofKey = true
    /// Answers `slow_down` to a poll that comes before its interval is over (RFC 8628 §3.5).
    package var slowsDownEagerPolls: Bool
    /// `authorization_response_iss_parameter_supported` in the metadata.
    package var announcesResponseIssuer = true
    package var responseIssuer: ResponseIssuer
    /// How many tokens of each kind are remembered, a quarter as many sessions and a tenth as many requests; what is
    /// oldest is forgotten first. Counts from the start or from a reset.
    package var capacity = 200_000

    /// The profile's defaults. TIDAL: tokens for four hours, device codes for five minutes at two seconds, and polls
    /// are not measured. RFC: one hour, ten minutes, five seconds. Neither rotates.
    package init(profile: ProviderProfile, clients: [ProviderClient], baseURL: BaseURL = .default) {
        self.profile = profile
        self.clients = clients
        self.baseURL = baseURL
        rotation = .none
        switch profile {
        case .tidal:
            accessTokenLifetime = .seconds(14_400)
            deviceCodeLifetime = .seconds(300)
            deviceInterval = .seconds(2)
            slowsDownEagerPolls = false
            responseIssuer = .absent
        case .rfc:
            accessTokenLifetime = .seconds(3600)
            deviceCodeLifetime = .seconds(600)
            deviceInterval = .seconds(5)
            slowsDownEagerPolls = true
            responseIssuer = .issuer
        }
    }

    func client(_ id: WireText) -> ProviderClient? { clients.first { WireText($0.id) == id } }
}
