import BrokerCore
import ExternalText
public import FoundationEssentials
import HTTPSClient
import JSON

/// A client at a provider: the parameters of the Auth design's `init`.
public struct AuthConfiguration: Sendable, Equatable {
    /// Names the set of credentials. Credentials that an earlier run stored under the same key are used again. Any text
    /// is allowed.
    public var credentialsStorageKey: String
    /// The client identifier that the provider assigned.
    public var clientID: String
    /// The scopes to request. Default, and where the set is empty: those that the provider's profile requests by default, which
    /// only the profiles `authgear` and `duckduckgo` do.
    public var scopes: Set<String> = []
    /// Required for client credentials. If it is set, every request to the token endpoint contains it. Default: none.
    public var clientSecret: String?
    /// Whether `clientSecret` is used to get a token of the client's own while no user is logged in. If it is false, the secret
    /// is only used for refreshes and code exchanges, and without a user `getCredentials` returns credentials of the level
    /// `basic`. Default true.
    public var clientCredentials = true
    /// Identifies this installation of the client, for TIDAL. Default: none.
    public var clientUniqueKey: String?
    /// The base address of the login service, for `tidal`. Nil, the default, means TIDAL's production environment.
    public var tidalLoginServiceBaseURI: URL?
    /// The base address of the auth service, for `tidal` and `duckduckgo`. Nil, the default, means the production
    /// environment.
    public var tidalAuthServiceBaseURI: URL?
    /// Whether the provider's certificates are checked against `pinnedCertificates`, or for `tidal` against TIDAL's known
    /// keys. Default true. Set it to false only for debugging.
    public var certificatePinning = true
    /// The keys of which the provider's certificate chain must have one: `sha256/` and the base64 of the SHA-256 of a
    /// SubjectPublicKeyInfo each, 1 to 32. Nil, the default, means the known keys of the kind of provider, which only
    /// `tidal` has.
    public var pinnedCertificates: [String]?
    /// The kind of provider: the name of a profile in `Deploy/providers`, such as `spotify` or `oidc`. Default `tidal`.
    public var provider = "tidal"
    /// What the addresses of the kind of provider have a place for, such as `domain` for `auth0`. Default: none, which means the
    /// usual values where there are any.
    public var providerParameters: [String: String] = [:]
    /// The issuer of an OpenID or OAuth 2.0 provider, whose metadata names its endpoints. Must be nil for `tidal`.
    public var issuer: URL?
    /// The lifetime of a token whose response has no lifetime and which is not a JWT. Nil, the default, means the
    /// provider's usual lifetime, which is an hour unless another one is known.
    public var defaultLifetime: TokenLifetime?
    /// The provider's endpoints. Default: those of the kind of provider, or of the issuer's metadata.
    public var endpoints = Endpoints()
    /// Earlier issuers of the same provider: a user whose credentials one of them granted stays logged in, and is refreshed at
    /// the present provider. Without this, a refresh token is not sent to another issuer than the one that granted it. Default:
    /// none. At most 10.
    public var previousIssuers: [URL] = []
    /// Earlier token endpoints of the same provider, likewise. They are compared where one of the two issuers is not known, and
    /// where `endpoints` names the token endpoint. Default: none. At most 10.
    public var previousTokenEndpoints: [URL] = []
    /// How the client authenticates at the token endpoint. Nil, the default, means the method of the kind of provider, or
    /// one that the issuer's metadata names.
    public var clientAuthentication: ClientAuthentication?
    /// What the client shows the provider in place of `clientSecret`, which must be nil then unless it is a certificate. Default:
    /// nothing.
    public var clientProof: ClientProof?
    /// Whether a request that authenticates by HTTP Basic has the client identifier in its form, too. Nil, the default, means
    /// that it has, except with `spotify`.
    public var repeatsClientID: Bool?
    /// How signed tokens are verified before they are stored and returned. Nil, the default, means that access tokens and
    /// refresh tokens are opaque texts; an ID token is verified in any case.
    public var tokenVerification: TokenVerification?
    /// What `aud` of an ID token may have beside the client identifier: 100 values at most, of 1 to 2048 bytes each. Nil, the
    /// default, means anything where `azp` is the client identifier. With a list, also an empty one, it may have nothing else,
    /// whatever `azp` says.
    public var trustedAudiences: [String]?
    /// How long before its expiry a token is refreshed when credentials are requested: 0 to 86,400 s, whole seconds. Nil,
    /// the default, means that of the kind of provider, which is 0 unless another one is known. If the refresh fails, the
    /// present token is returned while it is valid.
    public var refreshLeadTime: Duration?
    /// How long before its expiry a user's token is refreshed without a request: 60 to 86,400 s, whole seconds. Nil, the default,
    /// means never; `AuthClient.expirations` then tells of tokens that are about to expire.
    ///
    /// The refresh is up to a fifth earlier, at random, always before the notice of `AuthClient.expirations`, which then comes only
    /// if it fails, and never in the first two fifths of the token's lifetime. A refresh that fails is repeated until it succeeds
    /// or the session ends, also after the token's expiry, at intervals that grow to a quarter of an hour. A token with a lifetime
    /// of less than a minute is refreshed after its expiry. All this happens while an environment of the store is open.
    public var proactiveRefresh: Duration?
    /// For how long after its first use the provider accepts a refresh token again: 0 to 86,400 s, whole seconds. During
    /// this time a refresh whose answer was lost is repeated with the same refresh token. Nil, the default, means that of
    /// the kind of provider, or 10 s where that is not known.
    public var reuseGrace: Duration?
    /// What becomes of a refresh token that was used. Nil, the default, means that of the kind of provider: with `tidal`, unless
    /// `reuseGrace` is set, that it stays valid, and with the others that it may be spent.
    public var rotation: Rotation?
    /// What becomes of an access token when a refresh has brought another one. Nil, the default, means that it is valid until
    /// its own end.
    public var accessTokenAfterRefresh: AccessTokenAfterRefresh?
    /// Answers to a refresh with which the provider ends the user's session, in addition to those that the kind of
    /// provider is known for. Default: none. At most 32.
    public var sessionEndingAnswers: [SessionEndingAnswer] = []
    /// How long before its expiry `OAuthClient.getTokens` refreshes an access token: 0 to 86,400 s. Default 45 s.
    public var tokenExpiryBufferInterval: Duration = .seconds(45)

