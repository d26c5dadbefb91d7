package import Cryptography
package import ExternalText
import HTTPCodec
import HTTPSClient
package import OAuth

/// A tenant's registration at its provider: the checked content of `PUT /tenants/{tenant}`.
package struct TenantConfiguration: Sendable, Equatable {
    package enum BrowserBinding: String, Sendable, CaseIterable {
        case whenStartedHere = "when_started_here"
        case required
        /// As `whenStartedHere`; in addition, the code is redeemed only after the user has pressed a button on the broker's page.
        case confirm
        case off
    }

    /// The address to which the provider sends browsers back (RFC 9700 §4.4.2.2).
    package enum CallbackURI: String, Sendable, CaseIterable {
        /// `/login/callback`, the same address for all such tenants.
        case shared
        /// `/login/callback/{tenant}`.
        case perTenant = "per_tenant"

        /// - Parameter publicBaseURL: the URL at which browsers reach the broker, without a slash at its end.
        func address(below publicBaseURL: String, of tenant: TenantName) -> String {
            let shared = publicBaseURL + "/login/callback"
            return self == .shared ? shared : "\(shared)/\(tenant)"
        }
    }

    /// Whether the client secret is used to obtain client credentials (RFC 6749 §4.4).
    package enum ClientCredentials: String, Sendable, CaseIterable {
        case on
        /// The client secret is used for refreshes and code exchanges only.
        case off
    }

    package struct Endpoints: Sendable, Equatable {
        package var authorization: String?
        package var token: String?
        package var deviceAuthorization: String?
        /// Where refreshes go; nil for the token endpoint.
        package var refresh: String?
        package var revocation: String?
        package var jwks: String?
        /// Asked after each login with an ID token; nil for not asking.
        package var userInfo: String?
        package var accountCreation: String?
        package var activation: String?
        package var logout: String?
        /// Takes the parameters of authorization requests (RFC 9126); nil for the preset's or the metadata's.
        package var pushedAuthorization: String?
        /// Grants the challenges of device keys; nil for the preset's path below the issuer.
        package var challenge: String?

        package init() {}
    }

    /// How the broker is an app at a provider that lets apps of a device let each other in.
    package struct AppToApp: Sendable, Equatable {
        /// Whether a login binds a new device key to its session.
        package var isEnabled = false
        /// Whether a session without a device key gets one when it is asked to let an app in.
        package var bindsKeysLater = false
        /// The addresses of other apps at which a login may begin.
        package var authorizationEndpoints: [String] = []

        package init() {}
    }

    package var preset: ProviderPreset
    package var client: ClientConfiguration
    /// Without a slash at the end; nil for the preset's.
    package var loginServiceBaseURI: String?
    package var authServiceBaseURI: String?
    /// Nil for the preset's choice: on if the preset or the tenant has pins.
    package var certificatePinning: Bool?
    package var pinnedCertificates: [String]?
    package var issuer: String?
    package var endpoints = Endpoints()
    /// Earlier issuers of the same provider: credentials that they granted are refreshed at the present one. At most 10.
    package var previousIssuers: [String] = []
    /// Earlier token endpoints, likewise. At most 10.
    package var previousTokenEndpoints: [String] = []
    package var clientAuthentication: ProviderPreset.ClientAuthentication?
    package var allowedRedirectURIs: [String] = []
    package var allowedReturnURIs: [String] = []
    package var browserBinding = BrowserBinding.whenStartedHere
    package var callbackURI = CallbackURI.shared
    /// The tenant's title on pages; nil for its name. At most 100 Unicode scalars, no control characters.
    package var displayName: String?
    /// Answers to a refresh that end a session, in addition to those of the preset.
    package var sessionEndingAnswers: [RefusalPattern] = []
    /// How long before its expiry a token is refreshed when a caller asks for it; nil for the preset's.
    package var refreshLeadTime: Duration?
    /// The lifetime of a token that is not a JWT and whose answer names no lifetime; nil for the preset's.
    package var defaultLifetime: TokenLifetime?
    /// For how long after its first use the provider accepts a refresh token again, 0 to 86,400 s; nil for the preset's.
    package var reuseGrace: Duration?
    /// What becomes of a refresh token that was used; nil for `effectiveRotation` to say.
    package var rotation: TokenRotation?
    /// What becomes of an access token when a refresh has brought another one; nil for the preset's.
    package var accessTokenAfterRefresh: AccessTokenAfterRefresh?
    /// How long before its expiry a user's token is renewed without a caller's request, 60 s to a day; nil for never.
    package var proactiveRefresh: Duration?
    /// Nil for what the preset says.
    package var clientCredentials: ClientCredentials?
    /// Sent to the provider with each request, in addition to the broker's own fields.
    package var requestHeaders = RequestHeaders.none
    /// How signed tokens are verified; its members replace those of the preset. Nil for the preset's.
    package var tokenVerification: TokenVerification?
    /// Further audiences that an ID token may have. Nil permits any, where the token says that it was issued to the client.
    package var trustedAudiences: [WireText]?
    /// Whether the identifier of a client that authenticates by HTTP Basic is in the form of a request, too; nil for the
    /// preset's.
    package var repeatsClientID: Bool?
    /// How requests are repeated; its members replace those of the preset.
    package var retry = RetrySettings()
    /// Nil where the broker takes no part in logins between apps.
    package var appToApp: AppToApp?
    /// What stands for the placeholders of the preset's addresses, by name.
    package var parameters: [WireText: WireText] = [:]
    /// What requests have beside what the preset says.
    package var requests = RequestShape.Own()
    /// How long a refresh token lives that is not used; nil for what the preset says.
    package var refreshTokenLifetime: Duration?
    /// How long a refresh token lives that is not used, and before which it is used, asked for or not; nil for what the preset says.
    package var idleExpiry: Duration?
    /// Whether the provider refuses a refresh while the access token is valid; nil for what the preset says.
    package var refusesEarlyRefresh: Bool?
    /// The provider's own form of a refresh; its members replace those of the preset. Nil for the preset's.
    package var refresh: RequestTemplate?
    /// How the token of a login is exchanged for one that lives longer, likewise.
    package var exchange: RequestTemplate?
    /// How long after a login everything ends; nil for what the preset says.
    package var consentLifetime: Duration?
    /// The proxy by which this tenant's requests leave, `http://host:port` with `user:password@` where it wants that; nil for the
    /// broker's own way.
    package var outboundProxy: SecretBytes?
    /// Which of the tokens of an answer with two is used; nil for `effectiveTokenUse` to say.
    package var tokenUse: AnswerShape.TokenUse?
    /// The resource that tokens are for, where its authorization server is found by it. Nil with all other providers.
    package var protectedResource: String?
    /// What logins have found of that resource; nil before the first one.
    package private(set) var found: FoundAuthorization?
    /// What logins had found of resources that the tenant named before this one, the latest last; see `keepingFinding`.
    package var earlierFindings: [EarlierFinding] = []
    /// Whether the tenant has brought its client, and the scopes that are asked for. Otherwise they are what was found.
    package var hasOwnClient = true
    package var hasOwnScopes = true
    /// When refused refreshes count as a fault at the provider that concerns many users.
    package var wave = WaveSettings()

    /// When the parameters of authorization requests are pushed; nil for what the preset says.
    package var pushedAuthorization: PushedAuthorizationUse?
    /// Whether each login gets a key to which its tokens are bound (RFC 9449); nil for what the preset says.
    package var provesKeys: Bool?

    package init(preset: ProviderPreset, client: ClientConfiguration) {
        self.preset = preset
        self.client = client
    }

    /// The pins in force: one of them must be in the verified chain. Empty when certificates are not pinned.
    package var effectivePins: [String] {
        if certificatePinning == false { return [] }
        return pinnedCertificates ?? preset.pinnedCertificates
    }

    /// Whether callers can get client credentials, the level between a user's and the basic one.
    package var obtainsClientCredentials: Bool {
        client.isConfidential && preset.levels.contains(.client)
            && (clientCredentials.map { $0 == .on } ?? preset.grantsClientCredentials)
    }

    /// When requests to the provider are repeated.
    package var schedule: BackoffSchedule { BackoffSchedule(retry) }

    package var effectiveDefaultLifetime: TokenLifetime? { defaultLifetime ?? preset.defaultLifetime }

    /// The issuer: the tenant's, or the preset's.
    package var effectiveIssuer: String? { issuer ?? found?.issuer ?? filled(preset.issuer) }

    /// What grants are asked for beside the client's scopes, where a login names nothing else; nil for nothing.
    var askedGrant: AskedGrant? { preset.shape.replaced(by: requests).asked }

    /// Whether there is a provider to ask. There is none for keys that do not come by OAuth, unless the tenant names one.
    var hasProvider: Bool { preset.hasLogins || effectiveIssuer != nil || configuredServer != nil }

    /// The same configuration with what a login has found, and with the client that is made there.
    package func finding(_ found: FoundAuthorization?) -> TenantConfiguration {
        guard let found else { return self }
        var copy = self
        copy.found = found
        copy.requests.resources = [found.resource]
        copy.client = ClientConfiguration(
            clientID: client.clientID, clientSecret: client.clientSecret, clientUniqueKey: client.clientUniqueKey,
            scopes: hasOwnScopes ? client.scopes : found.scopes, material: client.material)
        if !hasOwnClient, let client = found.client { copy.use(client) }
        return copy
    }

    package typealias ClientAuthentication = ProviderPreset.ClientAuthentication

    /// How signed access tokens and refresh tokens are verified; nil where they are taken as opaque.
    package var effectiveTokenVerification: TokenVerification? {
        preset.tokenVerification?.replaced(by: tokenVerification) ?? tokenVerification
    }

    /// The issuer that signed tokens name; nil where it is not known.
    func tokenIssuer(at server: AuthorizationServer) -> String? {
        if let issuer = server.issuer { return issuer }
        return effectiveTokenVerification?.issuesAsBase == true ? authServiceBaseURI ?? preset.authServiceBaseURI : nil
    }

    /// Whether tokens of this tenant need the provider's keys: signed ones, or the ID tokens of its logins.
    var verifiesTokens: Bool {
        effectiveTokenVerification?.verifiesTokens == true || client.scopes.values.contains("openid")
    }

    /// The address of the provider's keys, as far as that is known without its metadata.
    var configuredKeys: String? { effectiveTokenVerification?.jwks ?? endpoints.jwks ?? filled(preset.endpoints.keys) }

    /// The address that grants challenges; nil where the provider has none, and where it is not known.
    /// - Parameter issuer: the provider's.
    func challengeEndpoint(issuer: String?) -> String? {
        guard let rules = preset.appToApp else { return nil }
        if let endpoint = endpoints.challenge { return endpoint }
        return issuer.map { WireText($0).ends(with: "/") ? $0 + rules.challengePath : "\($0)/\(rules.challengePath)" }
    }

    /// Whether a login binds a new device key to its session.
    var bindsDeviceKeys: Bool { appToApp?.isEnabled == true && preset.appToApp != nil }

    /// Whether a challenge of the provider may be needed.
    var provesDeviceKeys: Bool { bindsDeviceKeys || appToApp?.bindsKeysLater == true && preset.appToApp != nil }

    /// Nil if neither the tenant nor the preset names one: then the caller's `min_ttl` decides alone.
    package var effectiveRefreshLeadTime: Duration? { refreshLeadTime ?? preset.refreshLeadTime }

    package var effectiveAccessTokenAfterRefresh: AccessTokenAfterRefresh {
        accessTokenAfterRefresh ?? preset.accessTokenAfterRefresh
    }

    /// A tenant that says for how long a used refresh token is accepted says that it is spent, unless it says otherwise.
    package var effectiveRotation: TokenRotation {
        rotation ?? (reuseGrace != nil && preset.rotation == .never ? .sometimes : preset.rotation)
    }

    /// The provider's title on pages: the preset's, else the host of its issuer or of its login page.
    func providerTitle(at server: AuthorizationServer) -> String {
        if let title = preset.title { return title }
        return URLTarget(server.issuer ?? server.authorizationEndpoint)?.host ?? preset.name
    }

    /// Whether token requests and browsers are sent to addresses of the preset, and not of the tenant.
    var usesPresetAddresses: Bool {
        let namesLogin = endpoints.authorization != nil || ownBase(preset.endpoints.authorization) != nil
        let namesTokens = endpoints.token != nil || ownBase(preset.endpoints.token) != nil
        return preset.endpoints.authorization != nil && !(namesLogin && namesTokens)
    }

    /// The same registration without the lists of addresses, which can be long, and which a login does not need any more once it
    /// has begun.
    var withoutListedURIs: TenantConfiguration {
        var copy = self
        (copy.allowedRedirectURIs, copy.allowedReturnURIs) = ([], [])
        (copy.previousIssuers, copy.previousTokenEndpoints) = ([], [])
        copy.appToApp?.authorizationEndpoints = []
        return copy
    }

    /// The providers whose refresh tokens may be sent to this one, as far as that is known without its metadata.
    var acceptedProviders: AcceptedProviders {
        AcceptedProviders(
            issuer: effectiveIssuer.map { WireText($0) },
            tokenEndpoint: (configuredServer?.tokenEndpoint ?? endpoints.token).map { WireText($0) },
            namesTokenEndpoint: endpoints.token != nil, previousIssuers: previousIssuers.map { WireText($0) },
            previousTokenEndpoints: previousTokenEndpoints.map { WireText($0) })
    }

    /// The endpoints, if the configuration has all of them; nil where the provider's metadata is needed.
    package var configuredServer: AuthorizationServer? {
        server(
            authorization: endpoints.authorization ?? filled(preset.endpoints.authorization),
            token: endpoints.token ?? filled(preset.endpoints.token))
    }

    /// The endpoints; those that are not configured come from the provider's metadata.
    package func server(completedBy metadata: ProviderMetadata) -> AuthorizationServer? {
        var server = server(
            authorization: endpoints.authorization ?? metadata.authorizationEndpoint,
            token: endpoints.token ?? metadata.tokenEndpoint)
        server?.issuer = metadata.issuer
        server?.challengeEndpoint = challengeEndpoint(issuer: metadata.issuer)
        let ownPushing = server?.pushedAuthorization?.endpoint
        server?.pushedAuthorization = pushedAuthorization(at: ownPushing, metadata: metadata)
        server?.takesProofs = metadata.proofAlgorithms?.contains(DPoPKey.algorithm) != false
        server?.jwksURI = configuredKeys ?? metadata.jwksURI
        server?.announcesIssuerInResponses = metadata.announcesIssuerInResponses
        // RFC 8414 §2: a list without the method says that the server does not know it.
        if server?.shape.pkce == .allowed, metadata.codeChallengeMethods?.contains(PKCE.method) == false {
            server?.usesPKCE = false
        }
        if server?.deviceAuthorizationEndpoint == nil {
            server?.deviceAuthorizationEndpoint = metadata.deviceAuthorizationEndpoint
        }
        if clientAuthentication == nil, let supported = metadata.clientAuthenticationMethods {
            let method = authentication(among: supported)
            server?.clientAuthentication = method
            if client.hasSecret, !preset.prefersOwnAuthentication {
                server?.alternativeAuthentication = supported.first { $0 != method && $0.showsSecret }
            }
        }
        if let method = server?.clientAuthentication {
            // At an endpoint that the tenant names, the client authenticates as at the token endpoint.
            server?.revocationAuthentication =
                endpoints.revocation == nil
                ? metadata.revocationAuthentication(besideTokens: method, of: client)
                : method
        }
        if let known = server, let alternative = known.alternativeAuthentication {
            server?.alternativeRevocationAuthentication = [alternative, known.clientAuthentication].first { method in
                method != known.revocationAuthentication
                    && (endpoints.revocation != nil
                        || metadata.revocationAuthenticationMethods?.contains(method) != false)
            }
        }
        if server?.revocationEndpoint == nil { server?.revocationEndpoint = metadata.revocationEndpoint }
        if client.material?.certificate != nil { useMutualTLS(of: metadata, at: &server) }
        return server
    }

    /// How the client authenticates at a provider that announces these methods, where the tenant names none: by the first one
    /// that fits what the client has.
    private func authentication(
        among supported: [ProviderPreset.ClientAuthentication]
    ) -> ProviderPreset.ClientAuthentication {
        let own = preset.clientAuthentication
        if preset.prefersOwnAuthentication, supported.contains(own), client.material == nil || client.fits(own) {
            return own
        }
        return client.method(among: supported) ?? client.method(preferring: own)
    }

    private func server(authorization: String?, token: String?) -> AuthorizationServer? {
        guard let authorization, let token else { return nil }
        var server = AuthorizationServer(
            preset: preset, authorizationEndpoint: authorization, tokenEndpoint: token,
            revocationEndpoint: endpoints.revocation ?? besideTokens(preset.endpoints.revocation),
            deviceAuthorizationEndpoint: endpoints.deviceAuthorization
                ?? besideTokens(preset.endpoints.deviceAuthorization),
            jwksURI: configuredKeys, issuer: effectiveIssuer, announcesIssuerInResponses: false,
            clientAuthentication: clientAuthentication ?? client.method(preferring: preset.clientAuthentication),
            pinnedCertificates: effectivePins,
            sessionEndingAnswers: preset.sessionEndingAnswers + sessionEndingAnswers,
            defaultLifetime: effectiveDefaultLifetime)
        server.accountCreationEndpoint = endpoints.accountCreation ?? besideTokens(preset.endpoints.accountCreation)
        server.activationEndpoint = endpoints.activation ?? besideTokens(preset.endpoints.activation)
        server.logoutEndpoint = endpoints.logout ?? besideTokens(preset.endpoints.logout)
        server.challengeEndpoint = challengeEndpoint(issuer: effectiveIssuer)
        server.pushedAuthorization = pushedAuthorization(
            at: endpoints.pushedAuthorization ?? besideTokens(preset.endpoints.pushedAuthorization), metadata: nil)
        complete(&server)
        return server
    }

    /// Gives a server what only the configuration says of it.
    func complete(_ server: inout AuthorizationServer) {
        server.refreshEndpoint = endpoints.refresh ?? besideTokens(preset.endpoints.refresh)
        server.own = ownRequests(at: server)
        server.requestHeaders = requestHeaders
        server.repeatsClientID = repeatsClientID ?? preset.repeatsClientID
        server.schedule = schedule
        server.shape = preset.shape.replaced(by: requests)
        server.usesPKCE = server.shape.pkce != .forbidden
        server.asked = server.shape.asked
        server.outboundProxy = outboundProxy
        server.tokenUse = effectiveTokenUse
        server.namedBy = protectedResource
    }

    /// An address of the preset to which tokens, codes or the client's secret are sent; nil where the tenant names a token
    /// endpoint of its own, whose tokens and whose secret are not the preset's provider's to see.
    private func besideTokens(_ template: AddressTemplate?) -> String? {
        if let own = endpoints.token, own != filled(preset.endpoints.token) { return nil }
        return filled(template)
    }

    /// Identifies the provider within this process, even before its metadata is known: tenants whose requests go to one place
    /// have the same name.
    var providerName: String {
        configuredServer?.origin ?? effectiveIssuer ?? preset.name
    }

    /// The tenant's own base URI that the address is below; nil for the preset's.
    private func ownBase(_ template: AddressTemplate?) -> String? {
        switch template?.base {
        case .loginService?: loginServiceBaseURI
        case .authService?: authServiceBaseURI
        case nil: nil
        }
    }

    /// An address of the preset with the tenant's values; nil where the preset has none, and where a value is missing.
    func filled(_ template: AddressTemplate?) -> String? {
        template?.filled { name in
            switch AddressTemplate.Base(name) {
            case .loginService?: loginServiceBaseURI ?? preset.loginServiceBaseURI
            case .authService?: authServiceBaseURI ?? preset.authServiceBaseURI
            case nil where name == AddressTemplate.clientID: FormEncoding.percentEncode(client.clientID.text)
            case nil: parameters[name]?.text ?? preset.parameters[name]?.usual
            }
        }
    }
}

