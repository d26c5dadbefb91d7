import ExternalText
import HTTPCodec
import JOSE
import JSON
import OAuth

/// How a provider differs from others, in properties that code asks for in place of the provider's name. Each has the value of a
/// provider that follows the RFCs, until `ProviderBehaviour+Profiles.swift` says otherwise.
struct ProviderBehaviour: Sendable {
    /// A flow that is no login in a browser, with endpoints and answers of its own.
    enum Flow: Sendable {
        /// Accounts without a login page: an application takes a browser's place. `AccountEndpoints` has it.
        case accounts
        /// One app of a device lets another one in. `AuthgearEndpoints` has it.
        case apps
    }

    /// Where the parameters of a request to the token endpoint and its like may be.
    enum ParameterPlaces: Sendable {
        /// In the form only, since URLs are recorded in logs and histories (RFC 6749 §2.3.1, RFC 9700 §4.3.2).
        case form
        case formOrQuery
        /// In the query and again in the form. Where they differ, the query's are right.
        case queryAgainInForm
    }

    /// Where client credentials are read.
    enum CredentialPlaces: Sendable {
        case formOrHeader
        case form
        /// In the header only if the form names no client.
        case formElseHeader
    }

    // MARK: Addresses

    /// Nil for one without a flow of its own.
    var flow: Flow?
    /// Whether accounts have states, by which their sessions are refused.
    var keepsAccounts: Bool { flow == .accounts }
    /// Below the base URL. Metadata is at the well-known paths instead.
    var paths: [Endpoint: String] = [
        .authorize: "/authorize", .token: "/token", .deviceAuthorization: "/device_authorization", .revoke: "/revoke",
        .pushedAuthorization: "/par", .keys: "/jwks",
    ]
    /// Whether it is found by its metadata, so that it names itself in authorization responses, too.
    var hasMetadata = true
    /// The values of `grant_type` that the token endpoint accepts.
    var grants: [GrantType] = [.authorizationCode, .refreshToken, .clientCredentials, .deviceCode]

    // MARK: Requests

    var parameterPlaces = ParameterPlaces.form
    /// Whether token requests need no form, and may be GETs.
    var takesQueryAlone = false
    /// Whether repetitions of a parameter with the same value are accepted.
    var toleratesEqualParameters = false
    /// Whether an authorization request may leave `response_type` out.
    var toleratesMissingResponseType = false
    /// Whether clients with a secret need no PKCE, although the configuration requires it.
    var sparesConfidentialClientsPKCE = false
    /// The most characters of a `code_verifier` (RFC 7636 §4.1).
    var longestVerifier = 128
    var credentialPlaces = CredentialPlaces.formOrHeader
    /// Whether each request of a client that has a secret must bring it, and not only one for client credentials.
    var requiresSecret = true
    /// Whether the secret that a client without one sends is ignored.
    var ignoresNeedlessSecrets = false
    /// Whether clients may authenticate by JWTs (RFC 7523 §2.2).
    var takesClientAssertions = true

    // MARK: Answers

    var tokenAnswer = TokenAnswer()
    var deviceAnswer = DeviceAnswer()
    var errors = ErrorAnswer()
    /// Parameters of the authorization request that the callback repeats, with the value of one that was left out.
    var repeatedParameters: [(name: WireText, usual: WireText)] = []

    // MARK: Tokens

    /// How many letters and digits an authorization code has; nil for a code of `Secrets.make`.
    var codeLength: Int?
    /// How many letters and digits a refresh token has behind the identifier of its grant; nil for a token of `Secrets.make`.
    var refreshSecretLength: Int?
    /// Whether logins with the scope `openid` bring an ID token.
    var issuesIDTokens = true
    /// What the signed access and refresh tokens of accounts say; nil for other tokens.
    var accountTokens: TokenVerification?

    // MARK: Sessions

    /// The scopes of a client that may have any and asks for none.
    var usualScopes: [String] = []
    /// Whether sessions have those scopes whatever their client may have.
    var grantsUsualScopesOnly = false
    /// The answer to the refresh token of another client.
    var refusalOfOthersToken = OAuthError(.invalidRefreshToken, "Refresh token was issued to another client")
    /// Whether the use of a refresh token after its grace period ends the session, and not only fails.
    var endsReusedSessions = true
    /// Whether a second use within the grace period ends the access tokens that the first one issued.
    var endsReplayedAccessTokens = false
    /// Whether the registration of a client may say whether its refresh tokens are rotated.
    var rotatesByClient = false

    /// What a configuration begins with.
    var defaults = Defaults()
}

