import CredentialStore
import Cryptography
import ExternalText
import HTTPCodec
import OAuth
import Reactor
import Renewal
import Waiting

/// The calls of a renewal to its provider, and what their answers mean.
extension CredentialsRenewer {
    /// Finds out where to ask.
    /// - Returns: nil if the credentials must not be shown to the tenant's provider, or if only a newer configuration may
    ///   decide.
    func findServer(_ renewal: inout Renewal) async throws(BrokerError) -> AuthorizationServer? {
        if let server = renewal.server { return server }
        let (tenant, servers) = (renewal.tenant, providers.servers)
        // With an old configuration, an upgrade would undo a later one.
        if renewal.decision.isUpgrade, try await !isCurrent(tenant) { return nil }
        do throws(BrokerError) {
            if let held = renewal.held, renewal.spendsRefreshToken {
                renewal.server = try await servers.server(for: tenant, holding: held)
            } else {
                renewal.server = try await servers.server(for: tenant)
                if renewal.grant == .clientCredentials {
                    try renewal.server?.makeProofKey(for: tenant.configuration)
                }
            }
        } catch {
            throw renewal.isUpgrade ? error.asFailedUpgrade : error
        }
        // The metadata, which may have been fetched for this, changes the decision.
        if renewal.grant == .clientCredentials, servers.lackClientCredentials(tenant.configuration) {
            renewal.server = nil
        }
        return renewal.server
    }

    // MARK: The circuit

    /// Finds out, before the lease is taken, whether the first call will be made. To be followed by `leaveCircuit`.
    /// - Returns: what callers get if it will not.
    func enterCircuit(_ renewal: inout Renewal) -> BrokerError? {
        guard let server = renewal.server, let grant = renewal.grant, grant != .accountCreation else { return nil }
        let (tenant, client, health) = (renewal.tenant, renewal.client, providers.endpoint.health)
        let circuit = ProviderClient.OfTenant(tenant.name, client, at: server)
        if renewal.trial == circuit { return nil }
        switch health.admit(ProviderHealths.Subject(tenant, ClientUse(client, grant), at: circuit), .circuit) {
        case .yes: return nil
        case .trial:
            renewal.trial = circuit
            return nil
        case .no(let refusal):
            // After a cache entry, the store is read, and this is asked again.
            if !renewal.isAssumed { health.countSpared(server.preset) }
            return health.error(refusal)
        }
    }

    /// Leaves the trial to another renewal if this one has not made it.
    func leaveCircuit(_ renewal: inout Renewal) {
        if let trial = renewal.trial.take() { providers.endpoint.health.giveBack(trial) }
    }

    // MARK: The request

    /// Makes one call.
    /// - Parameters:
    ///   - limit: how long to wait for the answer.
    ///   - mayBeHeldBack: whether the call is not made while the provider's circuit is open.
    ///   - lease: is extended meanwhile; nil for a renewal without one.
    func ask(
        _ renewal: inout Renewal, by attempt: RenewalAttempt, limit: Duration, mayBeHeldBack: Bool,
        extending lease: OwnLease?
    ) async -> RenewalAttempt.Outcome {
        if renewal.grant == .accountCreation { return await createAccount(&renewal, by: attempt, extending: lease) }
        let call: TokenEndpoint.Call
        do throws(BrokerError) {
            guard let server = renewal.server, let next = try nextCall(&renewal, at: server, by: attempt) else {
                return .denied
            }
            call = next
        } catch {
            renewal.failure = error
            return .denied
        }
        let endpoint = providers.endpoint
        // Other renewals may have waited for a place at the provider together with this one.
        var heeded: ProviderHealth.Aspects = renewal.admitted == call.shown ? [] : .fault
        if mayBeHeldBack, renewal.trial != call.circuit { heeded.insert(.circuit) }
        switch await gate.admit(call, of: renewal.tenant, heeding: heeded) {
        case .yes(let isTrial): if isTrial { renewal.trial = call.circuit }
        case .no(let error, let isSparing):
            renewal.failure = error
            if isSparing { renewal.excuse = .sparing }
            return .denied
        }
        renewal.admitted = call.shown
        if attempt.isUncertain, call.grant.spendsRefreshToken {
            log.warning("refresh_outcome_unknown", renewal.logFields + [.provider(call.server.preset)])
            metrics.repeatedAfterUnknownOutcome(provider: call.server.preset.name)
        }
        renewal.trial = nil
        renewal.asked += 1
        let extending = beginExtending(lease, for: renewal, by: attempt)
        let start = time.monotonic
        var (answer, trace, isAnswered) = await endpoint.send(call, limit: limit)
        let isMoved: Bool
        if trace == .none, answer.isMisdirected { isMoved = await follow(call, &renewal) } else { isMoved = false }
        var isCompared = false
        if !isMoved { (answer, isCompared) = await compared(answer, to: call, renewal, sentAt: start) }
        endExtending(extending)
        if isAnswered { renewal.cause = .other }
        renewal.failure = answer.error ?? renewal.failure
        renewal.answer = .nothing
        // The call goes elsewhere next; the provider has not used it.
        if isMoved { return .notAsked(.scheduled) }
        if !mayBeSpent(by: call, of: renewal.tenant) { trace = .none }
        return await outcome(of: answer, to: call, trace: trace, isCompared: isCompared, &renewal)
    }

