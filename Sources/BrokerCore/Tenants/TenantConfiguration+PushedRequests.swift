import ExternalText
import OAuth

/// Pushed authorization requests and keys of tokens: what tenant, profile and metadata say together.
extension TenantConfiguration {
    /// Whether each login gets a key to which its tokens are bound (RFC 9449).
    var bindsTokens: Bool { provesKeys ?? preset.provesKeys }

    /// Notes that pushed requests are required and have no address.
    func checkPushedAuthorization(_ reader: inout ObjectReader) {
        if requiresPushedAuthorization, let server = configuredServer, server.pushedAuthorization == nil {
            reader.note("pushed_authorization_requests", "needs endpoints.pushed_authorization_request")
        }
    }

    private var pushedAuthorizationUse: PushedAuthorizationUse {
        pushedAuthorization ?? preset.pushedAuthorization ?? .whenAnnounced
    }

    /// Whether no login begins without a pushed request, whatever the metadata say.
    var requiresPushedAuthorization: Bool { pushedAuthorizationUse == .required }

    /// Where authorization requests are pushed; nil where they are not.
    /// - Parameters:
    ///   - own: the address that the tenant or the preset names.
    ///   - metadata: of the provider; nil where they are not needed.
    func pushedAuthorization(at own: String?, metadata: ProviderMetadata?) -> PushedAuthorization? {
        guard let endpoint = own ?? metadata?.pushedAuthorizationEndpoint else { return nil }
        return PushedAuthorization(
            endpoint: endpoint,
            isRequired: requiresPushedAuthorization || metadata?.requiresPushedAuthorization == true)
    }
}
