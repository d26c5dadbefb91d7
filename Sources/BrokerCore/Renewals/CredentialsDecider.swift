internal import Containers
internal import OAuth
internal import Reactor
internal import Synchronization

/// Decides what is to be done about credentials: by the policy, and by the renewals that this process has tried.
final class CredentialsDecider: Sendable {
    /// After an early renewal that failed or brought little: until when that version is not renewed early again.
    private struct EarlyPause {
        let version: Int64
        let until: MonotonicInstant
    }

    static let pauseAfterEarlyFailure: Duration = .seconds(30)

    private let policy = CredentialsPolicy()
    private let servers: ProviderServers
    private let time: any Time
    /// Credentials whose pause is forgotten are renewed once more than needed.
    private let earlyPauses = Mutex(BoundedTable<CredentialsID, EarlyPause>(capacity: 16_384))

    init(servers: ProviderServers, time: any Time) {
        self.servers = servers
        self.time = time
    }

    func decide(
        _ snapshot: CredentialsSnapshot, _ tenant: Tenant, _ query: CredentialsQuery, _ id: CredentialsID
    ) -> CredentialsDecision {
        let decision = decide(snapshot, tenant, query, now: time.now)
        // Without its lead time, the policy would serve the token.
        guard decision == .refresh(isEarly: true), isPaused(id, snapshot.version) else { return decision }
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

    private func isPaused(_ id: CredentialsID, _ version: Int64) -> Bool {
        let now = time.monotonic
        return earlyPauses.withLock { $0[id].map { $0.version == version && $0.until > now } ?? false }
    }

    /// For `pause` from now on, `decide` does not have that version of the credentials renewed before they expire.
    func pauseEarlyRenewal(_ id: CredentialsID, of version: Int64, for pause: Duration) {
        let now = time.monotonic
        earlyPauses.withLock { pauses in
            _ = pauses.setNewest(EarlyPause(version: version, until: now.advanced(by: pause)), forKey: id)
        }
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
