import Cryptography
import ExternalText
package import OAuth

/// The parts that make requests to the providers of tenants.
package struct ProviderAccess: Sendable {
    package let servers: ProviderServers
    let moves: MovedEndpoints
    let endpoint: TokenEndpoint
    let trials: ClientTrials
    package let verifier: GrantVerifier
    let accounts: AccountEndpoint
    /// The longest time of one call, unless the provider's preset has a longer one for token requests.
    let callLimit: Duration

    /// The longest time of one token request of the tenant.
    func callLimit(of tenant: Tenant) -> Duration {
        tenant.configuration.preset.longestTokenRequest(atLeast: callLimit)
    }

    /// How many clients' circuits are open at each of `ProviderPreset.inUse`, in that order.
    package var circuitCounts: [(provider: String, count: ProviderHealths.Count)] { endpoint.health.counts }

    package enum Revocation: String, Sendable {
        case revoked
        case failed
        case unsupported
    }

    /// Verifies credentials that a caller brings, where the tenant has its tokens verified.
    /// - Throws: `illegal_argument` where a token is not believed; `network_error` where the provider's keys do not answer.
    package func adopt(_ given: HeldCredentials, of tenant: Tenant) async throws(BrokerError) -> HeldCredentials {
        guard verifier.verifies(given, for: tenant.configuration) else { return given }
        let server = try await servers.server(for: tenant)
        switch await verifier.verdict(on: .adopted(given), of: tenant.configuration, at: server, waits: true) {
        case .verified(var held, _):
            // A caller may have named a later time than the token does.
            if held.proof.accessToken, let text = held.accessToken.withRevealed({ WireText(validating: $0) }),
                let expiry = TokenResponse.expiry(ofToken: text)
            {
                held.expires = min(held.expires, expiry)
            }
            return held
        case .refused(let error): throw BrokerError(.illegalArgument, error.detail)
        case .unavailable(let error): throw error
        }
    }

    /// The provider that has granted these credentials and can end their session; nil where that is not the tenant's, or has no
    /// endpoint for it. No other provider is sent the token.
    func server(
        endingSessionOf held: HeldCredentials, of tenant: Tenant
    ) async throws(BrokerError) -> AuthorizationServer? {
        guard let server = try await servers.server(for: tenant, holding: held) else { return nil }
        if server.canRevoke { return server }
        return try await servers.serverWithRevocation(for: tenant)
    }
}