    /// Begins to extend the lease during a call or a pause. A record that is not stored yet has no row for it.
    private func beginExtending(_ lease: OwnLease?, for renewal: Renewal, by attempt: RenewalAttempt) -> UInt64? {
        guard let lease, attempt.version > 0 else { return nil }
        let claim = lease.claim(
            by: attempt.rules, marksUse: renewal.spendsRefreshToken, isOpen: attempt.isOpen)
        return lease.beginExtending(by: claim, on: attempt.version, attempt.rules)
    }

    private func endExtending(_ token: UInt64?) {
        if let token { keeper.endExtending(token) }
    }

    /// Finds out where to ask now, after an answer of a token endpoint that may have moved.
    /// - Returns: whether the next call goes elsewhere.
    private func follow(_ call: TokenEndpoint.Call, _ renewal: inout Renewal) async -> Bool {
        guard !renewal.hasFollowed, renewal.grant != .upgrade else { return false }
        renewal.hasFollowed = true
        let held = renewal.spendsRefreshToken ? renewal.held : nil
        let asking = held.map(renewal.tenant.ofClient) ?? renewal.tenant
        guard await providers.moves.server(insteadOf: call.server, of: asking) != nil else { return false }
        let earlier = renewal.server.take()
        // The refresh token may be for the earlier address only.
        guard let found = try? await findServer(&renewal) else {
            renewal.server = earlier
            return false
        }
        (renewal.server, renewal.prepared) = (found, nil)
        return true
    }

    /// Whether a call whose answer is lost may have spent the refresh token.
    private func mayBeSpent(by call: TokenEndpoint.Call, of tenant: Tenant) -> Bool {
        call.grant.spendsRefreshToken && tenant.configuration.effectiveRotation != .never
    }

    /// Creates an account by several calls, each of which is made once.
    private func createAccount(
        _ renewal: inout Renewal, by attempt: RenewalAttempt, extending lease: OwnLease?
    ) async -> RenewalAttempt.Outcome {
        guard let server = renewal.server else { return .denied }
        let extending = beginExtending(lease, for: renewal, by: attempt)
        defer { endExtending(extending) }
        do throws(BrokerError) {
            let response = try await providers.accounts.grant(
                by: .creation, for: renewal.tenant.configuration.client, of: renewal.tenant.name, at: server,
                as: renewal.refreshID)
            renewal.answer = .granted(response, by: .accountCreation)
            return .granted
        } catch {
            renewal.failure = error
            return .denied
        }
    }

    /// The next call. An upgrade that the provider has refused because the session has ended is followed by one ordinary
    /// refresh, with the registration that the session was obtained with. If that is refused, too, the session has ended.
    /// - Returns: nil if there is nothing to ask any more.
    private func nextCall(
        _ renewal: inout Renewal, at server: AuthorizationServer, by attempt: RenewalAttempt
    ) throws(BrokerError) -> TokenEndpoint.Call? {
        let (tenant, endpoint, client) = (renewal.tenant, providers.endpoint, renewal.client)
        if renewal.grant == .upgrade, attempt.calls > tenant.configuration.schedule.tries {
            guard case .endedUpgrade = renewal.answer, let held = renewal.held, let refreshToken = held.refreshToken,
                let earlier = client.asRegistered(by: held.obtainedWith)
            else { return nil }
            return try endpoint.prepare(
                .refresh(refreshToken), for: earlier, of: tenant.name, at: server, as: renewal.refreshID)
        }
        if let prepared = renewal.prepared { return prepared }
        let call = try endpoint.prepare(
            try tokenRequest(renewal), for: client, of: tenant.name, at: server, as: renewal.refreshID)
        renewal.prepared = call
        return call
    }

