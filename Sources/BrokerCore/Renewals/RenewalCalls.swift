internal import CredentialStore
internal import Cryptography
internal import HTTPCodec
internal import OAuth
internal import Reactor
internal import Renewal
internal import Waiting

/// The calls of one renewal to its provider, and what their answers mean.
final class RenewalCalls {
    private let renewer: CredentialsRenewer
    private let request: RenewalRequest
    private let report: RenewalReport
    /// Where the calls go; nil before `findServer`.
    private(set) var server: AuthorizationServer?
    /// The call that is made, and made again; nil before the first one.
    private var prepared: TokenEndpoint.Call?
    /// What the provider granted, and by which kind of request; nil where it granted nothing.
    private(set) var granted: (response: TokenResponse, grant: TokenRequest.Grant)?
    /// The refresh token of an answer that has nothing else that is usable; nil where there was no such answer.
    private(set) var successor: SecretBytes?
    /// How the provider says that the session is over; nil where it does not.
    private(set) var ending: TokenErrorResponse?
    /// Whether the last upgrade was refused because the session has ended.
    private var isUpgradeDead = false
    /// The last client that was admitted, which the provider may not have accepted before.
    private var admitted: ClientUse?
    /// The last client that the provider has accepted.
    private var accepted: ClientUse?
    /// The circuit of which the next call is the trial; nil where it is none.
    private var trial: ProviderClient.OfTenant?
    /// Whether the provider's token endpoint was looked for anew, which one renewal does once.
    private var hasFollowed = false
    /// Whether the next call goes elsewhere than the last one, which the provider has not used.
    private var isMoved = false
    /// Whether the provider has asked for the wait that follows.
    private var isAskedToWait = false
    /// A presentation waits once, since no caller does.
    private lazy var limits = RateLimitWaits(tenant.configuration.schedule, atLeast: request.isPresentation ? 1 : 0)
    /// How often the provider was asked, and for how long the renewal has waited between.
    private var (asked, waited): (Int, Duration) = (0, .zero)
    /// How long the rest of its waits may take.
    private var patience: Duration { BackoffSchedule.longestWait - waited }

    private var id: CredentialsID { request.id }
    private var tenant: Tenant { request.tenant }
    private var endpoint: TokenEndpoint { renewer.providers.endpoint }
    private var health: ProviderHealths { endpoint.health }

    init(_ renewer: CredentialsRenewer, _ request: RenewalRequest, _ report: RenewalReport) {
        self.renewer = renewer
        self.request = request
        self.report = report
    }

    /// Forgets server and call: what is asked, and where, follows from what is read next.
    func reset() { (server, prepared) = (nil, nil) }

    /// The new refresh token of an answer that cannot be served otherwise, or whose tokens are another user's; nil where it has none.
    var newestRefreshToken: SecretBytes? { successor ?? granted?.response.refreshToken }

    /// Finds out where to ask.
    /// - Returns: nil where the credentials must not be shown to the tenant's provider, or where only a newer configuration may
    ///   decide.
    func findServer(_ basis: RenewalBasis) async throws(BrokerError) -> AuthorizationServer? {
        if let server { return server }
        // With an old configuration, an upgrade would undo a later one.
        if basis.decision.isUpgrade, try await !renewer.isCurrent(tenant) { return nil }
        do throws(BrokerError) {
            if let held = basis.held, basis.spendsRefreshToken {
                server = try await renewer.providers.servers.server(for: tenant, holding: held)
            } else {
                server = try await renewer.providers.servers.server(for: tenant)
                if basis.grant == .clientCredentials { try server?.makeProofKey(for: tenant.configuration) }
            }
        } catch {
            throw request.isUpgrade(basis) ? error.asFailedUpgrade : error
        }
        // The metadata, which may have been fetched for this, changes the decision.
        let servers = renewer.providers.servers
        if basis.grant == .clientCredentials, servers.lackClientCredentials(tenant.configuration) { server = nil }
        return server
    }

    // MARK: The circuit

    /// Finds out, before the lease is taken, whether the first call will be made. To be followed by `leaveCircuit`.
    /// - Returns: what callers get where it will not.
    func enterCircuit(_ basis: RenewalBasis) -> BrokerError? {
        guard let server, let grant = basis.grant, grant != .accountCreation else { return nil }
        let client = basis.client(of: tenant)
        let circuit = ProviderClient.OfTenant(tenant.name, client, at: server)
        if trial == circuit { return nil }
        switch health.admit(ProviderHealths.Subject(tenant, ClientUse(client, grant), at: circuit), .circuit) {
        case .yes: return nil
        case .trial:
            trial = circuit
            return nil
        case .no(let refusal):
            // After a cache entry, the store is read, and this is asked again.
            if !basis.isAssumed { health.countSpared(server.preset) }
            return health.error(refusal)
        }
    }

