/// A provider as one tenant uses it: where its endpoints are and how it wants to be spoken to.
package struct AuthorizationServer: Sendable, Equatable {
    package var preset: ProviderPreset
    package var authorizationEndpoint: String
    package var tokenEndpoint: String
    package var revocationEndpoint: String?
    /// The issuer to compare `iss` with (RFC 9207); nil where none is known.
    package var issuer: String?
    /// Whether the provider announces `iss` in its authorization responses, so that a missing one is refused.
    package var announcesIssuerInResponses: Bool
    package var clientAuthentication: ProviderPreset.ClientAuthentication
    /// Empty when certificates are not pinned.
    package var pinnedCertificates: [String]

    package init(
        preset: ProviderPreset, authorizationEndpoint: String, tokenEndpoint: String, revocationEndpoint: String?,
        issuer: String?, announcesIssuerInResponses: Bool,
        clientAuthentication: ProviderPreset.ClientAuthentication, pinnedCertificates: [String]
    ) {
        self.preset = preset
        self.authorizationEndpoint = authorizationEndpoint
        self.tokenEndpoint = tokenEndpoint
        self.revocationEndpoint = revocationEndpoint
        self.issuer = issuer
        self.announcesIssuerInResponses = announcesIssuerInResponses
        self.clientAuthentication = clientAuthentication
        self.pinnedCertificates = pinnedCertificates
    }
}