    private func tokenRequest(_ renewal: Renewal) throws(BrokerError) -> TokenRequest {
        let held = renewal.held
        switch (renewal.grant, held?.refreshToken, renewal.tenant.configuration.preset.upgradeGrant) {
        case (.refreshToken, let refreshToken?, _):
            // An imported set may have no access token yet.
            let accessToken = held.flatMap { $0.accessToken.isEmpty ? nil : $0.accessToken } ?? refreshToken
            return held?.awaitsExchange == true && renewal.server?.own?.exchange != nil
                ? .exchange(accessToken: accessToken, refreshToken: refreshToken)
                : .refresh(refreshToken, accessToken: accessToken)
        case (.upgrade, let refreshToken?, let grantType?): return .upgrade(refreshToken, grantType: grantType)
        case (.clientCredentials, _, _): return .clientCredentials
        default: throw BrokerError(.internalError, "A renewal was decided on that no request exists for.")
        }
    }

    // MARK: The answer

    private func outcome(
        of answer: TokenEndpoint.Answer, to call: TokenEndpoint.Call, trace: TokenEndpoint.Trace, isCompared: Bool,
        _ renewal: inout Renewal
    ) async -> RenewalAttempt.Outcome {
        let (tenant, endpoint) = (renewal.tenant, providers.endpoint)
        let user = ProviderClient.User(renewal.id, of: call.pause)
        let isUpgrade = renewal.isUpgrade && call.grant == renewal.grant
        var retry = RenewalAttempt.Retry.scheduled
        switch answer {
        case .granted(let response):
            renewal.accepted = call.shown
            renewal.answer = .granted(response, by: call.grant)
            if call.grant.spendsRefreshToken { waves.noteRenewed(tenant, from: renewal.snapshot.record) }
            endpoint.health.lift(user)
            return .granted
        case .rotated(_, let refreshToken):
            renewal.accepted = call.shown
            // A provider that repeats the refresh token has not replaced it.
            if refreshToken == renewal.held?.refreshToken { break }
            // To be stored before anything else: the next renewal presents it.
            renewal.answer = .rotated(refreshToken)
            return .granted
        case .sessionEnded(let refusal, _):
            renewal.accepted = call.shown
            if isUpgrade {
                renewal.answer = .endedUpgrade
                return .notAsked(.scheduled)
            }
            return await endsSession(refusal, &renewal) ? .sessionEnded : .denied
        case .refused, .refusedUnclearly, .clientRefused:
            // No failure of an upgrade is final.
            if isUpgrade { break }
            if case .refusedUnclearly(_, let refused) = answer, refused.error == nil {
                renewal.cause = .unexplained(status: refused.status, isCompared: isCompared)
            }
            if case .clientRefused(let error, let scope) = answer {
                if await isOutdated(refusedWith: error.errorCode, &renewal) { return .denied }
                let isEarlier =
                    renewal.grant == .refreshToken && call.client.clientID != tenant.terms.client.clientID
                let error = isEarlier ? RefusalAdvice.ofEarlierClient(error) : error
                var failure = error.retrying(after: ClientFault.pause)
                metrics.clientRefused(provider: call.server.preset.name)
                failure.since = await clientFaults.note(error, scope, of: call.shown, tenant)
                renewal.failure = failure
            }
            return trace == .none ? .denied : trace == .spent ? .unknown(.never) : .unanswered(.never)
        case .rateLimited(_, let wait):
            guard isUpgrade || renewal.limits.allow(wait) else {
                pauseOthers(user, for: wait)
                return trace == .none ? .denied : .unknown(.never)
            }
            retry = self.retry(after: wait, call, trace, &renewal)
            if !isUpgrade { pauseOthers(user, for: wait) }
        case .again(_, let wait):
            retry = wait.map { self.retry(after: $0, call, trace, &renewal) } ?? .scheduled
            // Only a presentation can save a refresh token that its own calls may have spent.
            let isLeftAlone = renewal.isPresentation && trace != .none
            if !isLeftAlone, let outage = endpoint.health.outage(call.circuit) {
                // The call was the circuit's trial, or has opened it. No caller waits for a provider that answers no calls. A
                // token that may be spent is presented again in the background (`LeaseRecovery`), while the grace lasts.
                (renewal.failure, renewal.excuse, retry) = (outage, .sparing, .never)
            }
        }
        return switch trace {
        case .none: .notAsked(retry)
        case .spent: .unknown(retry)
        case .underWay: .unanswered(retry)
        }
    }

