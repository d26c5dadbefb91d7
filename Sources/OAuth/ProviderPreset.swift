package import ExternalText

/// How a kind of provider differs from the next: data, so that no code asks which provider it talks to.
package struct ProviderPreset: Sendable, Equatable {
    /// How a client shows who it is at the token endpoint (RFC 7591 §2).
    package enum ClientAuthentication: String, Sendable, CaseIterable {
        case clientSecretBasic = "client_secret_basic"
        case clientSecretPost = "client_secret_post"
        /// A public client: its identifier alone, in the form.
        case none
    }

    /// The value of a tenant's `provider`.
    package let name: String
    /// What people call the provider; nil where a tenant's addresses tell which one it is.
    package let title: String?
    package let loginServiceBaseURI: String?
    package let authServiceBaseURI: String?
    /// Where the provider's addresses are the same for everyone and do not stand under such bases.
    package let authorizationEndpoint: String?
    package let tokenEndpoint: String?
    /// Under the auth service's base URI; nil where the tenant or the provider's metadata has to name the endpoint.
    package let deviceAuthorizationPath: String?
    /// `sha256/…` digests of which one must be in the verified chain; empty where the provider publishes none.
    package let pinnedCertificates: [String]
    /// What the method is when neither the tenant nor the provider's metadata names one.
    package let clientAuthentication: ClientAuthentication
    /// The query parameter that carries the login page's language; nil where there is none, and then it is not sent.
    package let languageParameter: String?
    /// The query parameter that carries the address to fill in; nil likewise.
    package let emailParameter: String?
    /// Whether `client_unique_key` goes out with the authorization request, the code exchange, the device poll and the
    /// upgrade.
    package let sendsClientUniqueKey: Bool
    /// Whether the code exchange, the refresh and the device poll repeat the scopes. RFC 6749 has none in the exchange
    /// and reads an absent one in a refresh as "the same as granted".
    package let repeatsScopes: Bool
    /// Whether client credentials are asked for with the configured scopes.
    package let scopesClientCredentials: Bool
    /// The lifetime of a token whose answer names none and which is no JWT.
    package let defaultLifetime: TokenLifetime
    /// The `grant_type` that moves a session to another client registration; nil where the provider has none.
    package let upgradeGrant: String?
    /// The answers to a refresh that end the session.
    package let sessionEndingAnswers: [RefusalPattern]
    /// The `error` of a refused refresh that is about the client's registration, and so about all its users at once. Empty
    /// where the provider's rules have such an answer end the session.
    package let configurationErrors: [String]
    /// How long before the access token's expiry a refresh is due already: more than nothing where the refresh token
    /// dies with the access token.
    package let refreshLeadTime: Duration
    /// For how long after its first use the provider takes a refresh token again, and answers with tokens; nil where that
    /// is not known.
    package let reuseGrace: Duration?

    private init(
        name: String, title: String? = nil, loginServiceBaseURI: String? = nil, authServiceBaseURI: String? = nil,
        authorizationEndpoint: String? = nil, tokenEndpoint: String? = nil, deviceAuthorizationPath: String? = nil,
        pinnedCertificates: [String] = [], clientAuthentication: ClientAuthentication, languageParameter: String?,
        emailParameter: String?, sendsClientUniqueKey: Bool = false, repeatsScopes: Bool = false,
        scopesClientCredentials: Bool, defaultLifetime: TokenLifetime = .usual,
        upgradeGrant: String? = nil, sessionEndingAnswers: [RefusalPattern] = deadGrants,
        configurationErrors: [String] = faultsOfClients, refreshLeadTime: Duration = .zero, reuseGrace: Duration? = nil
    ) {
        self.name = name
        self.title = title
        self.loginServiceBaseURI = loginServiceBaseURI
        self.authServiceBaseURI = authServiceBaseURI
        self.authorizationEndpoint = authorizationEndpoint
        self.tokenEndpoint = tokenEndpoint
        self.deviceAuthorizationPath = deviceAuthorizationPath
        self.pinnedCertificates = pinnedCertificates
        self.clientAuthentication = clientAuthentication
        self.languageParameter = languageParameter
        self.emailParameter = emailParameter
        self.sendsClientUniqueKey = sendsClientUniqueKey
        self.repeatsScopes = repeatsScopes
        self.scopesClientCredentials = scopesClientCredentials
        self.defaultLifetime = defaultLifetime
        self.upgradeGrant = upgradeGrant
        self.sessionEndingAnswers = sessionEndingAnswers
        self.configurationErrors = configurationErrors
        self.refreshLeadTime = refreshLeadTime
        self.reuseGrace = reuseGrace
    }

    /// By which a provider says that this grant is dead (RFC 6749 §5.2). Some send it with 401.
    private static let deadGrants = refusals([(400, "invalid_grant"), (401, "invalid_grant")])

    /// What RFC 6749 §5.2 calls faults of the client or of its registration.
    private static let faultsOfClients = ["invalid_client", "unauthorized_client", "unsupported_grant_type"]

    private static func refusals(_ pairs: [(status: Int, error: String)]) -> [RefusalPattern] {
        pairs.compactMap { RefusalPattern(status: $0.status, error: $0.error) }
    }

    package static let tidal = ProviderPreset(
        name: "tidal",
        title: "TIDAL",
        loginServiceBaseURI: "https://login.tidal.com",
        authServiceBaseURI: "https://auth.tidal.com/v1",
        deviceAuthorizationPath: "oauth2/device_authorization",
        // Amazon Root CA 1 to 4: what auth.tidal.com's chain ends in, three of them as backups.
        pinnedCertificates: [
            "sha256/++MBgDH5WGvL9Bcn5Be30cRcL0f5O+NyoXuWtQdX1aI=",
            "sha256/f0KW/FtqTjs108NpYj42SrGvOB2PpxIVM8nWxjPqJGE=",
            "sha256/NqvDJlas/GRcYbcWE8S/IceH9cq77kg0jVhZeAPXq8k=",
            "sha256/9+ze1cZgR9KO1kZrVDxA4HQ6voHRCSVNz4RdTCx4U8U=",
        ],
        clientAuthentication: .clientSecretPost,
        languageParameter: "lang",
        emailParameter: "email",
        sendsClientUniqueKey: true,
        repeatsScopes: true,
        scopesClientCredentials: false,
        upgradeGrant: "update_client",
        // TIDAL's Auth design, "Refreshing credentials". 401 invalid_grant is not on its list; TIDAL answers a revoked
        // refresh token with it.
        sessionEndingAnswers: refusals([
            (400, "unauthorized_client"), (400, "invalid_grant"), (400, "invalid_request"), (401, "access_denied"),
            (401, "invalid_client"), (401, "invalid_grant"),
        ]),
        configurationErrors: [])

    package static let oidc = ProviderPreset(
        name: "oidc",
        // RFC 6749 §2.3.1: every server must take HTTP Basic.
        clientAuthentication: .clientSecretBasic,
        // OpenID Connect Core §3.1.2.1.
        languageParameter: "ui_locales",
        emailParameter: "login_hint",
        scopesClientCredentials: true)

    /// Spotify's accounts service: one for everybody, and not an OpenID provider.
    package static let spotify = ProviderPreset(
        name: "spotify",
        title: "Spotify",
        authorizationEndpoint: "https://accounts.spotify.com/authorize",
        tokenEndpoint: "https://accounts.spotify.com/api/token",
        clientAuthentication: .clientSecretBasic,
        languageParameter: nil,
        emailParameter: nil,
        scopesClientCredentials: false)

    /// Authgear: an OpenID provider under each customer's own issuer. It grants a refresh token only for the scope
    /// `offline_access`, and takes a client's identifier and secret from the form before it looks at the header.
    package static let authgear = ProviderPreset(
        name: "authgear",
        clientAuthentication: .clientSecretPost,
        languageParameter: "ui_locales",
        emailParameter: "login_hint",
        scopesClientCredentials: true)

    package static let all: [ProviderPreset] = [.tidal, .oidc, .spotify, .authgear]

    package static func named(_ name: WireText) -> ProviderPreset? { all.first { WireText($0.name) == name } }
}
