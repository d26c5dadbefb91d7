package import Cryptography

/// A provider as one tenant uses it: its endpoints, and how requests to it are formed.
package struct AuthorizationServer: Sendable, Equatable {
    package var preset: ProviderPreset
    package var authorizationEndpoint: String
    package var tokenEndpoint: String
    /// Where refreshes go; nil for the token endpoint.
    package var refreshEndpoint: String?
    package var revocationEndpoint: String?
    /// Nil when the provider has no device login (RFC 8628 §4).
    package var deviceAuthorizationEndpoint: String?
    /// The address of the keys that the provider signs tokens with; nil when it is not known.
    package var jwksURI: String?
    /// Nil when accounts cannot be created without a login page.
    package var accountCreationEndpoint: String?
    /// Nil when accounts cannot be activated with the signature of a platform.
    package var activationEndpoint: String?
    /// Ends the session of an access token; nil when the provider has no such endpoint.
    package var logoutEndpoint: String?
    /// Grants the challenges of device keys; nil when the provider has no such endpoint, or it is not known.
    package var challengeEndpoint: String?
    /// The issuer that `iss` must equal (RFC 9207); nil when the issuer is not known.
    package var issuer: String?
    /// Whether the provider announces that its authorization responses contain `iss`. A response without `iss` is then
    /// refused.
    package var announcesIssuerInResponses: Bool
    package var clientAuthentication: ProviderPreset.ClientAuthentication
    /// What the client tries once where the provider refuses it by `clientAuthentication`; nil for nothing.
    package var alternativeAuthentication: ProviderPreset.ClientAuthentication?
    /// The client authentication at the revocation endpoint.
    package var revocationAuthentication: ProviderPreset.ClientAuthentication
    /// The same as `alternativeAuthentication` for the revocation endpoint.
    package var alternativeRevocationAuthentication: ProviderPreset.ClientAuthentication?
    /// Whether the identifier of a client that authenticates by HTTP Basic is in the form, too: some servers look for it
    /// there, such as those of the MCP SDK.
    package var repeatsClientID: Bool
    /// Empty when the tenant does not pin certificates.
    package var pinnedCertificates: [String]
    /// The address of the proxy by which requests leave, with its password; nil for the broker's own way.
    package var outboundProxy: SecretBytes?
    /// The responses to a refresh that end the session: those of the preset and those of the tenant.
    package var sessionEndingAnswers: [RefusalPattern]
    /// The lifetime of a token whose response has no lifetime and which is not a JWT; nil where it is not known.
    package var defaultLifetime: TokenLifetime?
    /// Sent with each request, in addition to the broker's own fields.
    package var requestHeaders = RequestHeaders.none
    /// When requests are repeated.
    package var schedule = BackoffSchedule.standard
    /// What requests have beside what the RFCs say: the preset's, with what the tenant says.
    package var shape: RequestShape
    /// Whether logins have PKCE. False where the shape forbids it, and where it is allowed and the metadata's list of methods lacks
    /// S256.
    package var usesPKCE: Bool
    /// What grants are asked for beside the client's scopes: what the shape says, what a login says, or what a set was granted with
    /// that is renewed.
    package var asked: AskedGrant?
    /// Which of the tokens of an answer with two is used.
    package var tokenUse = AnswerShape.TokenUse.user
    /// The requests that have forms of the provider's own; nil for none.
    package var own: OwnRequests?

    /// The address of the resource that has named the server; nil for a server that the operator has named.
    package var namedBy: String?

    /// Where the parameters of authorization requests go before the browser does; nil where they go with the browser.
    package var pushedAuthorization: PushedAuthorization?

    /// Whether proofs of keys may be sent (RFC 9449): false where the provider announces other algorithms than that of the broker.
    package var takesProofs = true
    /// The key that proves the requests, for those of one set of credentials; nil where they have none.
    package var proofKey: DPoPKey?
    /// Where the request goes for which a client's JWT is signed; nil for the token endpoint.
    package var requestedEndpoint: String?

    /// Whether the provider has an endpoint that ends sessions.
    package var canRevoke: Bool { logoutEndpoint != nil || revocationEndpoint != nil }

    /// - Parameters:
    ///   - sessionEndingAnswers: nil means the preset's.
    ///   - defaultLifetime: nil means the preset's.
    ///   - revocationAuthentication: nil means the same as at the token endpoint.
    package init(
        preset: ProviderPreset, authorizationEndpoint: String, tokenEndpoint: String, revocationEndpoint: String?,
        deviceAuthorizationEndpoint: String? = nil, jwksURI: String? = nil, issuer: String?,
        announcesIssuerInResponses: Bool,
        clientAuthentication: ProviderPreset.ClientAuthentication, pinnedCertificates: [String],
        sessionEndingAnswers: [RefusalPattern]? = nil, defaultLifetime: TokenLifetime? = nil,
        revocationAuthentication: ProviderPreset.ClientAuthentication? = nil
    ) {
        self.preset = preset
        self.authorizationEndpoint = authorizationEndpoint
        self.tokenEndpoint = tokenEndpoint
        self.revocationEndpoint = revocationEndpoint
        self.deviceAuthorizationEndpoint = deviceAuthorizationEndpoint
        self.jwksURI = jwksURI
        self.issuer = issuer
        self.announcesIssuerInResponses = announcesIssuerInResponses
        self.clientAuthentication = clientAuthentication
        repeatsClientID = preset.repeatsClientID
        self.pinnedCertificates = pinnedCertificates
        self.sessionEndingAnswers = sessionEndingAnswers ?? preset.sessionEndingAnswers
        self.defaultLifetime = defaultLifetime ?? preset.defaultLifetime
        shape = preset.shape
        usesPKCE = preset.shape.pkce != .forbidden
        asked = preset.shape.asked
        self.revocationAuthentication = revocationAuthentication ?? clientAuthentication
    }
}