    /// Leaves the trial to another renewal if this one has not made it.
    func leaveCircuit() {
        if let trial { health.giveBack(trial) }
        trial = nil
    }

    // MARK: The request

    /// Makes one call.
    /// - Parameters:
    ///   - limit: how long to wait for the answer.
    ///   - mayBeHeldBack: whether the call is not made while the provider's circuit is open.
    ///   - lease: is extended meanwhile.
    func ask(
        limit: Duration, _ basis: RenewalBasis, _ attempt: RenewalAttempt, mayBeHeldBack: Bool,
        extending lease: RenewalLease
    ) async throws(BrokerError) -> RenewalAttempt.Outcome {
        if basis.grant == .accountCreation { return await createAccount(basis, attempt, extending: lease) }
        let call: TokenEndpoint.Call
        do throws(BrokerError) {
            guard let server, let next = try self.call(at: server, basis, attempt) else { return .denied }
            call = next
        } catch {
            report.failure = error
            return .denied
        }
        // Other renewals may have waited for a place at the provider together with this one.
        var heeded: ProviderHealth.Aspects = admitted == call.shown ? [] : .fault
        if mayBeHeldBack, trial != call.circuit { heeded.insert(.circuit) }
        switch await renewer.gate.admit(call, of: tenant, heeding: heeded) {
        case .yes(let isTrial): if isTrial { trial = call.circuit }
        case .no(let error, let isSparing):
            (report.failure, report.isSparing) = (error, isSparing)
            return .denied
        }
        admitted = call.shown
        if attempt.isUncertain, call.grant.spendsRefreshToken {
            renewer.log.warning("refresh_outcome_unknown", request.logFields + [.provider(call.server.preset)])
            renewer.metrics.repeatedAfterUnknownOutcome(provider: call.server.preset.name)
        }
        (trial, isMoved) = (nil, false)
        asked += 1
        let (answer, trace, isAnswered) = try await lease.whileExtending(attempt, basis) {
            () async throws(BrokerError) in
            let start = self.renewer.time.monotonic
            var outcome = await self.endpoint.send(call, limit: limit)
            if outcome.trace == .none, outcome.answer.isMisdirected { await self.follow(call, basis) }
            if self.isMoved { return outcome }
            outcome.answer = await self.compared(outcome.answer, to: call, basis, sentAt: start)
            return outcome
        }
        if isAnswered { report.lastAnswer = .other }
        return await outcome(of: answer, to: call, trace: mayBeSpent(by: call) ? trace : .none, basis)
    }

    /// Finds out where to ask now, after an answer of a token endpoint that may have moved.
    private func follow(_ call: TokenEndpoint.Call, _ basis: RenewalBasis) async {
        guard !hasFollowed, basis.grant != .upgrade else { return }
        hasFollowed = true
        let held = basis.spendsRefreshToken ? basis.held : nil
        let asking = held.map(tenant.ofClient) ?? tenant
        guard await renewer.providers.moves.server(insteadOf: call.server, of: asking) != nil else { return }
        let earlier = server
        server = nil
        // The refresh token may be for the earlier address only.
        guard let found = try? await findServer(basis) else {
            server = earlier
            return
        }
        (server, prepared, isMoved) = (found, nil, true)
    }

    /// Whether a call whose answer is lost may have spent the refresh token.
    private func mayBeSpent(by call: TokenEndpoint.Call) -> Bool {
        call.grant.spendsRefreshToken && tenant.configuration.effectiveRotation != .never
    }

    /// Creates an account by several calls, each of which is made once.
    private func createAccount(
        _ basis: RenewalBasis, _ attempt: RenewalAttempt, extending lease: RenewalLease
    ) async -> RenewalAttempt.Outcome {
        do throws(BrokerError) {
            guard let server else { return .denied }
            let response = try await lease.whileExtending(attempt, basis) { () async throws(BrokerError) in
                try await self.renewer.providers.accounts.grant(
                    by: .creation, for: self.tenant.configuration.client, of: self.tenant.name, at: server,
                    as: self.request.refreshID)
            }
            granted = (response, .accountCreation)
            return .granted
        } catch {
            report.failure = error
            return .denied
        }
    }

