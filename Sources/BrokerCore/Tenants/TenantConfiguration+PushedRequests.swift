internal import ExternalText
internal import JSON
internal import OAuth

/// Pushed authorization requests and keys of tokens: what tenant, profile and metadata say together.
extension TenantConfiguration {
    /// Whether each login gets a key to which its tokens are bound (RFC 9449).
    var bindsTokens: Bool { provesKeys ?? preset.provesKeys }

    mutating func readPushingAndKeys(_ reader: inout ObjectReader, isStored: Bool) {
        pushedAuthorization = reader.choice("pushed_authorization_requests", PushedAuthorizationUse.self)
        if requiresPushedAuthorization, let server = configuredServer, server.pushedAuthorization == nil, !isStored {
            reader.note("pushed_authorization_requests", "needs endpoints.pushed_authorization_request")
        }
        provesKeys = reader.bool("dpop")
        if bindsTokens, !preset.hasLogins || preset.accounts != nil {
            reader.note("dpop", "is not used with this provider")
        }
    }

    /// Earlier builds refuse a record that has these members, so a default is not written.
    func encodePushingAndKeys(to json: inout JSONWriter) {
        json.memberIfPresent("pushed_authorization_requests", pushedAuthorization?.rawValue)
        if let provesKeys { json.member("dpop", provesKeys) }
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
