/// A provider as one tenant uses it: where its endpoints are and how it wants to be spoken to.
package struct AuthorizationServer: Sendable, Equatable {
    package var preset: ProviderPreset
    package var authorizationEndpoint: String
    package var tokenEndpoint: String
    package var revocationEndpoint: String?
    /// Nil where the provider has no device login (RFC 8628 §4).
    package var deviceAuthorizationEndpoint: String?
    /// The issuer to compare `iss` with (RFC 9207); nil where none is known.
    package var issuer: String?
    /// Whether the provider announces `iss` in its authorization responses, so that a missing one is refused.
    package var announcesIssuerInResponses: Bool
    package var clientAuthentication: ProviderPreset.ClientAuthentication
    /// The same at the revocation endpoint.
    package var revocationAuthentication: ProviderPreset.ClientAuthentication
    /// Empty when certificates are not pinned.
    package var pinnedCertificates: [String]
    /// The answers to a refresh that end the session: the preset's and the tenant's.
    package var sessionEndingAnswers: [RefusalPattern]
    /// The lifetime of a token whose answer names none and which is no JWT.
    package var defaultLifetime: TokenLifetime

    /// - Parameters:
    ///   - sessionEndingAnswers: nil for the preset's.
    ///   - defaultLifetime: nil for the preset's.
    ///   - revocationAuthentication: nil for that of the token endpoint.
    package init(
        preset: ProviderPreset, authorizationEndpoint: String, tokenEndpoint: String, revocationEndpoint: String?,
        deviceAuthorizationEndpoint: String? = nil, issuer: String?, announcesIssuerInResponses: Bool,
        clientAuthentication: ProviderPreset.ClientAuthentication, pinnedCertificates: [String],
        sessionEndingAnswers: [RefusalPattern]? = nil, defaultLifetime: TokenLifetime? = nil,
        revocationAuthentication: ProviderPreset.ClientAuthentication? = nil
    ) {
        self.preset = preset
        self.authorizationEndpoint = authorizationEndpoint
        self.tokenEndpoint = tokenEndpoint
        self.revocationEndpoint = revocationEndpoint
        self.deviceAuthorizationEndpoint = deviceAuthorizationEndpoint
        self.issuer = issuer
        self.announcesIssuerInResponses = announcesIssuerInResponses
        self.clientAuthentication = clientAuthentication
        self.pinnedCertificates = pinnedCertificates
        self.sessionEndingAnswers = sessionEndingAnswers ?? preset.sessionEndingAnswers
        self.defaultLifetime = defaultLifetime ?? preset.defaultLifetime
        self.revocationAuthentication = revocationAuthentication ?? clientAuthentication
    }
}