    /// The next call. An upgrade that the provider has refused because the session has ended is followed by one ordinary
    /// refresh, with the registration that the session was obtained with. Where that is refused, too, the session has ended.
    /// - Returns: nil where there is nothing to ask any more.
    private func call(
        at server: AuthorizationServer, _ basis: RenewalBasis, _ attempt: RenewalAttempt
    ) throws(BrokerError) -> TokenEndpoint.Call? {
        let client = basis.client(of: tenant)
        if basis.grant == .upgrade, attempt.calls > tenant.configuration.schedule.tries {
            guard isUpgradeDead, let held = basis.held, let refreshToken = held.refreshToken,
                let earlier = client.asRegistered(by: held.obtainedWith)
            else { return nil }
            return try endpoint.prepare(
                .refresh(refreshToken), for: earlier, of: tenant.name, at: server, as: request.refreshID)
        }
        if let prepared { return prepared }
        let call = try endpoint.prepare(
            try tokenRequest(basis), for: client, of: tenant.name, at: server, as: request.refreshID)
        prepared = call
        return call
    }

    private func tokenRequest(_ basis: RenewalBasis) throws(BrokerError) -> TokenRequest {
        switch (basis.grant, basis.held?.refreshToken, tenant.configuration.preset.upgradeGrant) {
        case (.refreshToken, let refreshToken?, _):
            // An imported set may have no access token yet.
            let accessToken = basis.held.flatMap { $0.accessToken.isEmpty ? nil : $0.accessToken } ?? refreshToken
            return basis.held?.awaitsExchange == true && server?.own?.exchange != nil
                ? .exchange(accessToken: accessToken, refreshToken: refreshToken)
                : .refresh(refreshToken, accessToken: accessToken)
        case (.upgrade, let refreshToken?, let grantType?): return .upgrade(refreshToken, grantType: grantType)
        case (.clientCredentials, _, _): return .clientCredentials
        default: throw BrokerError(.internalError, "A renewal was decided on that no request exists for.")
        }
    }

    // MARK: The answer

    private func outcome(
        of answer: TokenEndpoint.Answer, to call: TokenEndpoint.Call, trace: TokenEndpoint.Trace, _ basis: RenewalBasis
    ) async -> RenewalAttempt.Outcome {
        let isUpgrade = request.isUpgrade(basis) && call.grant == basis.grant
        report.failure = answer.error ?? report.failure
        isUpgradeDead = false
        isAskedToWait = false
        if isMoved { return .notAsked(.scheduled) }
        var retry = RenewalAttempt.Retry.scheduled
        switch answer {
        case .granted(let response):
            accepted = call.shown
            granted = (response, call.grant)
            if call.grant.spendsRefreshToken { renewer.waves.noteRenewed(tenant, from: basis.snapshot.record) }
            health.lift(user(of: call))
            return .granted
        case .rotated(_, let refreshToken):
            accepted = call.shown
            // A provider that repeats the refresh token has not replaced it.
            if refreshToken == basis.held?.refreshToken { break }
            // To be stored before anything else: the next renewal presents it.
            successor = refreshToken
            return .granted
        case .sessionEnded(let refusal, _):
            isUpgradeDead = isUpgrade
            accepted = call.shown
            if isUpgrade { return .notAsked(.scheduled) }
            return await endsSession(refusal, basis) ? .sessionEnded : .denied
        case .refused, .refusedUnclearly, .clientRefused:
            // No failure of an upgrade is final.
            if isUpgrade { break }
            if case .refusedUnclearly(_, let refused) = answer, refused.error == nil {
                report.lastAnswer = .unexplained(status: refused.status)
            }
            if case .clientRefused(let error, let scope) = answer {
                if await isOutdated(refusedWith: error.errorCode) { return .denied }
                let isEarlier = basis.grant == .refreshToken && call.client.clientID != tenant.terms.client.clientID
                let error = isEarlier ? RefusalAdvice.ofEarlierClient(error) : error
                var failure = error.retrying(after: ClientFault.pause)
                renewer.metrics.clientRefused(provider: call.server.preset.name)
                failure.since = await renewer.clientFaults.note(error, scope, of: call.shown, tenant)
                report.failure = failure
            }
            return trace == .none ? .denied : trace == .spent ? .unknown(.never) : .unanswered(.never)
        case .rateLimited(_, let wait):
            guard isUpgrade || limits.allow(wait) else {
                pause(call, for: wait)
                return trace == .none ? .denied : .unknown(.never)
            }
            retry = self.retry(after: wait, call, trace)
            if !isUpgrade { pause(call, for: wait) }
        case .again(_, let wait):
            retry = wait.map { self.retry(after: $0, call, trace) } ?? .scheduled
            if !isLeftAlone(trace), let outage = health.outage(call.circuit) {
                // The call was the circuit's trial, or has opened it. No caller waits for a provider that answers no calls. A
                // token that may be spent is presented again in the background (`LeaseRecovery`), while the grace lasts.
                (report.failure, report.isSparing, retry) = (outage, true, .never)
            }
        }
        return switch trace {
        case .none: .notAsked(retry)
        case .spent: .unknown(retry)
        case .underWay: .unanswered(retry)
        }
    }

