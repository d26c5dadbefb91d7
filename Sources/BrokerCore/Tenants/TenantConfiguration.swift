package import ExternalText
internal import HTTPSClient
package import OAuth

/// A tenant's registration at its provider: what `PUT /tenants/{tenant}` says, checked.
package struct TenantConfiguration: Sendable, Equatable {
    package enum BrowserBinding: String, Sendable, CaseIterable {
        case whenStartedHere = "when_started_here"
        case required
        /// As `whenStartedHere`, and the code is redeemed only after a button was pressed on the broker's own page.
        case confirm
        case off
    }

    /// Where the provider sends browsers back to (RFC 9700 §4.4.2.2).
    package enum CallbackURI: String, Sendable, CaseIterable {
        /// `/login/callback`, which all such tenants have in common.
        case shared
        /// `/login/callback/{tenant}`.
        case perTenant = "per_tenant"
    }

    /// Whether the client secret is used to ask for credentials of the client's own (RFC 6749 §4.4).
    package enum ClientCredentials: String, Sendable, CaseIterable {
        case on
        /// It is for refreshes and code exchanges only.
        case off
    }

    package struct Endpoints: Sendable, Equatable {
        package var authorization: String?
        package var token: String?
        package var deviceAuthorization: String?
        package var revocation: String?
        package var jwks: String?

        package init() {}
    }

    package var preset: ProviderPreset
    package var client: ClientConfiguration
    /// Without a slash at the end; nil for the preset's.
    package var loginServiceBaseURI: String?
    package var authServiceBaseURI: String?
    /// Nil for the preset's choice: on where it has pins or the tenant names some.
    package var certificatePinning: Bool?
    package var pinnedCertificates: [String]?
    package var issuer: String?
    package var endpoints = Endpoints()
    /// Earlier issuers of the same provider: what they granted is refreshed at the present one. At most 10.
    package var previousIssuers: [String] = []
    /// Likewise earlier token endpoints, at most 10.
    package var previousTokenEndpoints: [String] = []
    package var clientAuthentication: ProviderPreset.ClientAuthentication?
    package var allowedRedirectURIs: [String] = []
    package var allowedReturnURIs: [String] = []
    package var browserBinding = BrowserBinding.whenStartedHere
    package var callbackURI = CallbackURI.shared
    /// What pages call the tenant; nil for its name. At most 100 Unicode scalars, no control characters.
    package var displayName: String?
    /// Answers to a refresh that end a session at this provider, besides those of the preset.
    package var sessionEndingAnswers: [RefusalPattern] = []
    /// How long before a token's expiry it is refreshed already; nil for the preset's.
    package var refreshLeadTime: Duration?
    /// The lifetime of a token whose answer names none and which is no JWT; nil for the preset's.
    package var defaultLifetime: TokenLifetime?
    /// For how long after its first use the provider takes a refresh token again, 0 to 86,400 s; nil for the preset's.
    package var reuseGrace: Duration?
    /// How long before its expiry a user's token is renewed although nobody asks for it, 60 s to a day; nil for not at
    /// all.
    package var proactiveRefresh: Duration?
    package var clientCredentials = ClientCredentials.on

    package init(preset: ProviderPreset, client: ClientConfiguration) {
        self.preset = preset
        self.client = client
    }

    /// The pins in force: one of them must be in the verified chain. Empty when certificates are not pinned.
    package var effectivePins: [String] {
        if certificatePinning == false { return [] }
        return pinnedCertificates ?? preset.pinnedCertificates
    }

    /// Whether there is a level between a user's and the basic one.
    package var obtainsClientCredentials: Bool { client.clientSecret != nil && clientCredentials == .on }

    package var effectiveDefaultLifetime: TokenLifetime { defaultLifetime ?? preset.defaultLifetime }

    package var effectiveRefreshLeadTime: Duration { refreshLeadTime ?? preset.refreshLeadTime }

    /// What pages call the provider: the preset's title, else the host of its issuer or of its login page.
    func providerTitle(at server: AuthorizationServer) -> String {
        if let title = preset.title { return title }
        return URLTarget(server.issuer ?? server.authorizationEndpoint)?.host ?? preset.name
    }

    /// Whether tokens are asked for, and browsers sent to log in, at addresses of the preset and not of the tenant.
    var usesPresetAddresses: Bool {
        let namesLogin = endpoints.authorization != nil || loginServiceBaseURI != nil
        let namesTokens = endpoints.token != nil || authServiceBaseURI != nil
        let presetKnowsThem = preset.loginServiceBaseURI != nil || preset.authorizationEndpoint != nil
        return presetKnowsThem && !(namesLogin && namesTokens)
    }

    /// The same registration without the lists of addresses: a login that has begun needs those no more, and they can be
    /// long.
    var withoutListedURIs: TenantConfiguration {
        var copy = self
        (copy.allowedRedirectURIs, copy.allowedReturnURIs) = ([], [])
        (copy.previousIssuers, copy.previousTokenEndpoints) = ([], [])
        return copy
    }

    /// Whose refresh tokens the provider is sent, as far as that is known without its metadata.
    var acceptedProviders: AcceptedProviders {
        AcceptedProviders(
            issuer: issuer.map { WireText($0) },
            tokenEndpoint: (configuredServer?.tokenEndpoint ?? endpoints.token).map { WireText($0) },
            previousIssuers: previousIssuers.map { WireText($0) },
            previousTokenEndpoints: previousTokenEndpoints.map { WireText($0) })
    }

    /// What the endpoints are without asking the provider; nil where its metadata is needed.
    package var configuredServer: AuthorizationServer? {
        server(
            authorization: endpoints.authorization
                ?? joined(loginServiceBaseURI ?? preset.loginServiceBaseURI, "authorize")
                ?? preset.authorizationEndpoint,
            token: endpoints.token ?? joined(authServiceBaseURI ?? preset.authServiceBaseURI, "oauth2/token")
                ?? preset.tokenEndpoint)
    }

    /// The endpoints, with those that are not configured taken from the provider's metadata.
    package func server(completedBy metadata: ProviderMetadata) -> AuthorizationServer? {
        var server = server(
            authorization: endpoints.authorization ?? metadata.authorizationEndpoint,
            token: endpoints.token ?? metadata.tokenEndpoint)
        server?.issuer = metadata.issuer
        server?.announcesIssuerInResponses = metadata.announcesIssuerInResponses
        if server?.deviceAuthorizationEndpoint == nil {
            server?.deviceAuthorizationEndpoint = metadata.deviceAuthorizationEndpoint
        }
        if clientAuthentication == nil, let supported = metadata.clientAuthenticationMethods {
            server?.clientAuthentication =
                supported.contains(preset.clientAuthentication)
                ? preset.clientAuthentication : supported.first ?? preset.clientAuthentication
        }
        if let method = server?.clientAuthentication {
            // An endpoint that the tenant names is spoken to as the token endpoint is.
            server?.revocationAuthentication =
                endpoints.revocation == nil ? metadata.revocationAuthentication(besideTokens: method) : method
        }
        if server?.revocationEndpoint == nil { server?.revocationEndpoint = metadata.revocationEndpoint }
        return server
    }

    private func server(authorization: String?, token: String?) -> AuthorizationServer? {
        guard let authorization, let token else { return nil }
        return AuthorizationServer(
            preset: preset, authorizationEndpoint: authorization, tokenEndpoint: token,
            revocationEndpoint: endpoints.revocation,
            deviceAuthorizationEndpoint: endpoints.deviceAuthorization
                ?? preset.deviceAuthorizationPath.flatMap { path in
                    joined(authServiceBaseURI ?? preset.authServiceBaseURI, path)
                },
            issuer: issuer, announcesIssuerInResponses: false,
            clientAuthentication: clientAuthentication ?? preset.clientAuthentication,
            pinnedCertificates: effectivePins,
            sessionEndingAnswers: preset.sessionEndingAnswers + sessionEndingAnswers,
            defaultLifetime: effectiveDefaultLifetime)
    }

    /// A name for the provider within this process, before its metadata is known: what is asked at one place bears one.
    var providerName: String {
        configuredServer?.origin ?? issuer ?? preset.name
    }

    /// One slash between the two, whatever the base ends in.
    private func joined(_ base: String?, _ path: String) -> String? {
        base.map { WireText($0).ends(with: "/") ? $0 + path : "\($0)/\(path)" }
    }
}

