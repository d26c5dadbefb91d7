package import OAuth

/// The parts that make requests to the providers of tenants.
package struct ProviderAccess: Sendable {
    package let servers: ProviderServers
    let endpoint: TokenEndpoint
    let trials: ClientTrials
    let accounts: AccountEndpoint
    /// The longest time of one call, unless the provider's preset has a longer one for token requests.
    let callLimit: Duration

    /// The longest time of one token request of the tenant.
    func callLimit(of tenant: Tenant) -> Duration {
        tenant.configuration.preset.longestTokenRequest(atLeast: callLimit)
    }

    package enum Revocation: String, Sendable {
        case revoked
        case failed
        case unsupported
    }

    /// Revokes credentials at the provider that has granted them. No other provider is sent the token.
    package func revoke(_ held: HeldCredentials, of tenant: Tenant) async -> Revocation {
        let server: AuthorizationServer?
        do throws(BrokerError) {
            server = try await servers.server(for: tenant, holding: held)
        } catch {
            return .failed
        }
        guard let server, server.canRevoke else { return .unsupported }
        let isRevoked = await endpoint.revoke(held, for: tenant.configuration.client, at: server)
        return isRevoked ? .revoked : .failed
    }
}
