import ExternalText
import HTTPCodec
import JOSE

extension ProviderProfile {
    /// How a provider of this profile behaves.
    var behaviour: ProviderBehaviour {
        switch self {
        case .tidal: .tidal
        case .rfc: .standard
        case .duckduckgo: .duckduckgo
        case .authgear: .authgear
        }
    }
}

/// What only the provider's side has to know of each profile. The rest is in the profiles' documents.
extension ProviderBehaviour {
    static let standard = ProviderBehaviour()

    /// Access tokens for four hours, device codes for five minutes, polls every two seconds without a check of the interval.
    static let tidal = ProviderBehaviour("tidal") {
        $0.paths[.keys] = "/v1/jwks"
        // One of TIDAL's clients sends each parameter in the query and again in the body, where it is decoded by mistake.
        $0.parameterPlaces = .queryAgainInForm
        $0.toleratesEqualParameters = true
        // Another one does not send it.
        $0.toleratesMissingResponseType = true
        $0.credentialPlaces = .form
        $0.requiresSecret = false
        $0.ignoresNeedlessSecrets = true
        $0.takesClientAssertions = false
        $0.tokenAnswer = TokenAnswer(scope: .always, user: "user_id", clientName: "clientName")
        // TIDAL shows these addresses on screens.
        $0.deviceAnswer = DeviceAnswer(
            deviceCode: "deviceCode", userCode: "userCode", verificationURI: "verificationUri",
            completeURI: "verificationUriComplete", expiresIn: "expiresIn", letters: 5, lettersBeforeHyphen: nil,
            omitsHTTPS: true)
        $0.errors.members = [.status, .error, .number, .description]
        $0.errors.hasConfiguredStatus = true
        $0.errors.asksForCredentials = false
        // These are known from TIDAL's responses and clients. The others are not published.
        $0.errors.numbers = [
            .authorizationPending: 1002, .invalidClient: 1005, .expiredToken: 11003, .invalidRefreshToken: 11101,
        ]
        $0.repeatedParameters = [("lang", "en"), ("appMode", "web")]
        $0.issuesIDTokens = false
        $0.defaults.accessTokenLifetime = .seconds(14_400)
        $0.defaults.deviceCodeLifetime = .seconds(300)
        $0.defaults.deviceInterval = .seconds(2)
        $0.defaults.slowsDownEagerPolls = false
    }

    /// Access tokens for four hours, refresh tokens for thirty days.
    static let duckduckgo = ProviderBehaviour("duckduckgo") {
        $0.paths[.sendPassword] = "/api/auth/v2/otp"
        $0.grants = [.authorizationCode, .refreshToken]
        // In the URL of a GET; the other place is accepted, too.
        $0.parameterPlaces = .formOrQuery
        // DuckDuckGo's clients send 171 characters.
        $0.longestVerifier = 171
        $0.requiresSecret = false
        $0.takesClientAssertions = false
        $0.tokenAnswer.scope = .never
        $0.errors.members = [.error, .detail]
        $0.errors.statuses = [:]
        $0.errors.asksForCredentials = false
        $0.codeLength = 86
        $0.issuesIDTokens = false
        $0.grantsUsualScopesOnly = true
        // A second use succeeds.
        $0.endsReplayedAccessTokens = true
        $0.defaults.accessTokenLifetime = .seconds(14_400)
        $0.defaults.refreshTokenLifetime = .seconds(30 * 86_400)
        $0.defaults.successorEndsGrace = false
    }

    /// Signed access tokens for half an hour, refresh tokens for 364 days, codes for five minutes.
    static let authgear = ProviderBehaviour("authgear") {
        $0.paths[.authorize] = "/oauth2/authorize"
        $0.paths[.token] = "/oauth2/token"
        $0.paths[.revoke] = "/oauth2/revoke"
        $0.paths[.userInfo] = "/oauth2/userinfo"
        $0.paths[.keys] = "/oauth2/jwks"
        $0.paths[.assetLinks] = "/.well-known/assetlinks.json"
        $0.paths[.appleAssociation] = "/.well-known/apple-app-site-association"
        $0.grants = [.authorizationCode, .refreshToken, .appToApp, .appToAppRequest, .biometric]
        $0.parameterPlaces = .formOrQuery
        $0.sparesConfidentialClientsPKCE = true
        $0.credentialPlaces = .formElseHeader
        $0.requiresSecret = false
        $0.takesClientAssertions = false
        $0.tokenAnswer.scope = .never
        $0.errors.statuses[.invalidClient] = nil
        $0.errors.asksForCredentials = false
        $0.codeLength = 32
        $0.refreshSecretLength = 32
        $0.refusalOfOthersToken = OAuthError(.invalidRequest, "client id doesn't match the refresh token")
        $0.endsReusedSessions = false
        $0.rotatesByClient = true
        $0.defaults.accessTokenLifetime = .seconds(1800)
        $0.defaults.refreshTokenLifetime = .seconds(364 * 86_400)
        $0.defaults.authorizationCodeLifetime = .seconds(300)
        $0.defaults.accessTokenFormat = .jwt
        $0.defaults.signingAlgorithm = .rs256
    }
}