    /// The assumed lifetime of a token.
    public enum TokenLifetime: Sendable, Equatable {
        /// Seconds: 1 to 315,360,000.
        case seconds(Int)
        /// The token is valid until the provider or an API refuses it.
        case never

        fileprivate var json: JSONValue {
            switch self {
            case .seconds(let seconds): .integer(Int64(seconds))
            case .never: .string("never")
            }
        }
    }

    /// How the app takes part in app-to-app authentication. Nil, the default, means that it lets no other apps in. Only for the
    /// provider `authgear`.
    public var app2appOptions: App2AppOptions?

    /// Header fields that are sent to the provider with each request, by name. At most 20, without those that the library writes
    /// itself and those that authenticate. Default none.
    public var requestHeaders: [String: String] = [:]

    /// How requests to the provider are repeated that it did not answer. Default: those of the kind of provider, which are six
    /// tries, half a second to eight seconds apart.
    public var retry = Retry()

    /// Sets the parameters of a client, and any others. They are checked by the calls that use them.
    ///
    ///     AuthConfiguration(credentialsStorageKey: "main", clientID: "abc", provider: "oidc", issuer: issuer) {
    ///         $0.reuseGrace = .seconds(30)
    ///     }
    ///
    /// - Parameter set: sets the parameters that have no name here.
    public init(
        credentialsStorageKey: String, clientID: String, scopes: Set<String> = [], clientSecret: String? = nil,
        clientUniqueKey: String? = nil, tidalLoginServiceBaseURI: URL? = nil, tidalAuthServiceBaseURI: URL? = nil,
        certificatePinning: Bool = true, provider: String = "tidal", issuer: URL? = nil,
        defaultLifetime: TokenLifetime? = nil, app2appOptions: App2AppOptions? = nil, clientProof: ClientProof? = nil,
        _ set: (inout AuthConfiguration) -> Void = { _ in }
    ) {
        self.credentialsStorageKey = credentialsStorageKey
        self.clientID = clientID
        self.scopes = scopes
        self.clientSecret = clientSecret
        self.clientUniqueKey = clientUniqueKey
        self.tidalLoginServiceBaseURI = tidalLoginServiceBaseURI
        self.tidalAuthServiceBaseURI = tidalAuthServiceBaseURI
        self.certificatePinning = certificatePinning
        self.provider = provider
        self.issuer = issuer
        self.defaultLifetime = defaultLifetime
        self.app2appOptions = app2appOptions
        self.clientProof = clientProof
        set(&self)
    }
}

