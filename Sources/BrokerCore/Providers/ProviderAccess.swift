package import OAuth

/// How requests reach the providers of tenants.
package struct ProviderAccess: Sendable {
    package let servers: ProviderServers
    let endpoint: TokenEndpoint
    let trials: ClientTrials
    /// The longest that one call takes, which the transport must see to.
    let callLimit: Duration

    package enum Revocation: String, Sendable {
        case revoked
        case failed
        case unsupported
    }

    /// Tells the provider that a token is no longer wanted. Only the provider that granted the token is sent it.
    package func revoke(_ held: HeldCredentials, of tenant: Tenant) async -> Revocation {
        let server: AuthorizationServer?
        do throws(BrokerError) {
            server = try await servers.server(for: tenant, holding: held)
        } catch {
            return .failed
        }
        guard let server, server.revocationEndpoint != nil else { return .unsupported }
        let isRevoked = await endpoint.revoke(held, for: tenant.configuration.client, at: server)
        return isRevoked ? .revoked : .failed
    }
}
