import ExternalText
package import OAuth

/// Whether a token may be sent to the tenant's provider: only if that provider has granted it.
extension ProviderServers {
    /// The providers whose refresh tokens may be sent to the tenant's provider, as far as that is known without a request.
    package func acceptedProviders(of tenant: Tenant) -> AcceptedProviders {
        var accepted = tenant.terms.providers
        if accepted.tokenEndpoint == nil {
            accepted.tokenEndpoint = tokenEndpoint(inMetadataFor: tenant.configuration)
        }
        return accepted
    }

    /// The names of the members of the tenant's configuration that were different when these credentials were granted.
    package func differences(of held: HeldCredentials, from tenant: Tenant) -> [String] {
        var names = held.obtainedWith.differences(from: tenant.terms.client).map(\.rawValue)
        if let difference = acceptedProviders(of: tenant).difference(from: held.grantedBy) {
            names.append(difference.rawValue)
        }
        return names
    }

    /// The tenant's provider, if it has granted these credentials, with the key that proves their refreshes; nil where another
    /// provider has.
    func server(
        for tenant: Tenant, holding held: HeldCredentials
    ) async throws(BrokerError) -> AuthorizationServer? {
        var accepted = acceptedProviders(of: tenant)
        if accepted.difference(from: held.grantedBy) != nil { return nil }
        var server = try await server(for: tenant.ofClient(of: held))
        server.asked = held.asked
        server.proofKey = held.proofKey?.ofRefreshes
        accepted.tokenEndpoint = WireText(server.tokenEndpoint)
        return accepted.difference(from: held.grantedBy) == nil ? server : nil
    }
}