extension ProviderBehaviour {
    /// The members of a token response beside those of the tokens.
    struct TokenAnswer: Sendable {
        enum ScopeTelling: Sendable {
            case never
            /// A scope has at least one token (RFC 6749 §3.3).
            case unlessEmpty
            case always
        }

        var scope = ScopeTelling.unlessEmpty
        /// The member with the number of the user; nil for none.
        var user: String?
        /// The member with the name of the client; nil for none.
        var clientName: String?
    }

    /// The names in a device authorization response (RFC 8628 §3.2), and how its texts are written.
    struct DeviceAnswer: Sendable {
        var deviceCode = "device_code"
        var userCode = "user_code"
        var verificationURI = "verification_uri"
        var completeURI = "verification_uri_complete"
        var expiresIn = "expires_in"
        /// RFC 8628 §6.1 recommends eight letters.
        var letters = 8
        /// How many letters are before the hyphen; nil for no hyphen.
        var lettersBeforeHyphen: Int? = 4
        /// Whether addresses lack a scheme, which means https.
        var omitsHTTPS = false
    }

    /// How a refused request is answered.
    struct ErrorAnswer: Sendable {
        enum Member: String, Sendable {
            case status
            case error
            case number = "sub_status"
            case description = "error_description"
            case detail = "error_code"
        }

        /// In their order.
        var members: [Member] = [.error, .description]
        /// Those that are not 400.
        var statuses: [OAuthError.Kind: Status] = [
            .invalidClient: .unauthorized, .unauthenticated: .unauthorized, .rateLimited: .tooManyRequests,
        ]
        /// Whether the configuration says with which status a dead refresh token is refused.
        var hasConfiguredStatus = false
        /// Whether the refusal of a client asks for credentials. RFC 6749 §5.2 requires that if the client used the Authorization
        /// field; otherwise it is allowed, and RFC 9110 §15.5.2 asks for it.
        var asksForCredentials = true
        /// The name of every error but `unknown_account`; nil where each has its own.
        var commonName: String?
        /// The values of `number`.
        var numbers: [OAuthError.Kind: Int] = [:]
        /// The value of `number` for other errors, which has no meaning to any client.
        var otherNumber = 1000
        /// The values of `detail`.
        var details: [TokenStatus: Int64] = [:]
    }

    /// The values of the members of `ProviderConfiguration` with the same names.
    struct Defaults: Sendable {
        var accessTokenLifetime: Duration = .seconds(3600)
        var refreshTokenLifetime: Duration?
        var authorizationCodeLifetime: Duration = .seconds(60)
        var deviceCodeLifetime: Duration = .seconds(600)
        var deviceInterval: Duration = .seconds(5)
        var slowsDownEagerPolls = true
        var rotation = RefreshTokenRotation.none
        var successorEndsGrace = true
        var refreshTokenScope: WireText?
        var accessTokenFormat = AccessTokenFormat.opaque
        var signingAlgorithm = SignatureAlgorithm.es256
    }
}

// MARK: Documents

extension ProviderBehaviour {
    /// What the document of one of the broker's profiles says of its provider.
    /// - Parameter complete: adds what only this side has to know.
    init(_ name: WireText, _ complete: (inout ProviderBehaviour) -> Void) {
        let profile = ProviderPreset.shipped(name)
        flow = profile.accounts != nil ? .accounts : profile.appToApp != nil ? .apps : nil
        paths = ProfileTranslation.paths(of: profile)
        paths[.challenge] = profile.appToApp.map { "/" + $0.challengePath }
        hasMetadata = profile.endpoints.token == nil
        if let upgrade = profile.upgradeGrant.flatMap({ GrantType(rawValue: $0) }) { grants.append(upgrade) }
        takesQueryAlone = profile.tokenRequestFormat == .query
        // The scopes of `ProviderPreset` are sorted.
        usualScopes = (ShippedProfiles.document(name)?["scopes"]?.array ?? []).compactMap { $0.string?.text }
        if profile.accounts != nil { accountTokens = profile.tokenVerification }
        errors.commonName = profile.namedRefusals.first { $0.value == .invalidTokenRequest }?.key.text
        for (number, name) in profile.refusalDetails {
            if let status = TokenStatus(rawValue: name) { errors.details[status] = number }
        }
        defaults.rotation = profile.usualRotation
        defaults.refreshTokenLifetime = profile.lives.refreshToken
        defaults.refreshTokenScope = profile.lives.refreshTokenScope
        complete(&self)
    }
}

extension ProviderPreset {
    /// The rotation that the profile is sure of.
    var usualRotation: RefreshTokenRotation { rotation == .always ? .rotate(grace: reuseGrace ?? .zero) : .none }
}
