internal import BrokerCore
internal import ExternalText
public import FoundationEssentials
internal import HTTPSClient
internal import JSON

/// A client at a provider: the parameters of the Auth design's `init`.
public struct AuthConfiguration: Sendable, Equatable {
    /// Names the set of credentials. Credentials that an earlier run stored under the same key are used again. Any text
    /// is allowed.
    public var credentialsStorageKey: String
    /// The client identifier that the provider assigned.
    public var clientID: String
    /// The scopes to request. Default, and where the set is empty: those that the provider's profile requests by default, which
    /// only the profiles `authgear` and `duckduckgo` do.
    public var scopes: Set<String>
    /// Required for client credentials. If it is set, every request to the token endpoint contains it. Default: none.
    public var clientSecret: String?
    /// Whether `clientSecret` is used to get a token of the client's own while no user is logged in. If it is false, the secret
    /// is only used for refreshes and code exchanges, and without a user `getCredentials` returns credentials of the level
    /// `basic`. Default true.
    public var clientCredentials: Bool
    /// Identifies this installation of the client, for TIDAL. Default: none.
    public var clientUniqueKey: String?
    /// The base address of the login service, for `tidal`. Nil, the default, means TIDAL's production environment.
    public var tidalLoginServiceBaseURI: URL?
    /// The base address of the auth service, for `tidal` and `duckduckgo`. Nil, the default, means the production
    /// environment.
    public var tidalAuthServiceBaseURI: URL?
    /// Whether the provider's certificates are checked against `pinnedCertificates`, or for `tidal` against TIDAL's known
    /// keys. Default true. Set it to false only for debugging.
    public var certificatePinning: Bool
    /// The keys of which the provider's certificate chain must have one: `sha256/` and the base64 of the SHA-256 of a
    /// SubjectPublicKeyInfo each, 1 to 32. Nil, the default, means the known keys of the kind of provider, which only
    /// `tidal` has.
    public var pinnedCertificates: [String]?
    /// The kind of provider: the name of a profile in `Deploy/providers`, such as `spotify` or `oidc`. Default `tidal`.
    public var provider: String
    /// What the addresses of the kind of provider have a place for, such as `domain` for `auth0`. Default: none, which means the
    /// usual values where there are any.
    public var providerParameters: [String: String]
    /// The issuer of an OpenID or OAuth 2.0 provider, whose metadata names its endpoints. Must be nil for `tidal`.
    public var issuer: URL?
    /// The lifetime of a token whose response has no lifetime and which is not a JWT. Nil, the default, means the
    /// provider's usual lifetime, which is an hour unless another one is known.
    public var defaultLifetime: TokenLifetime?
    /// The provider's endpoints. Default: those of the kind of provider, or of the issuer's metadata.
    public var endpoints: Endpoints
    /// Earlier issuers of the same provider: a user whose credentials one of them granted stays logged in, and is refreshed at
    /// the present provider. Without this, a refresh token is not sent to another issuer than the one that granted it. Default:
    /// none. At most 10.
    public var previousIssuers: [URL]
    /// Earlier token endpoints of the same provider, likewise. They are compared where one of the two issuers is not known, and
    /// where `endpoints` names the token endpoint. Default: none. At most 10.
    public var previousTokenEndpoints: [URL]
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
    public var sessionEndingAnswers: [SessionEndingAnswer]
    /// How long before its expiry `OAuthClient.getTokens` refreshes an access token: 0 to 86,400 s. Default 45 s.
    public var tokenExpiryBufferInterval: Duration

    /// The assumed lifetime of a token.
    public enum TokenLifetime: Sendable, Equatable {
        /// Seconds: 1 to 315,360,000.
        case seconds(Int)
        /// The token is valid until the provider or an API refuses it.
        case never
    }

    /// How the app takes part in app-to-app authentication. Nil, the default, means that it lets no other apps in. Only for the
    /// provider `authgear`.
    public var app2appOptions: App2AppOptions?

    /// Header fields that are sent to the provider with each request, by name. At most 20, without those that the library writes
    /// itself and those that authenticate. Default none.
    public var requestHeaders: [String: String]

    /// How requests to the provider are repeated that it did not answer. Default: those of the kind of provider, which are six
    /// tries, half a second to eight seconds apart.
    public var retry: Retry