/// Printing a configuration uses these. They omit the client's secret and its unique key.
extension AuthConfiguration: CustomStringConvertible, CustomReflectable {
    public var description: String { "client \(clientID) of provider \(provider)" }

    public var customMirror: Mirror {
        Mirror(
            self,
            children: [
                "credentialsStorageKey": credentialsStorageKey, "clientID": clientID, "scopes": scopes,
                "provider": provider,
            ], displayStyle: .struct)
    }
}

extension AuthConfiguration {
    /// Checks the parameters and returns them as a tenant's configuration.
    func checked(for targets: TargetPolicy) throws(AuthError) -> TenantConfiguration {
        let members = try members
        do throws(BrokerError) {
            return try TenantConfiguration(.object(members), rules: targets)
        } catch {
            throw AuthError(.illegalArgument, message: error.detail)
        }
    }

    /// The tenant's members that are not left out.
    private var members: [WireText: JSONValue] {
        get throws(AuthError) {
            let values: [WireText: JSONValue?] = [
                "provider": .text(provider),
                "client_id": .text(clientID),
                // The library has no browser whose cookie could be checked.
                "browser_binding": .choice(TenantConfiguration.BrowserBinding.off),
                "scopes": scopes.isEmpty ? nil : .texts(scopes),
                "client_secret": .text(clientSecret),
                "client_credentials": clientCredentials ? nil : .choice(TenantConfiguration.ClientCredentials.off),
                "client_unique_key": .text(clientUniqueKey),
                "login_service_base_uri": .address(tidalLoginServiceBaseURI),
                "auth_service_base_uri": .address(tidalAuthServiceBaseURI),
                "issuer": .address(issuer),
                "default_lifetime": defaultLifetime?.json,
                "certificate_pinning": certificatePinning ? nil : .bool(false),
                "pinned_certificates": pinnedCertificates.map { .texts($0) },
                "endpoints": .objectUnlessEmpty(endpoints.members),
                "previous_issuers": .addressesUnlessEmpty(previousIssuers),
                "previous_token_endpoints": .addressesUnlessEmpty(previousTokenEndpoints),
                "request_headers": .mapUnlessEmpty(requestHeaders),
                "parameters": .mapUnlessEmpty(providerParameters),
                "retry": .objectUnlessEmpty(try retry.members),
                "token_endpoint_auth_method": .choice(clientAuthentication),
                "client_id_in_body": .flag(repeatsClientID),
                "rotation": .choice(rotation),
                "access_token_after_refresh": .choice(accessTokenAfterRefresh),
                "trusted_audiences": trustedAudiences.map { .texts($0) },
                "token_verification": .object(try tokenVerification?.members),
                "refresh_lead_time": try .seconds(refreshLeadTime, named: "refresh_lead_time"),
                "proactive_refresh": try .seconds(proactiveRefresh, named: "proactive_refresh"),
                "reuse_grace": try .seconds(reuseGrace, named: "reuse_grace"),
                "app2app": .object(app2appOptions?.members),
                "session_ending_answers": sessionEndingAnswers.isEmpty
                    ? nil : .array(sessionEndingAnswers.map { .object($0.members) }),
            ]
            var members = values.compactMapValues(\.self)
            if let (name, value) = clientProof?.member { members[name] = value }
            return members
        }
    }
}

/// Parameters for the login page (the Auth design's `LoginConfig`).
public struct LoginConfig: Sendable, Equatable {
    /// The language as an ISO 639-1 code, such as `en`. With nil the login page chooses the language.
    public var language: String?
    /// The email address to fill in on the login page. Nil fills in none.
    public var email: String?
    /// Parameters that are passed to the login service. Their names must not be those of the protocol's parameters;
    /// names consist of 1 to 64 letters, digits, `_` and `-`. All names and values together have at most 4096 bytes.
    public var customParameters: [String: String]

    /// Sets the parameters. `AuthClient.initializeLogin` checks them.
    public init(language: String? = nil, email: String? = nil, customParameters: [String: String] = [:]) {
        self.language = language
        self.email = email
        self.customParameters = customParameters
    }
}
