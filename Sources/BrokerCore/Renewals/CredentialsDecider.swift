import OAuth

/// Decides what is to be done about credentials: by the policy, and by the renewals that this process has tried.
final class CredentialsDecider: Sendable {
    private let policy = CredentialsPolicy()
    private let servers: ProviderServers
    private let failures: RecentFailures
    private let time: any Time

    init(servers: ProviderServers, failures: RecentFailures, time: any Time) {
        self.servers = servers
        self.failures = failures
        self.time = time
    }

    func decide(
        _ snapshot: CredentialsSnapshot, _ tenant: Tenant, _ query: CredentialsQuery, _ id: CredentialsID
    ) -> CredentialsDecision {
        let decision = decide(snapshot, tenant, query, now: time.now)
        // Without its lead time, the policy would serve the token.
        guard decision == .refresh(isEarly: true),
            failures.current(id, .early, version: snapshot.version) != nil
        else { return decision }
        return .serve
    }

    /// Decides by the policy alone, whatever was tried before.
    func decide(
        _ snapshot: CredentialsSnapshot, _ tenant: Tenant, _ query: CredentialsQuery, now: Timestamp
    ) -> CredentialsDecision {
        func decide(_ terms: CredentialsPolicy.Terms) -> CredentialsDecision {
            policy.decide(snapshot.record, version: snapshot.heldVersion, terms: terms, query: query, now: now)
        }
        let needsMetadata = needsMetadata(snapshot, tenant)
        let decision = needsMetadata ? decide(self.terms(of: tenant)) : decide(tenant.terms)
        guard decision.isForClientCredentials, servers.lackClientCredentials(tenant.configuration) else {
            return decision
        }
        var terms = needsMetadata ? self.terms(of: tenant) : tenant.terms
        terms.canObtainClientCredentials = false
        return decide(terms)
    }

    /// The tenant's terms, with what is known from its provider's metadata.
    private func terms(of tenant: Tenant) -> CredentialsPolicy.Terms {
        var terms = tenant.terms
        terms.providers = servers.acceptedProviders(of: tenant)
        return terms
    }

    /// Whether only the provider's metadata tells if the credentials belong to the tenant's provider: the configuration has an
    /// issuer and no token endpoint, and the credentials have no issuer to compare with it.
    func needsMetadata(_ snapshot: CredentialsSnapshot, _ tenant: Tenant) -> Bool {
        guard tenant.terms.providers.tokenEndpoint == nil, let granted = snapshot.record.held?.grantedBy else {
            return false
        }
        return granted.issuer == nil
    }
}

extension CredentialsDecision {
    /// Whether client credentials are the best that the provider can be asked for.
    fileprivate var isForClientCredentials: Bool {
        switch self {
        case .obtainClientCredentials, .kept: true
        default: false
        }
    }
}
