package import ExternalText
internal import JOSE

/// How a kind of provider differs from others. The differences are data, so that code need not compare provider names.
package struct ProviderPreset: Sendable, Equatable {
    /// How a client authenticates at the token endpoint (RFC 7591 §2).
    package enum ClientAuthentication: String, Sendable, CaseIterable {
        case clientSecretBasic = "client_secret_basic"
        case clientSecretPost = "client_secret_post"
        /// A public client, which sends only its identifier, in the form.
        case none
    }

    /// The value of `provider` in a tenant's configuration.
    package let name: String
    /// The name of the provider for people; nil when a tenant's addresses decide which provider it is.
    package let title: String?
    package let loginServiceBaseURI: String?
    package let authServiceBaseURI: String?
    /// The paths of the endpoints below the base URIs.
    package let paths: EndpointPaths
    /// The endpoints of a provider whose addresses are the same for all tenants and not below the base URIs.
    package let authorizationEndpoint: String?
    package let tokenEndpoint: String?
    /// `sha256/…` digests, of which the verified chain must contain at least one; empty when the provider publishes
    /// none.
    package let pinnedCertificates: [String]
    /// How a token request is sent.
    package let tokenRequestFormat: TokenRequestFormat
    /// The names of the parameters that a token request begins with, in their order; the other parameters follow.
    package let parameterOrder: [WireText]
    /// The longest that a token request takes; nil for the limit of the broker's configuration, which also holds where
    /// it is longer.
    package let tokenRequestLimit: Duration?
    /// The scopes of a tenant that names none.
    package let defaultScopes: ScopeSet
    /// The levels of credentials that are served. A provider without the lower levels has a user's credentials or
    /// none.
    package let levels: Set<CredentialsLevel>
    /// How accounts are created and activated without a login page; nil when the provider has no such accounts.
    package let accounts: AccountRules?
    /// The method when neither the tenant nor the provider's metadata names one.
    package let clientAuthentication: ClientAuthentication
    /// Whether that method is used wherever the metadata names it, and not the first one that they name.
    package let prefersOwnAuthentication: Bool
    /// Whether the identifier of a client that authenticates by HTTP Basic is in the form, too.
    package let repeatsClientID: Bool
    /// The query parameter for the language of the login page; nil when the provider has none, and the language is then
    /// not sent.
    package let languageParameter: String?
    /// The query parameter for the email address to fill in; nil when the provider has none, and the address is then
    /// not sent.
    package let emailParameter: String?
    /// Whether the authorization request, the code exchange, the device poll and the upgrade contain
    /// `client_unique_key`.
    package let sendsClientUniqueKey: Bool
    /// Whether the code exchange, the refresh and the device poll repeat the scopes. RFC 6749 defines no scope in the
    /// exchange, and an absent scope in a refresh means the granted scopes.
    package let repeatsScopes: Bool
    /// Whether a request for client credentials contains the configured scopes.
    package let scopesClientCredentials: Bool
    /// The lifetime of a token whose response has no lifetime and which is not a JWT.
    package let defaultLifetime: TokenLifetime
    /// Whether the `exp` of a token that is a JWT overrides the lifetime that the response names.
    package let prefersTokenExpiry: Bool
    /// The `grant_type` that moves a session to another client registration; nil when the provider has none.
    package let upgradeGrant: String?
    /// The responses to a refresh that end the session.
    package let sessionEndingAnswers: [RefusalPattern]
    /// The `error` values of a refused refresh that end the session whatever the status that bears them, 2xx or 4xx. Empty
    /// when the provider's rules name the statuses.
    package let sessionEndingErrors: [String]
    /// The `error` values that callers get by name: those of `sessionEndingAnswers`, and at account creation and
    /// activation `unknownAccount`.
    package let namedRefusals: [WireText: NamedRefusal]
    /// The names of the numbers that the provider sends as `error_code`.
    package let refusalDetails: [Int64: String]
    /// The `error` values of a refused refresh that are about the client's registration and therefore affect all its
    /// users at once. Empty when such a response ends the session by the provider's rules.
    package let configurationErrors: [String]
    /// How long before the access token's expiry a refresh is due. Positive when the refresh token expires together
    /// with the access token. Nil when no refresh is due before the caller's `min_ttl`.
    package let refreshLeadTime: Duration?
    /// The responses to a revocation which say that the provider does not know the token, so that nothing is left to
    /// revoke. By RFC 7009 §2.2 that is 200; some providers send these.
    package let unknownTokenAnswers: [RefusalPattern]
    /// For how long after its first use the provider accepts a refresh token again and grants tokens for it; nil when
    /// that is not known.
    package let reuseGrace: Duration?
    /// Whether the end of a session ends its access token, too. Otherwise callers have that token until its own end, unless
    /// an API has refused it.
    package let endsTokenWithSession: Bool
    /// What becomes of a refresh token that was used.
    package let rotation: TokenRotation
    /// What becomes of an access token when a refresh has brought another one.
    package let accessTokenAfterRefresh: AccessTokenAfterRefresh
    /// How signed access tokens and refresh tokens are verified; nil when they are taken as opaque.
    package let tokenVerification: TokenVerification?
    /// How an app lets another app of the same device in; nil when the provider has no such grant.
    package let appToApp: AppToAppRules?
    /// How requests are repeated, as far as the provider needs another schedule than the standard one.
    package let retry: RetrySettings

    private init(
        name: String, title: String? = nil, loginServiceBaseURI: String? = nil, authServiceBaseURI: String? = nil,
        paths: EndpointPaths = EndpointPaths(), authorizationEndpoint: String? = nil, tokenEndpoint: String? = nil,
        tokenRequestFormat: TokenRequestFormat = .form, parameterOrder: [WireText] = [],
        tokenRequestLimit: Duration? = nil, defaultScopes: ScopeSet = .empty,
        levels: Set<CredentialsLevel> = [.user, .client, .basic], accounts: AccountRules? = nil,
        pinnedCertificates: [String] = [], clientAuthentication: ClientAuthentication,
        prefersOwnAuthentication: Bool = false, repeatsClientID: Bool = true, languageParameter: String?,
        emailParameter: String?, sendsClientUniqueKey: Bool = false, repeatsScopes: Bool = false,
        scopesClientCredentials: Bool, defaultLifetime: TokenLifetime = .usual,
        prefersTokenExpiry: Bool = false, upgradeGrant: String? = nil,
        sessionEndingAnswers: [RefusalPattern] = deadGrants, sessionEndingErrors: [String] = ["invalid_grant"],
        namedRefusals: [WireText: NamedRefusal] = [:], refusalDetails: [Int64: String] = [:],
        configurationErrors: [String] = faultsOfClients, refreshLeadTime: Duration? = nil, reuseGrace: Duration? = nil,
        endsTokenWithSession: Bool = false, rotation: TokenRotation = .sometimes,
        accessTokenAfterRefresh: AccessTokenAfterRefresh = .lives,
        tokenVerification: TokenVerification? = nil, appToApp: AppToAppRules? = nil,
        unknownTokenAnswers: [RefusalPattern] = unknownTokens, retry: RetrySettings = RetrySettings()
    ) {
        self.name = name
        self.title = title
        self.loginServiceBaseURI = loginServiceBaseURI
        self.authServiceBaseURI = authServiceBaseURI
        self.authorizationEndpoint = authorizationEndpoint
        self.tokenEndpoint = tokenEndpoint
        self.paths = paths
        self.tokenRequestFormat = tokenRequestFormat
        self.parameterOrder = parameterOrder
        self.tokenRequestLimit = tokenRequestLimit
        self.defaultScopes = defaultScopes
        self.levels = levels
        self.accounts = accounts
        self.pinnedCertificates = pinnedCertificates
        self.clientAuthentication = clientAuthentication
        self.prefersOwnAuthentication = prefersOwnAuthentication
        self.repeatsClientID = repeatsClientID
        self.languageParameter = languageParameter
        self.emailParameter = emailParameter
        self.sendsClientUniqueKey = sendsClientUniqueKey
        self.repeatsScopes = repeatsScopes
        self.scopesClientCredentials = scopesClientCredentials
        self.defaultLifetime = defaultLifetime
        self.prefersTokenExpiry = prefersTokenExpiry
        self.upgradeGrant = upgradeGrant
        self.sessionEndingAnswers = sessionEndingAnswers
        self.sessionEndingErrors = sessionEndingErrors
        self.namedRefusals = namedRefusals
        self.refusalDetails = refusalDetails
        self.configurationErrors = configurationErrors
        self.refreshLeadTime = refreshLeadTime
        self.unknownTokenAnswers = unknownTokenAnswers
        self.reuseGrace = reuseGrace
        self.endsTokenWithSession = endsTokenWithSession
        self.rotation = rotation
        self.accessTokenAfterRefresh = accessTokenAfterRefresh
        self.tokenVerification = tokenVerification
        self.appToApp = appToApp
        self.retry = retry
    }

    /// The responses with which a provider says that the grant is invalid (RFC 6749 §5.2). Some providers send 401.
    private static let deadGrants = refusals([(400, "invalid_grant"), (401, "invalid_grant")])

    private static let unknownTokens = refusals([(400, "invalid_token")])

    /// The errors that RFC 6749 §5.2 defines for faults of the client or its registration.
    private static let faultsOfClients = ["invalid_client", "unauthorized_client", "unsupported_grant_type"]

    private static func refusals(_ pairs: [(status: Int, error: String)]) -> [RefusalPattern] {
        pairs.compactMap { RefusalPattern(status: $0.status, error: $0.error) }
    }

    package static let tidal = ProviderPreset(
        name: "tidal",
        title: "TIDAL",
        loginServiceBaseURI: "https://login.tidal.com",
        authServiceBaseURI: "https://auth.tidal.com/v1",
        paths: EndpointPaths(
            authorization: .init(.loginService, "authorize"), token: .init(.authService, "oauth2/token"),
            deviceAuthorization: .init(.authService, "oauth2/device_authorization")),
        // Amazon Root CA 1 to 4: the roots of the chain of auth.tidal.com, of which three are backups.
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
        // TIDAL's Auth design, "Refreshing credentials". The design does not list 401 invalid_grant, but TIDAL sends it
        // for a revoked refresh token.
        sessionEndingAnswers: refusals([
            (400, "unauthorized_client"), (400, "invalid_grant"), (400, "invalid_request"), (401, "access_denied"),
            (401, "invalid_client"), (401, "invalid_grant"),
        ]),
        sessionEndingErrors: [],
        configurationErrors: [], endsTokenWithSession: true, rotation: .never)

    package static let oidc = ProviderPreset(
        name: "oidc",
        // RFC 6749 §2.3.1: every server must support HTTP Basic.
        clientAuthentication: .clientSecretBasic,
        // OpenID Connect Core §3.1.2.1.
        languageParameter: "ui_locales",
        emailParameter: "login_hint",
        scopesClientCredentials: true)

    /// Spotify's accounts service, which has one address for all clients and is not an OpenID provider.
    package static let spotify = ProviderPreset(
        name: "spotify",
        title: "Spotify",
        authorizationEndpoint: "https://accounts.spotify.com/authorize",
        tokenEndpoint: "https://accounts.spotify.com/api/token",
        clientAuthentication: .clientSecretBasic,
        repeatsClientID: false,
        languageParameter: nil,
        emailParameter: nil,
        scopesClientCredentials: false)

    /// Authgear: an OpenID provider with a separate issuer for each customer. It grants a refresh token only for the
    /// scope `offline_access`, and it reads a client's identifier and secret from the form before the header. Only
    /// `invalid_grant` says that a refresh token is dead: for another client's refresh token it says `invalid_request`.
    ///
    /// A client's setting decides whether it rotates refresh tokens. Where it does, the token before is dead at once;
    /// where it does not, a token works until the session ends. So the preset names no grace, and a tenant may.
    package static let authgear = ProviderPreset(
        name: "authgear",
        defaultScopes: ScopeSet(["openid", "offline_access", "https://authgear.com/scopes/full-access"]) ?? .empty,
        clientAuthentication: .clientSecretPost,
        prefersOwnAuthentication: true,
        languageParameter: "ui_locales",
        emailParameter: "login_hint",
        scopesClientCredentials: true,
        appToApp: AppToAppRules(
            challengePath: "oauth2/challenge", challengePurpose: "app2app_request",
            proofType: "vnd.authgear.app2app-request", keyParameter: "x_app2app_device_key_jwt",
            grantType: "urn:authgear:params:oauth:grant-type:app2app-request", biometricPurpose: "biometric_request",
            biometricProofType: "vnd.authgear.biometric-request",
            biometricGrantType: "urn:authgear:params:oauth:grant-type:biometric-request",
            biometricRefusal: "InvalidCredentials"))

    /// DuckDuckGo's Auth v2: accounts of an application, without a login page. A session cookie connects the requests
    /// of a login, redirects carry the code, and the token endpoint is called by GET. The clients are public.
    package static let duckduckgo = ProviderPreset(
        name: "duckduckgo",
        title: "DuckDuckGo",
        authServiceBaseURI: "https://quack.duckduckgo.com",
        paths: EndpointPaths(
            authorization: .init(.authService, "api/auth/v2/authorize"),
            token: .init(.authService, "api/auth/v2/token"),
            keys: .init(.authService, "api/auth/v2/.well-known/jwks.json"),
            accountCreation: .init(.authService, "api/auth/v2/account/create"),
            activation: .init(.authService, "api/auth/v2/login"),
            logout: .init(.authService, "api/auth/v2/logout")),
        tokenRequestFormat: .query,
        parameterOrder: ["grant_type", "client_id", "refresh_token", "code_verifier", "code", "redirect_uri"],
        tokenRequestLimit: .seconds(20),
        defaultScopes: ScopeSet(["privacypro"]) ?? .empty,
        levels: [.user],
        accounts: AccountRules(
            redirectURI: "com.duckduckgo:/authcb", sessionCookie: "ddg_auth_session_id",
            signatureSource: "apple_app_store", logoutStatus: "logged_out",
            errors: [
                "invalid_authorization_request", "authorize_failed", "invalid_request", "account_create_failed",
                "invalid_session_id", "suspended_account", "invalid_login_credentials", "unknown_account",
                "invalid_token_request", "unverified_account", "invalid_token", "expired_token",
            ]),
        clientAuthentication: .none,
        languageParameter: nil,
        emailParameter: nil,
        scopesClientCredentials: false,
        prefersTokenExpiry: true,
        sessionEndingAnswers: refusals([(400, "invalid_token_request"), (400, "unknown_account")]),
        sessionEndingErrors: [],
        namedRefusals: ["invalid_token_request": .invalidTokenRequest, "unknown_account": .unknownAccount],
        refusalDetails: [0: "invalid", 1: "expired", 2: "reused", 3: "logged_out", 4: "fraud_detected"],
        refreshLeadTime: .seconds(45),
        // The server accepts a used refresh token for an hour.
        reuseGrace: .seconds(3600), endsTokenWithSession: true, rotation: .always,
        tokenVerification: TokenVerification(
            accessToken: .init(audience: "PrivacyPro", scopes: ScopeSet(["privacypro"]), algorithms: [.es256]),
            refreshToken: .init(audience: "Auth", scopes: ScopeSet(["refresh"]), algorithms: [.es256]),
            issuesAsBase: true, namesOneUser: true))

    package static let all: [ProviderPreset] = [.tidal, .oidc, .spotify, .authgear, .duckduckgo]

    package static func named(_ name: WireText) -> ProviderPreset? { all.first { WireText($0.name) == name } }
}