    /// Whether the wait that the provider asks for is waited. The waits of one renewal are together no longer than the longest one,
    /// since callers wait for it. A token that may be spent is then presented again in the background (`LeaseRecovery`), where no
    /// caller waits, and where such a token has all waits of the schedule.
    private func retry(
        after wait: Duration, _ call: TokenEndpoint.Call, _ trace: TokenEndpoint.Trace, _ renewal: inout Renewal
    ) -> RenewalAttempt.Retry {
        let health = providers.endpoint.health
        guard wait <= BackoffSchedule.longestWait else {
            health.pauseAll(call.pause, for: wait)
            return .never
        }
        // For the user's later renewals, if this one ends before.
        health.pauseAlone(ProviderClient.User(renewal.id, of: call.pause), for: wait)
        let isRescue = trace != .none && renewal.urgency != .caller
        let next = renewal.tenant.configuration.schedule.wait(before: renewal.asked, retryAfter: wait) ?? wait
        guard next <= renewal.patience || isRescue else { return .never }
        renewal.answer = .wait
        return .notBefore(wait)
    }

    /// Has renewals leave the provider alone that has asked for it.
    private func pauseOthers(_ user: ProviderClient.User, for wait: Duration) {
        providers.endpoint.health.pause(user, for: wait)
    }

    /// Whether the provider's answer ends the session. If an earlier call whose answer was lost may have spent the refresh
    /// token, the refusal need not be the provider's or the user's will; events and metrics tell that apart.
    private func endsSession(_ answer: TokenErrorResponse, _ renewal: inout Renewal) async -> Bool {
        guard let held = renewal.held, await !isOutdated(refusedWith: answer.errorCode, &renewal) else { return false }
        // A refusal of another client than the one that the user logged in with says nothing about the session.
        let client = renewal.grant == .upgrade ? held.obtainedWith : renewal.client.fingerprint
        guard held.isEnded(by: answer, refreshedBy: client) else {
            renewal.failure = BrokerError(
                .unexpectedError,
                "The provider refused to refresh credentials that were obtained with an earlier client_secret. "
                    + "Configure that again, or have the user log in anew.", errorCode: answer.errorCode)
            return false
        }
        renewal.answer = .sessionEnded(answer)
        return true
    }

    /// Whether a refusal is to have no effect because the tenant was configured anew meanwhile: the provider may have refused
    /// the old secret.
    private func isOutdated(refusedWith errorCode: String?, _ renewal: inout Renewal) async -> Bool {
        do throws(BrokerError) {
            if try await isCurrent(renewal.tenant) { return false }
            renewal.excuse = .superseded
            renewal.failure = BrokerError(
                .conflict, "The configuration was replaced meanwhile.", errorCode: errorCode)
        } catch {
            renewal.failure = error
        }
        return true
    }

    /// Compares an answer that names no cause, or may mean several things, with those to made-up grants: before it ends the
    /// session, and if it has come for a while and an operator is to be told what it means.
    /// - Returns: what the answer means then, and whether the comparison has told what an unclear refusal means.
    private func compared(
        _ answer: TokenEndpoint.Answer, to call: TokenEndpoint.Call, _ renewal: Renewal, sentAt sent: MonotonicInstant
    ) async -> (TokenEndpoint.Answer, isCompared: Bool) {
        let (trials, tenant) = (providers.trials, renewal.tenant)
        switch answer {
        case .sessionEnded(let refusal, let status) where refusal.error == nil:
            let refused = RefusedAnswer(status: status, refusal)
            switch await trials.result(of: refused, to: call.client, of: tenant, at: call.server, sentAt: sent) {
            case .aboutGrant: return (answer, false)
            case .aboutClient: return (.clientRefused(TokenEndpoint.refusedClient(refusal), .client), false)
            case .aboutNothing:
                logProvesNothing(refused, at: call.server, renewal)
                return (.refused(RefusalAdvice.provesNothing(refused, retryAfter: ClientTrials.validity)), false)
            case .later(let wait): return (TokenEndpoint.rateLimited(for: wait, at: time.now), false)
            case .unanswered: return (.again(TokenEndpoint.retryable(nil, after: nil), retryAfter: nil), false)
            }
        case .refusedUnclearly(let error, let refused):
            // Nothing depends on it but what a caller is told.
            guard renewal.urgency == .caller, await hasLasted(error, renewal) else { return (answer, false) }
            switch await trials.explanation(of: refused, to: call.client, of: tenant, at: call.server, sentAt: sent) {
            case .aboutGrant: return (.refusedUnclearly(RefusalAdvice.ofGrant(refused, error), refused), true)
            case .aboutClient:
                return (
                    .clientRefused(TokenEndpoint.refusedClient(errorCode: error.errorCode), .client), false
                )
            case .aboutNothing:
                logProvesNothing(refused, at: call.server, renewal)
                return (.refusedUnclearly(RefusalAdvice.ofNothing(refused, error), refused), true)
            case .later, .unanswered: return (answer, false)
            }
        case .granted, .rotated, .sessionEnded, .refused, .clientRefused, .again, .rateLimited: return (answer, false)
        }
    }