    /// Whether only this attempt can save a refresh token that its calls may have spent.
    private func isLeftAlone(_ trace: TokenEndpoint.Trace) -> Bool { request.isPresentation && trace != .none }

    /// Whether the wait that the provider asks for is waited. The waits of one renewal are together no longer than the longest one,
    /// since callers wait for it. A token that may be spent is then presented again in the background (`LeaseRecovery`), where no
    /// caller waits, and where such a token has all waits of the schedule.
    private func retry(
        after wait: Duration, _ call: TokenEndpoint.Call, _ trace: TokenEndpoint.Trace
    ) -> RenewalAttempt.Retry {
        if wait <= BackoffSchedule.longestWait {
            // For the user's later renewals, if this one ends before.
            health.pauseAlone(user(of: call), for: wait)
            let isRescue = trace != .none && request.urgency != .caller
            let next = tenant.configuration.schedule.wait(before: asked, retryAfter: wait) ?? wait
            guard next <= patience || isRescue else { return .never }
            isAskedToWait = true
            return .notBefore(wait)
        }
        health.pauseAll(call.pause, for: wait)
        return .never
    }

    /// Has renewals leave the provider alone that has asked for it.
    private func pause(_ call: TokenEndpoint.Call, for wait: Duration) {
        health.pause(user(of: call), for: wait)
    }

    private func user(of call: TokenEndpoint.Call) -> ProviderClient.User { ProviderClient.User(id, of: call.pause) }

    /// Whether the provider's answer ends the session. If an earlier call whose answer was lost may have spent the refresh
    /// token, the refusal need not be the provider's or the user's will; events and metrics tell that apart.
    private func endsSession(_ answer: TokenErrorResponse, _ basis: RenewalBasis) async -> Bool {
        guard let held = basis.held, await !isOutdated(refusedWith: answer.errorCode) else { return false }
        // A refusal of another client than the one that the user logged in with says nothing about the session.
        let client = basis.grant == .upgrade ? held.obtainedWith : basis.client(of: tenant).fingerprint
        guard held.isEnded(by: answer, refreshedBy: client) else {
            report.failure = BrokerError(
                .unexpectedError,
                "The provider refused to refresh credentials that were obtained with an earlier client_secret. "
                    + "Configure that again, or have the user log in anew.", errorCode: answer.errorCode)
            return false
        }
        ending = answer
        return true
    }

    /// Whether a refusal is to have no effect because the tenant was configured anew meanwhile: the provider may have refused
    /// the old secret.
    private func isOutdated(refusedWith errorCode: String?) async -> Bool {
        do throws(BrokerError) {
            if try await renewer.isCurrent(tenant) { return false }
            report.isSuperseded = true
            report.failure = BrokerError(.conflict, "The configuration was replaced meanwhile.", errorCode: errorCode)
        } catch {
            report.failure = error
        }
        return true
    }

