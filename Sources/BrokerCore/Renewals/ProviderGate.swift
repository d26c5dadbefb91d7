import CredentialStore
package import OAuth
import Reactor

/// The one place that says whether the provider may be asked now about one set of credentials, why not, and until when.
///
/// It is asked before a renewal takes place and lease (`obstacle`, `hold`), just before a call (`admit`), and by an operator who
/// asks why no call is made (`withheld`).
package final class ProviderGate: Sendable {
    /// The answer just before a call.
    enum Answer: Sendable {
        /// - Parameter isTrial: whether the call is the trial of the client's circuit.
        case yes(isTrial: Bool)
        /// - Parameter isSparing: whether the reason is that the provider answers no calls.
        case no(BrokerError, isSparing: Bool)
    }

    private let decider: CredentialsDecider
    private let failures: RecentFailures
    private let clientFaults: ClientFaults
    private let waves: Waves
    private let holders: LeaseHolders
    private let records: CredentialsRecords
    private let servers: ProviderServers
    private let health: ProviderHealths
    private let time: any Time
    private let log: Log

    init(
        decider: CredentialsDecider, failures: RecentFailures, clientFaults: ClientFaults, waves: Waves,
        holders: LeaseHolders, records: CredentialsRecords, providers: ProviderAccess
    ) {
        self.decider = decider
        self.failures = failures
        self.clientFaults = clientFaults
        self.waves = waves
        self.holders = holders
        self.records = records
        (servers, health) = (providers.servers, providers.endpoint.health)
        (time, log) = (records.time, records.log)
    }

    // MARK: Before the lease

    /// What callers get without a renewal: another replica has just failed to renew, or the provider does not accept the client,
    /// or has left the last calls without an answer. Nil if it may be asked.
    func obstacle(to renewal: Renewal) -> BrokerError? {
        guard let grant = renewal.grant else { return nil }
        let tenant = renewal.tenant
        if let failure = renewal.lease.flatMap(failureElsewhere),
            let error = failures.read(
                failure, renewal.id, version: renewal.snapshot.version, grant: grant,
                isUpgrade: renewal.isUpgrade, of: tenant), renewal.urgency == .caller
        {
            return withheld(.failedElsewhere, error, renewal)
        }
        let server = heedsCircuit(renewal) ? servers.knownServer(for: tenant.configuration) : nil
        let subject = subject(renewal, grant, at: server)
        guard let refusal = health.refusal(subject, [.fault, .circuit]) else { return nil }
        if let server, refusal.code == .circuitOpen { health.countSpared(server.preset) }
        pauseIfEarly(renewal)
        let error = withheld(refusal.code, health.error(refusal), renewal)
        return renewal.isUpgrade ? error.asFailedUpgrade : error
    }

    /// What callers get of credentials that are held because of a wave; nil if the provider may be asked.
    func hold(_ renewal: Renewal) async -> BrokerError? {
        guard renewal.spendsRefreshToken,
            let refusal = await waves.refusal(of: renewal.held, renewal.id, renewal.tenant)
        else { return nil }
        pauseIfEarly(renewal)
        return withheld(.waveOn, refusal, renewal)
    }

    /// The same without asking the store.
    func knownHold(_ renewal: Renewal) -> BrokerError? {
        guard renewal.spendsRefreshToken,
            let refusal = waves.knownRefusal(of: renewal.held, renewal.id, renewal.tenant)
        else { return nil }
        pauseIfEarly(renewal)
        return withheld(.waveOn, refusal, renewal)
    }

    /// Whether a renewal fails before its lease while the provider answers no calls.
    private func heedsCircuit(_ renewal: Renewal) -> Bool {
        // A cache entry does not show whether the refresh token may be spent. If it may be, it is presented again in the
        // background.
        let isBackgrounds = renewal.urgency == .caller && renewal.lease?.hasRunOut == true
        return !renewal.isAssumed && (isBackgrounds || renewal.lease?.isSettled ?? true)
            && renewal.grant != .accountCreation && !records.rollback.isDoubtful(renewal.snapshot.version)
    }

    private func subject(
        _ renewal: Renewal, _ grant: TokenRequest.Grant, at server: AuthorizationServer?
    ) -> ProviderHealths.Subject {
        let (tenant, client) = (renewal.tenant, renewal.client)
        return ProviderHealths.Subject(
            tenant, ClientUse(client, grant),
            at: server.map { ProviderClient.OfTenant(tenant.name, client, at: $0) }, for: renewal.id)
    }

    private func pauseIfEarly(_ renewal: Renewal) {
        guard renewal.isEarly else { return }
        failures.noteEarly(renewal.id, version: renewal.snapshot.version, for: RecentFailures.earlyPause)
    }

    private func withheld(_ code: Withheld.Code, _ error: BrokerError, _ renewal: Renewal) -> BrokerError {
        if log.isEnabled(.debug) { log.debug("refresh_withheld", renewal.logFields + [.withheld(code)]) }
        var error = error
        error.withheld = code
        return error
    }

    /// The failure of another replica's renewal, which is not repeated at once; nil for none.
    private func failureElsewhere(_ lease: Lease) -> LeaseFailure? {
        holders.isOwn(lease.holder) ? nil : lease.failure
    }

    // MARK: Before a call

    /// Asks for a call. A trial of the circuit is made, or given back.
    func admit(
        _ call: TokenEndpoint.Call, of tenant: Tenant, heeding aspects: ProviderHealth.Aspects
    ) async -> Answer {
        let admission = health.admit(ProviderHealths.Subject(tenant, call.shown, at: call.circuit), aspects)
        switch admission {
        case .yes: return .yes(isTrial: false)
        case .no(let refusal):
            let isSparing = refusal.code == .circuitOpen
            if isSparing { health.countSpared(call.server.preset) }
            return .no(health.error(refusal), isSparing: isSparing)
        case .trial(let trial):
            let isOfCircuit = trial.contains(.circuit)
            if let error = await clientFaults.confirm(trial, of: call.shown, tenant) {
                if isOfCircuit { health.giveBack(call.circuit) }
                return .no(error, isSparing: false)
            }
            return .yes(isTrial: isOfCircuit)
        }
    }

    // MARK: For an operator

    /// Why the provider would not be asked now for another token, as far as this replica knows; nil if it would be, and if there
    /// is nothing to ask it for. Changes nothing. Of several reasons, the first in the order of `Withheld.Code`.
    /// - Parameter isHeld: whether the set is held until an operator frees it.
    package func withheld(
        _ snapshot: CredentialsSnapshot, isHeld: Bool, _ id: CredentialsID, _ tenant: Tenant
    ) async -> Withheld? {
        let forced = CredentialsQuery(policy: .localForceRefresh, minimumLifetime: .zero)
        let decision = decider.decide(snapshot, tenant, forced, now: time.now)
        let isTooEarly = if case .tooEarly = decision { true } else { false }
        let grant: TokenRequest.Grant? = isTooEarly ? .refreshToken : decision.grant
        if grant?.spendsRefreshToken == true, let hold = records.rollback.remainingHold {
            return Withheld(
                .storeWentBack, until: time.now.advanced(by: hold),
                "The store has lost its last commits. No refresh token is presented before all replicas have stored again what "
                    + "they know.")
        }
        if records.unpublished(id) != nil {
            return Withheld(
                .grantNotStored, until: nil,
                "The provider has granted other credentials, which wait for the store. They are stored first.")
        }
        guard let grant else { return nil }
        if isHeld, grant.spendsRefreshToken { return Withheld(.waveOn, until: nil, Waves.refusal(tenant).detail) }
        var renewal = Renewal(id: id, tenant: tenant, query: forced, urgency: .caller, trigger: .forced)
        (renewal.snapshot, renewal.decision, renewal.grant) = (snapshot, decision, grant)
        if let withheld = withheldByProvider(renewal, grant) { return withheld }
        if case .tooEarly(let earliest) = decision {
            return Withheld(.tooEarly, until: earliest, "The provider does not renew a token that is so new.")
        }
        if let withheld = await withheldElsewhere(renewal) { return withheld }
        return withheldByFailure(renewal, grant)
    }

    private func withheldByProvider(_ renewal: Renewal, _ grant: TokenRequest.Grant) -> Withheld? {
        let server = servers.knownServer(for: renewal.tenant.configuration)
        let refusal = health.refusal(subject(renewal, grant, at: server), [.fault, .pause, .circuit])
        return refusal.map { Withheld($0.code, until: timeOfDay(at: $0.until), health.error($0).detail) }
    }

    private func withheldElsewhere(_ renewal: Renewal) async -> Withheld? {
        guard records.isShared, renewal.snapshot.version > 0 else { return nil }
        do throws(StoreError) {
            let (records, row) = (records, CredentialsRecords.recordID(renewal.id))
            let stored = try await time.within(CredentialsRecords.statementLimit) { () async throws(StoreError) in
                try await records.vault.readSealed(row)
            }
            guard let lease = stored?.lease else { return nil }
            if !lease.isSettled, !lease.hasRunOut, !holders.isOwn(lease.holder) {
                return Withheld(
                    .leaseElsewhere, until: time.now.advanced(by: lease.remaining),
                    "Another replica renews these credentials. Its result is waited for.")
            }
            guard let failure = failureElsewhere(lease),
                let error = RecentFailures.meaning(of: failure, isUpgrade: renewal.isUpgrade, of: renewal.tenant)?.error
            else { return nil }
            return Withheld(.failedElsewhere, until: time.now.advanced(by: failure.remaining), error.detail)
        } catch {
            // What other replicas do is not known, and the rest is.
            records.report(error, renewal.id)
            return nil
        }
    }

    private func withheldByFailure(_ renewal: Renewal, _ grant: TokenRequest.Grant) -> Withheld? {
        func current(_ kinds: RecentFailures.Kinds) -> RecentFailures.Current? {
            failures.current(
                renewal.id, kinds, version: renewal.snapshot.version, configuration: renewal.tenant.version,
                grant: grant)
        }
        // An upgrade's failure lasts longer than the answers that it has caused.
        guard let found = current(.upgrade) ?? current([.degraded, .recovery, .early]) else { return nil }
        let until = timeOfDay(at: found.until)
        switch found.failure {
        case .upgrade(let error): return Withheld(.upgradeFailed, until: until, error.detail)
        case .degraded(let degradation):
            return Withheld(
                .degraded, until: until,
                "The last renewal has failed with \(degradation.code.rawValue), and the token that is stored is served "
                    + "meanwhile.")
        case .recovery:
            return Withheld(
                .recoveryFailed, until: until,
                "A call whose answer was lost may have spent the refresh token. It was presented again in vain, and is again "
                    + "then, or when a caller asks.")
        case .early:
            return Withheld(
                .earlyPause, until: until,
                "The token is to be renewed soon. The last try has failed or brought little, so that the next one is made then, "
                    + "or when a caller cannot be served with the token.")
        }
    }

    private func timeOfDay(at instant: MonotonicInstant) -> Timestamp {
        let clocks = time.clocks
        return clocks.now.advanced(by: clocks.monotonic.duration(to: instant))
    }
}
