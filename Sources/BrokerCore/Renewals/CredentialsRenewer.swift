internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import OAuth
internal import Reactor
internal import Renewal

/// Renewing: one at a time for a storage key, in this process by the single flight and among replicas by the lease.
extension CredentialsProvider {
    /// What a renewal came to.
    enum Renewed: Sendable {
        /// Granted, and so fit to be served: stored, or safe in the journal until it can be.
        /// - Parameter life: how long they had to live when they were granted; nil where the session ended.
        case new(CredentialsSnapshot, life: Duration?)
        /// Another change came first. Decide again.
        case overtaken
    }

    /// Re-decides, acts and publishes. Runs once at a time for a storage key.
    /// - Parameter urgency: in the background, another replica's renewal is as good as one's own.
    func renew(
        _ id: CredentialsID, of tenant: Tenant, _ query: CredentialsQuery, _ urgency: ProviderBudget.Urgency = .caller
    ) async -> Result<Renewed, BrokerError> {
        // A store that has lost its last commits gives their versions to other contents, which only a process hears of
        // that follows it.
        let known = records.isFollowing ? cache.fresh(id, now: time.monotonic) : nil
        return await RenewalRun(self, id, of: tenant, query, urgency, assuming: known).run()
    }

    static func grant(of decision: CredentialsDecision) -> TokenRequest.Grant? {
        switch decision {
        case .refresh: .refreshToken
        case .upgrade: .upgrade
        case .obtainClientCredentials: .clientCredentials
        case .serve, .serveBasic, .retire, .expiredOnArrival, .missing, .levelNotAvailable, .keptForOtherProvider: nil
        }
    }

    /// What renewals by such a request are held to.
    func rules(for grant: TokenRequest.Grant?, of tenant: Tenant) -> RenewalRules {
        var waits = (1...BackoffSchedule.retries).compactMap { retry in
            BackoffSchedule.standard.wait(before: retry, retryAfter: nil)
        }
        if grant == .clientCredentials {
            // Nothing is spent, so another replica may ask as soon as the holder is gone.
            var rules = RenewalRules(grace: .zero, callLimit: callLimit, waits: waits, turn: .zero)
            rules.span = callLimit + .seconds(2)
            return rules
        }
        // The call behind a refused upgrade: see `RenewalRun.call`.
        if grant == .upgrade { waits.append(.zero) }
        let grace = tenant.configuration.reuseGrace ?? tenant.configuration.preset.reuseGrace
        var rules = RenewalRules(
            grace: grace ?? RenewalRules.usualGrace, callLimit: callLimit, waits: waits,
            patience: RenewalRules.usualPatience)
        rules.isGraceKnown = grace != nil
        return rules
    }

    /// Whether a lease is to be had for what is not stored yet: the first client credentials of a storage key, which each
    /// replica would ask for otherwise.
    func needsRow(_ current: CredentialsSnapshot, _ decision: CredentialsDecision) -> Bool {
        current.version == 0 && records.isShared && decision == .obtainClientCredentials(isUpgrade: false)
    }

    /// What is to be done about a lease whose holder is gone, where the credentials themselves are good: the refresh token is
    /// tried at once, for providers take a spent one for some seconds only. Nil for nothing.
    func recovery(
        of current: CredentialsSnapshot, _ lease: Lease, _ tenant: Tenant, _ id: CredentialsID
    ) -> CredentialsDecision? {
        guard current.record.held?.refreshToken != nil else { return nil }
        // Later than the grace a renewal by a caller finds out as well what became of the token.
        if lease.wasGivenUp, !rules(for: .refreshToken, of: tenant).isWithinGrace(lease.sinceFirstUse) { return nil }
        let forced = CredentialsQuery(policy: .localForceRefresh, minimumLifetime: .zero)
        let recovery = decide(current, tenant, forced, id)
        return Self.grant(of: recovery)?.spendsRefreshToken == true ? recovery : nil
    }

    /// Ends the search for what became of a lease: nothing needs to be done about it any more, or nothing can be.
    func rest(_ lease: Lease, _ id: CredentialsID, _ current: CredentialsSnapshot, _ tenant: Tenant) async {
        // Where another provider is configured meanwhile, what became of the refresh token is found out once the one that
        // granted it is again.
        let held = current.record.held
        let mayBeSpent =
            held?.refreshToken != nil
            && (lease.wasGivenUp || providers(of: tenant).difference(from: held?.grantedBy) != nil)
        do throws(StoreError) {
            try await records.commit([
                .release(
                    CredentialsRecords.recordID(id), version: current.version, holder: lease.holder,
                    LeaseRelease(mayBeSpent ? .unknown(recovery: nil) : .settled))
            ])
        } catch {
            // Another replica has seen to it, or the next look does.
            if error != .conflict { records.report(error, id) }
        }
    }

    /// Whether the configuration that a renewal goes by is the stored one. A replica may not have heard of a new one
    /// yet: what is final must not be done by the old one.
    func isCurrent(_ tenant: Tenant) async throws(BrokerError) -> Bool {
        try await tenants.currentTenant(tenant.name)?.version == tenant.version
    }
}