/// A provider's metadata (RFC 8414, OpenID Connect Discovery).
package struct ProviderMetadata: Sendable, Equatable {
    package var issuer: String
    package var authorizationEndpoint: String
    package var tokenEndpoint: String
    package var revocationEndpoint: String?
    package var deviceAuthorizationEndpoint: String?
    /// The named methods that this broker supports; nil where the document names none.
    package var clientAuthenticationMethods: [ProviderPreset.ClientAuthentication]?
    /// The same for the revocation endpoint.
    package var revocationAuthenticationMethods: [ProviderPreset.ClientAuthentication]?
    /// RFC 9207 §3.
    package var announcesIssuerInResponses = false
    /// The methods of RFC 7636 that the document names; nil where it names none.
    package var codeChallengeMethods: [WireText]?
    /// The address of the provider's keys.
    package var jwksURI: String?
    /// The grants that the document names; nil where it names none. Many documents name none although the provider has more
    /// grants than the two that RFC 8414 then assumes.
    package var grantTypes: [WireText]?
    /// Where authorization requests are pushed (RFC 9126 §5).
    package var pushedAuthorizationEndpoint: String?
    /// Whether all of them must be.
    package var requiresPushedAuthorization = false
    /// The algorithms of proofs of keys (RFC 9449 §5.1); nil where the document names none.
    package var proofAlgorithms: [WireText]?
    /// Where clients register themselves (RFC 7591); nil where they cannot.
    package var registrationEndpoint: String?
    /// Whether the address of a document about a client may be its identifier.
    package var takesClientMetadataDocuments = false
    /// The address at which the document was found.
    package var address: String?
    /// Whether a revocation endpoint that the document lacks was looked for in another document of the issuer.
    package var hasSoughtRevocation = false
    /// The endpoints for clients that show a certificate, as far as they have other addresses (RFC 8705 §5).
    package var mutualTLS = MutualTLSEndpoints()

    /// Metadata with the required members only.
    package init(issuer: String, authorizationEndpoint: String, tokenEndpoint: String) {
        self.issuer = issuer
        self.authorizationEndpoint = authorizationEndpoint
        self.tokenEndpoint = tokenEndpoint
    }

    /// How a client authenticates at the revocation endpoint (RFC 8414 §2: where no method is named, by HTTP Basic).
    /// - Parameters:
    ///   - method: its method at the token endpoint, which is used wherever the provider supports it, and where the client has
    ///     no secret.
    ///   - client: what it has is shown where a method for it is named.
    func revocationAuthentication(
        besideTokens method: ProviderPreset.ClientAuthentication, of client: ClientConfiguration
    ) -> ProviderPreset.ClientAuthentication {
        let hasOther = client.isConfidential && !client.hasSecret
        guard let methods = revocationAuthenticationMethods else { return hasOther ? method : .clientSecretBasic }
        if methods.contains(method.announced) { return method }
        if let fitting = client.method(among: methods) { return fitting }
        // A method that takes a key or a certificate is of no use to a client with a secret.
        return hasOther ? method : methods.first { $0 == .none || $0.showsSecret } ?? method
    }
}