    /// Sets the parameters. They are checked by the calls that use them.
    public init(
        credentialsStorageKey: String, clientID: String, scopes: Set<String> = [], clientSecret: String? = nil,
        clientCredentials: Bool = true, clientUniqueKey: String? = nil, tidalLoginServiceBaseURI: URL? = nil,
        tidalAuthServiceBaseURI: URL? = nil,
        certificatePinning: Bool = true, pinnedCertificates: [String]? = nil, provider: String = "tidal",
        issuer: URL? = nil, defaultLifetime: TokenLifetime? = nil, endpoints: Endpoints = Endpoints(),
        previousIssuers: [URL] = [], previousTokenEndpoints: [URL] = [],
        clientAuthentication: ClientAuthentication? = nil, repeatsClientID: Bool? = nil,
        tokenVerification: TokenVerification? = nil, trustedAudiences: [String]? = nil,
        refreshLeadTime: Duration? = nil, proactiveRefresh: Duration? = nil, reuseGrace: Duration? = nil,
        rotation: Rotation? = nil, accessTokenAfterRefresh: AccessTokenAfterRefresh? = nil,
        sessionEndingAnswers: [SessionEndingAnswer] = [], tokenExpiryBufferInterval: Duration = .seconds(45),
        app2appOptions: App2AppOptions? = nil, requestHeaders: [String: String] = [:],
        retry: Retry = Retry(), clientProof: ClientProof? = nil, providerParameters: [String: String] = [:]
    ) {
        self.providerParameters = providerParameters
        self.clientProof = clientProof
        self.retry = retry
        self.requestHeaders = requestHeaders
        self.app2appOptions = app2appOptions
        self.credentialsStorageKey = credentialsStorageKey
        self.clientID = clientID
        self.scopes = scopes
        self.clientSecret = clientSecret
        self.clientCredentials = clientCredentials
        self.clientUniqueKey = clientUniqueKey
        self.tidalLoginServiceBaseURI = tidalLoginServiceBaseURI
        self.tidalAuthServiceBaseURI = tidalAuthServiceBaseURI
        self.certificatePinning = certificatePinning
        self.provider = provider
        self.issuer = issuer
        self.defaultLifetime = defaultLifetime
        self.pinnedCertificates = pinnedCertificates
        self.endpoints = endpoints
        self.previousIssuers = previousIssuers
        self.previousTokenEndpoints = previousTokenEndpoints
        self.clientAuthentication = clientAuthentication
        self.repeatsClientID = repeatsClientID
        self.tokenVerification = tokenVerification
        self.trustedAudiences = trustedAudiences
        self.refreshLeadTime = refreshLeadTime
        self.proactiveRefresh = proactiveRefresh
        self.reuseGrace = reuseGrace
        self.rotation = rotation
        self.accessTokenAfterRefresh = accessTokenAfterRefresh
        self.sessionEndingAnswers = sessionEndingAnswers
        self.tokenExpiryBufferInterval = tokenExpiryBufferInterval
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
        var members: [WireText: JSONValue] = [
            "provider": .string(WireText(provider)), "client_id": .string(WireText(clientID)),
            // The library has no browser whose cookie could be checked.
            "browser_binding": .string(WireText(TenantConfiguration.BrowserBinding.off.rawValue)),
        ]
        if !scopes.isEmpty { members["scopes"] = .array(scopes.map { .string(WireText($0)) }) }
        members["client_secret"] = clientSecret.map { .string(WireText($0)) }
        if !clientCredentials { members["client_credentials"] = .string("off") }
        members["client_unique_key"] = clientUniqueKey.map { .string(WireText($0)) }
        members["login_service_base_uri"] = tidalLoginServiceBaseURI.map { .string(WireText($0.absoluteString)) }
        members["auth_service_base_uri"] = tidalAuthServiceBaseURI.map { .string(WireText($0.absoluteString)) }
        members["issuer"] = issuer.map { .string(WireText($0.absoluteString)) }
        switch defaultLifetime {
        case .seconds(let seconds)?: members["default_lifetime"] = .integer(Int64(seconds))
        case .never?: members["default_lifetime"] = .string("never")
        case nil: break
        }
        if !certificatePinning { members["certificate_pinning"] = .bool(false) }
        members["pinned_certificates"] = pinnedCertificates.map { .array($0.map { .string(WireText($0)) }) }
        if !endpoints.members.isEmpty { members["endpoints"] = .object(endpoints.members) }
        for (name, addresses) in [
            ("previous_issuers", previousIssuers), ("previous_token_endpoints", previousTokenEndpoints),
        ] where !addresses.isEmpty {
            members[WireText(name)] = .array(addresses.map { .string(WireText($0.absoluteString)) })
        }
        for (name, texts) in [("request_headers", requestHeaders), ("parameters", providerParameters)]
        where !texts.isEmpty {
            members[WireText(name)] = .object(
                Dictionary(uniqueKeysWithValues: texts.map { (WireText($0), .string(WireText($1))) }))
        }
        let retry = try retry.members
        if !retry.isEmpty { members["retry"] = .object(retry) }
        members["token_endpoint_auth_method"] = clientAuthentication.map { .string(WireText($0.rawValue)) }
        if let clientProof { members[clientProof.member.name] = clientProof.member.value }
        members["client_id_in_body"] = repeatsClientID.map { .bool($0) }
        members["rotation"] = rotation.map { .string(WireText($0.rawValue)) }
        members["access_token_after_refresh"] = accessTokenAfterRefresh.map { .string(WireText($0.rawValue)) }
        members["trusted_audiences"] = trustedAudiences.map { .array($0.map { .string(WireText($0)) }) }
        members["token_verification"] = try tokenVerification.map { verification throws(AuthError) in
            .object(try verification.members)
        }
        for (name, duration) in [
            ("refresh_lead_time", refreshLeadTime), ("proactive_refresh", proactiveRefresh),
            ("reuse_grace", reuseGrace),
        ] {
            members[WireText(name)] = try duration.map { duration throws(AuthError) in
                .integer(try duration.wholeSeconds(name))
            }
        }
        if let app2appOptions { members["app2app"] = .object(app2appOptions.members) }
        if !sessionEndingAnswers.isEmpty {
            members["session_ending_answers"] = .array(sessionEndingAnswers.map { .object($0.members) })
        }
        do throws(BrokerError) {
            return try TenantConfiguration(.object(members), rules: targets)
        } catch {
            throw AuthError(.illegalArgument, message: error.detail)
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