    /// Compares an answer that names no cause, or may mean several things, with those to made-up grants: before it ends the
    /// session, and where it has come for a while and an operator is to be told what it means.
    private func compared(
        _ answer: TokenEndpoint.Answer, to call: TokenEndpoint.Call, _ basis: RenewalBasis,
        sentAt sent: MonotonicInstant
    ) async -> TokenEndpoint.Answer {
        let trials = renewer.providers.trials
        switch answer {
        case .sessionEnded(let refusal, let status) where refusal.error == nil:
            let refused = RefusedAnswer(status: status, refusal)
            switch await trials.result(of: refused, to: call.client, of: tenant, at: call.server, sentAt: sent) {
            case .aboutGrant: return answer
            case .aboutClient: return .clientRefused(TokenEndpoint.refusedClient(refusal), .client)
            case .aboutNothing:
                report.logProvesNothing(refused, at: call.server)
                return .refused(RefusalAdvice.provesNothing(refused, retryAfter: ClientTrials.validity))
            case .later(let wait): return TokenEndpoint.rateLimited(for: wait, at: renewer.time.now)
            case .unanswered: return .again(TokenEndpoint.retryable(nil, after: nil), retryAfter: nil)
            }
        case .refusedUnclearly(let error, let refused):
            // Nothing depends on it but what a caller is told.
            guard request.urgency == .caller, await report.hasLasted(error, basis) else { return answer }
            switch await trials.explanation(of: refused, to: call.client, of: tenant, at: call.server, sentAt: sent) {
            case .aboutGrant:
                report.isCompared = true
                return .refusedUnclearly(RefusalAdvice.ofGrant(refused, error), refused)
            case .aboutClient:
                return .clientRefused(TokenEndpoint.refusedClient(errorCode: error.errorCode), .client)
            case .aboutNothing:
                report.isCompared = true
                report.logProvesNothing(refused, at: call.server)
                return .refusedUnclearly(RefusalAdvice.ofNothing(refused, error), refused)
            case .later, .unanswered: return answer
            }
        default: return answer
        }
    }

    /// Ends the fault of a client that the provider has accepted, so that it is asked for all users again.
    func liftFault() async {
        if let accepted { await renewer.clientFaults.lift(accepted, of: tenant) }
    }

    // MARK: Between two calls

    /// Waits before a further call, and for as long as the provider has asked other calls to wait, unless the refresh token may
    /// be spent: a provider accepts a spent token again only for a short time. A provider that answers again is called at once,
    /// unless it has asked for the wait.
    func pause(
        _ duration: Duration, _ basis: RenewalBasis, _ attempt: RenewalAttempt, extending lease: RenewalLease
    ) async -> RenewalAttempt.Outcome {
        let start = renewer.time.monotonic
        defer { waited += start.duration(to: renewer.time.monotonic) }
        let latest = start.advanced(by: max(duration, patience))
        var wait = duration
        do throws(BrokerError) {
            return try await lease.whileExtending(attempt, basis) { () async throws(BrokerError) in
                while true {
                    if !attempt.isUncertain, let prepared = self.prepared {
                        wait = try self.endpoint.wait(
                            wait, heeding: ProviderClient.User(self.id, of: prepared.pause),
                            atMost: self.renewer.time.monotonic.duration(to: latest))
                    }
                    if await self.isStopped(after: wait, attempt) { return .stopped }
                    if wait <= .zero { return .waited }
                    wait = .zero
                }
            }
        } catch {
            report.failure = error
            return .denied
        }
    }

    /// Whether the broker is draining. Then another replica, or the next process, makes the calls that are left, and sooner
    /// than this process could. A token of a presentation that may be spent is presented until the work is cut short.
    private func isStopped(after duration: Duration, _ attempt: RenewalAttempt) async -> Bool {
        let (draining, time) = (renewer.draining, renewer.time)
        let goesOn = request.isPresentation && attempt.isUncertain
        if goesOn {
            if duration > .zero { try? await time.sleep(for: duration) }
        } else if duration > .zero {
            let recovery = isAskedToWait ? nil : prepared?.circuit
            let recoveries = health.recoveries
            let ticket = recovery.map { recoveries.ticket($0) }
            await draining.wait(for: 0, since: draining.ticket(0)) {
                guard let recovery, let ticket else {
                    try? await time.sleep(for: duration)
                    return
                }
                await recoveries.wait(for: recovery, since: ticket) { try? await time.sleep(for: duration) }
            }
        }
        if goesOn ? !Task.isCancelled : !report.isStopping { return false }
        report.failure = .shuttingDown
        return true
    }
}

extension ClientConfiguration {
    /// The registration that credentials were obtained with; nil where its secret is not known any more.
    fileprivate func asRegistered(by earlier: ClientFingerprint) -> ClientConfiguration? {
        let isKnown = earlier.clientID == clientID || earlier.clientSecretDigest == fingerprint.clientSecretDigest
        if !isKnown, earlier.clientSecretDigest != nil { return nil }
        return ClientConfiguration(
            clientID: earlier.clientID, clientSecret: isKnown ? clientSecret : nil,
            clientUniqueKey: earlier.clientUniqueKey, scopes: earlier.scopes, material: isKnown ? material : nil)
    }
}