    /// Logs that made-up grants get an answer of the provider's, too.
    private func logProvesNothing(_ answer: RefusedAnswer, at server: AuthorizationServer, _ renewal: Renewal) {
        var fields = renewal.logFields + [.provider(server.preset), .status(Status(answer.status))]
        if let error = answer.error { fields.append(.providerError(code: error.text)) }
        log.warning("refusal_proves_nothing", fields)
    }

    /// Ends the fault of a client that the provider has accepted, so that it is asked for all users again.
    func liftFault(_ renewal: Renewal) async {
        if let accepted = renewal.accepted { await clientFaults.lift(accepted, of: renewal.tenant) }
    }

    // MARK: Between two calls

    /// Waits before a further call, and for as long as the provider has asked other calls to wait, unless the refresh token may
    /// be spent: a provider accepts a spent token again only for a short time. A provider that answers again is called at once,
    /// unless it has asked for the wait.
    func pause(
        _ renewal: inout Renewal, for duration: Duration, by attempt: RenewalAttempt, extending lease: OwnLease?
    ) async -> RenewalAttempt.Outcome {
        let start = time.monotonic
        let latest = start.advanced(by: max(duration, renewal.patience))
        let extending = beginExtending(lease, for: renewal, by: attempt)
        defer {
            endExtending(extending)
            renewal.waited += start.duration(to: time.monotonic)
        }
        var wait = duration
        do throws(BrokerError) {
            while true {
                if !attempt.isUncertain, let prepared = renewal.prepared {
                    wait = try providers.endpoint.wait(
                        wait, heeding: ProviderClient.User(renewal.id, of: prepared.pause),
                        atMost: time.monotonic.duration(to: latest))
                }
                if await isStopped(after: wait, by: attempt, &renewal) { return .stopped }
                if wait <= .zero { return .waited }
                wait = .zero
            }
        } catch {
            renewal.failure = error
            return .denied
        }
    }

    /// Whether the broker is draining. Then another replica, or the next process, makes the calls that are left, and sooner
    /// than this process could. A token of a presentation that may be spent is presented until the work is cut short.
    private func isStopped(
        after duration: Duration, by attempt: RenewalAttempt, _ renewal: inout Renewal
    ) async -> Bool {
        let (draining, time) = (draining, time)
        let goesOn = renewal.isPresentation && attempt.isUncertain
        if goesOn {
            if duration > .zero { try? await time.sleep(for: duration) }
        } else if duration > .zero {
            var recovery = renewal.prepared?.circuit
            if case .wait = renewal.answer { recovery = nil }
            let recoveries = providers.endpoint.health.recoveries
            let ticket = recovery.map { recoveries.ticket($0) }
            await draining.wait(for: 0, since: draining.ticket(0)) { [recovery] in
                guard let recovery, let ticket else {
                    try? await time.sleep(for: duration)
                    return
                }
                await recoveries.wait(for: recovery, since: ticket) { try? await time.sleep(for: duration) }
            }
        }
        if goesOn ? !Task.isCancelled : !isStopping { return false }
        renewal.failure = .shuttingDown
        return true
    }
}

extension ClientConfiguration {
    /// The registration that credentials were obtained with; nil if its secret is not known any more.
    fileprivate func asRegistered(by earlier: ClientFingerprint) -> ClientConfiguration? {
        let isKnown = earlier.clientID == clientID || earlier.clientSecretDigest == fingerprint.clientSecretDigest
        if !isKnown, earlier.clientSecretDigest != nil { return nil }
        return ClientConfiguration(
            clientID: earlier.clientID, clientSecret: isKnown ? clientSecret : nil,
            clientUniqueKey: earlier.clientUniqueKey, scopes: earlier.scopes, material: isKnown ? material : nil)
    }
}
