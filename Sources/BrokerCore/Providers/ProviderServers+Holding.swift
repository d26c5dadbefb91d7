internal import ExternalText
package import OAuth

/// Whether a provider may be shown what another one, or the same one, has granted.
extension ProviderServers {
    /// Whose refresh tokens the tenant's provider is sent, as far as that is known without asking it.
    package func acceptedProviders(of tenant: Tenant) -> AcceptedProviders {
        var accepted = tenant.terms.providers
        if accepted.tokenEndpoint == nil {
            accepted.tokenEndpoint = tokenEndpoint(inMetadataFor: tenant.configuration)
        }
        return accepted
    }

    /// The names of what is otherwise in the tenant's configuration than it was when these credentials were granted.
    package func differences(of held: HeldCredentials, from tenant: Tenant) -> [String] {
        var names = held.obtainedWith.differences(from: tenant.terms.client).map(\.rawValue)
        if let difference = acceptedProviders(of: tenant).difference(from: held.grantedBy) {
            names.append(difference.rawValue)
        }
        return names
    }

    /// The tenant's provider where what is held may be shown to it; nil where another one granted it.
    func server(
        for tenant: Tenant, holding held: HeldCredentials
    ) async throws(BrokerError) -> AuthorizationServer? {
        var accepted = acceptedProviders(of: tenant)
        if accepted.difference(from: held.grantedBy) != nil { return nil }
        let server = try await server(for: tenant)
        accepted.tokenEndpoint = WireText(server.tokenEndpoint)
        return accepted.difference(from: held.grantedBy) == nil ? server : nil
    }
}