/// What a provider says about itself (RFC 8414, OpenID Connect Discovery).
package struct ProviderMetadata: Sendable, Equatable {
    package var issuer: String
    package var authorizationEndpoint: String
    package var tokenEndpoint: String
    package var revocationEndpoint: String?
    package var deviceAuthorizationEndpoint: String?
    /// The methods named that this broker speaks; nil where the document names none.
    package var clientAuthenticationMethods: [ProviderPreset.ClientAuthentication]?
    /// The same for the revocation endpoint.
    package var revocationAuthenticationMethods: [ProviderPreset.ClientAuthentication]?
    /// RFC 9207 §3.
    package var announcesIssuerInResponses: Bool
    /// Where the provider's keys are.
    package var jwksURI: String?
    /// The grants named; nil where the document names none, as many do whose provider has more than RFC 8414's two.
    package var grantTypes: [WireText]?
    /// Where the document was found.
    package var address: String?

    package init(
        issuer: String, authorizationEndpoint: String, tokenEndpoint: String, revocationEndpoint: String?,
        deviceAuthorizationEndpoint: String?,
        clientAuthenticationMethods: [ProviderPreset.ClientAuthentication]?,
        revocationAuthenticationMethods: [ProviderPreset.ClientAuthentication]? = nil,
        announcesIssuerInResponses: Bool, jwksURI: String? = nil, grantTypes: [WireText]? = nil
    ) {
        self.issuer = issuer
        self.authorizationEndpoint = authorizationEndpoint
        self.tokenEndpoint = tokenEndpoint
        self.revocationEndpoint = revocationEndpoint
        self.deviceAuthorizationEndpoint = deviceAuthorizationEndpoint
        self.clientAuthenticationMethods = clientAuthenticationMethods
        self.revocationAuthenticationMethods = revocationAuthenticationMethods
        self.announcesIssuerInResponses = announcesIssuerInResponses
        self.jwksURI = jwksURI
        self.grantTypes = grantTypes
    }

    /// How a client shows who it is at the revocation endpoint (RFC 8414 §2: where no method is named, by HTTP Basic).
    /// - Parameter method: how it does at the token endpoint, which counts wherever it may.
    func revocationAuthentication(
        besideTokens method: ProviderPreset.ClientAuthentication
    ) -> ProviderPreset.ClientAuthentication {
        guard let methods = revocationAuthenticationMethods else { return .clientSecretBasic }
        return methods.contains(method) ? method : methods.first ?? method
    }
}
