internal import CredentialStore
internal import HTTPCodec
internal import OAuth
internal import Reactor
internal import Renewal
internal import Waiting

/// One attempt to renew one set of credentials: carries out the steps that `RenewalAttempt` decides on.
///
/// It starts from what is in memory where every change of that would have been heard of: the lease is given on exactly
/// that version, so that the claim tells what a look would have told. Where it is refused, what is stored is read.
final class RenewalRun {
    typealias Renewed = CredentialsRenewer.Renewed

    let renewer: CredentialsRenewer
    let id: CredentialsID
    let tenant: Tenant
    let query: CredentialsQuery
    let urgency: ProviderBudget.Urgency
    let refreshID = RefreshID()
    /// The name under which it holds the lease.
    var holder: String
    var attempt: RenewalAttempt
    /// What the attempt's lengths of time are counted from.
    let beginning: MonotonicInstant
    private var stepBegan: Duration = .zero
    /// The last extension of its lease.
    let extended = LeaseKeeper.Extension()
    /// How long a statement may hang that stands between the provider and a further call within its grace.
    static let statementLimit: Duration = .seconds(1)

    // MARK: What the last look found

    var current = CredentialsSnapshot.nothing
    var decision = CredentialsDecision.missing
    /// What the provider is asked for; nil where it is not asked.
    var grant: TokenRequest.Grant?
    /// What is in memory, before it was used.
    private var assumed: CredentialsSnapshot?
    /// Whether the last look was at what is in memory. Until a claim shows that this is what is stored, the run is one
    /// that no listener and no log is told of.
    private var isAssumed = false
    /// The holder of a lease that only tells of a failure.
    var failedHolder: String?
    private var standingLease: Lease?
    private var reachableFor: Duration = .seconds(1 << 32)
    private var ticket: KeyedSignal<CredentialsID>.Ticket
    private var waitedSince: MonotonicInstant?

    // MARK: What became of it

    var claim = Claim.notMade
    /// What the provider is asked with; nil before it is.
    var server: AuthorizationServer?
    var request: TokenEndpoint.Call?
    /// What the provider granted, and by which kind of request.
    var granted: (response: TokenResponse, grant: TokenRequest.Grant)?
    /// What ended the session.
    var ending: Ending?
    /// What the last call, or the store, failed with.
    var failure: BrokerError?
    /// Whether the last call is one that the schedule tries again, so that all tries have failed where it was the last.
    var isToTryAgain = false
    /// Whether the last upgrade was refused because the session has ended.
    var isUpgradeDead = false

    /// Whether a newer configuration of the tenant is to decide.
    var isSuperseded = false
    /// What the provider's last answer was; nil where it has given none.
    var lastAnswer: LastAnswer?
    /// The last request that the provider may be sent although it may not have accepted the client before.
    private var admitted: ClientUse?
    /// The last request by which the provider has accepted the client.
    var accepted: ClientUse?

    enum Claim { case notMade, made, failed }

    /// - Parameter assumed: what is in memory, where every change of it would have been heard of.
    init(
        _ renewer: CredentialsRenewer, _ id: CredentialsID, of tenant: Tenant, _ query: CredentialsQuery,
        _ urgency: ProviderBudget.Urgency, assuming assumed: CredentialsSnapshot?
    ) {
        self.renewer = renewer
        self.id = id
        self.tenant = tenant
        self.query = query
        self.urgency = urgency
        self.assumed = assumed
        holder = renewer.holders.begin(refreshID)
        beginning = renewer.time.monotonic
        ticket = renewer.records.changes.ticket(id)
        attempt = RenewalAttempt(rules: renewer.rules(for: nil, of: tenant), waits: urgency == .caller)
    }

    /// Whether it is one that is told of.
    private var counts: Bool { !isAssumed || claim == .made }

    var elapsed: Duration { beginning.duration(to: renewer.time.monotonic) }

    func run() async -> Result<Renewed, BrokerError> {
        let start = renewer.time.monotonic
        var hasHandedOver = false
        defer {
            if !hasHandedOver { renewer.holders.end(holder) }
            if let waitedSince { renewer.metrics.waitedForLease(waitedSince.duration(to: renewer.time.monotonic)) }
        }
        var step = next(.begun)
        while true {
            switch step {
            case .read:
                switch await look() {
                case .success(let standing): step = next(.stands(standing))
                case .failure(.storeAway(let error)):
                    failure = error
                    step = next(.storeAway)
                case .failure(.ended(let result)): return result
                }
            case .wait(let duration):
                guard await wait(duration) else {
                    return .failure(BrokerError(.retryableError, "The broker is shutting down.", retryAfter: 1))
                }
                step = next(.waited)
            case .claim:
                if decision == .retire { return finish(await retire(), since: start) }
                do throws(BrokerError) {
                    guard let later = try await converse(step) else { return .success(.overtaken) }
                    step = later
                } catch {
                    return finish(.failure(error), since: start)
                }
            case .publish:
                let (result, isHandedOver) = await publish(step)
                hasHandedOver = isHandedOver
                await liftFault()
                return finish(result, since: start)
            case .publishEnd:
                let result = await publishEnd()
                await liftFault()
                return finish(result, since: start)
            case .release(let version, let release):
                await letGo(over: version, release)
                step = next(.stored)
            case .handOver(let version, let isOpen): step = next(await handOver(version, isOpen))
            case .finish(let result): return finish(await conclude(result), since: start)
            case .ask, .pause, .keep: preconditionFailure("\(step) outside of a conversation")
            }
        }
    }

    func next(_ outcome: RenewalAttempt.Outcome) -> RenewalAttempt.Step {
        let now = elapsed
        defer { stepBegan = now }
        if let sent = extended.last { attempt.leaseExtended(asked: beginning.duration(to: sent)) }
        return attempt.next(
            outcome, now: now, asked: stepBegan, storeReachableFor: reachableFor,
            storeHasGoneBack: renewer.records.rollback.remainingHold != nil)
    }

    // MARK: Looking

    private enum LookFailure: Error {
        case storeAway(BrokerError)
        /// Nothing is to be attempted.
        case ended(Result<Renewed, BrokerError>)
    }

    private func look() async -> Result<RenewalAttempt.Standing, LookFailure> {
        let records = renewer.records
        // What is asked, and where, follows from what is found.
        (server, request) = (nil, nil)
        ticket = records.changes.ticket(id)
        if records.unpublished(id) != nil {
            // The store has the spent refresh token, and only the one in the journal is any good.
            guard await renewer.publisher.isPublished(id, since: ticket) else {
                return .failure(.ended(.failure(BrokerError(StoreError.unavailable))))
            }
            return .failure(.ended(.success(.overtaken)))
        }
        if let snapshot = assumed {
            assumed = nil
            (current, standingLease, failedHolder, isAssumed) = (snapshot, nil, nil, true)
            decision = renewer.decider.decide(snapshot, tenant, query, id)
            grant = decision.grant
            if grant != nil, snapshot.version > 0 {
                if let obstacle = obstacle() { return .failure(.ended(.failure(obstacle))) }
                attempt.rules = renewer.rules(for: grant, of: tenant)
                return .success(standing(isDue: true, nil))
            }
        }
        isAssumed = false
        do throws(StoreError) {
            (current, standingLease) = try await readStanding()
            if renewer.needsRow(current, renewer.decider.decide(current, tenant, query, id)) {
                current = try await records.write(
                    CredentialRecord(held: nil), id, over: current, tenantVersion: tenant.version
                ) { _ in [] }
            }
        } catch .conflict {
            // The record, or another tenant of the same name, came to be just now.
            return .failure(.ended(.success(.overtaken)))
        } catch {
            records.report(error, id)
            return .failure(.storeAway(BrokerError(error)))
        }
        return await stand()
    }

    /// How often a read is made that hangs: as long as one statement may hang in all.
    private static let reads = 5

    /// Reads what is stored and the lease on it. While the provider's grace runs, one statement that hangs must not take
    /// the rest of it, and another statement may use another connection.
    private func readStanding() async throws(StoreError) -> (snapshot: CredentialsSnapshot, lease: Lease?) {
        let (records, id) = (renewer.records, id)
        // A renewal that nothing has begun before presents a token that is not spent yet.
        let maySucceedAnother = waitedSince != nil || urgency == .background && query.policy != .localForceRefresh
        guard maySucceedAnother else { return try await records.standing(id) }
        for _ in 1..<Self.reads {
            let start = renewer.time.monotonic
            do throws(StoreError) {
                return try await records.within(Self.statementLimit) { () async throws(StoreError) in
                    try await records.standing(id)
                }
            } catch {
                let hung = start.duration(to: renewer.time.monotonic) >= Self.statementLimit
                guard error == .unavailable, hung, !Task.isCancelled else { throw error }
            }
        }
        return try await records.standing(id)
    }

    /// What was read, as the attempt sees it.
    private func stand() async -> Result<RenewalAttempt.Standing, LookFailure> {
        var lease = standingLease
        failedHolder = nil
        if let standing = lease, standing.isSettled { (failedHolder, lease) = (standing.holder, nil) }
        let isGone = lease.map { renewer.holders.isGone($0.holder) } ?? false
        decision = renewer.decider.decide(current, tenant, query, id)
        grant = decision.grant
        if grant == nil, decision != .retire || lease == nil {
            guard decision != .retire else { return .success(standing(isDue: true, nil)) }
            guard let lease, lease.hasRunOut || isGone else { return .failure(.ended(.success(.overtaken))) }
            guard let recovery = renewer.recovery(of: current, lease, tenant, id) else {
                await renewer.rest(lease, id, current, tenant)
                return .failure(.ended(.success(.overtaken)))
            }
            (decision, grant) = (recovery, recovery.grant)
        }
        // A refresh token is not put away while another replica may be exchanging it; the rest needs no lease.
        if decision == .retire, current.record.held?.refreshToken == nil { lease = nil }
        if let obstacle = obstacle() { return .failure(.ended(.failure(obstacle))) }
        attempt.rules = renewer.rules(for: grant, of: tenant)
        if let lease, !isGone || lease.isOpen { reachableFor = await renewer.records.reachableFor() }
        return .success(standing(isDue: true, lease.map(renewer.holders.standing)))
    }

    private func standing(isDue: Bool, _ lease: StandingLease?) -> RenewalAttempt.Standing {
        var rest: Duration = .zero
        if grant?.spendsRefreshToken == true, let from = current.record.held?.refreshableFrom {
            rest = renewer.time.now.duration(to: from)
            // No call leaves more to wait for: the clock that the record was written by was another.
            if rest > renewer.providers.callLimit * 2 { rest = .zero }
        }
        return RenewalAttempt.Standing(version: current.version, isDue: isDue, lease: lease, rest: rest)
    }

    /// Why the provider is not asked: another replica's attempt has failed a moment ago, or the provider does not accept the
    /// client. Nil where it may be asked.
    private func obstacle() -> BrokerError? {
        if let grant, let lease = standingLease, let failure = lease.failure, !renewer.holders.isOwn(lease.holder),
            let error = renewer.failures.read(
                failure, id, current.version, grant, isUpgrade: decision.isUpgrade, of: tenant,
                renewer.time.monotonic), urgency == .caller
        {
            return error
        }
        return clientFault()
    }

    /// Waits for another replica, which ends its renewal by telling so, or whose lease runs out.
    /// - Returns: false where the process is about to end.
    private func wait(_ duration: Duration) async -> Bool {
        waitedSince = waitedSince ?? renewer.time.monotonic
        let (records, time) = (renewer.records, renewer.time)
        let pause = min(duration, CredentialsRecords.changeInterval)
        await records.changes.wait(for: id, since: ticket) { try? await time.sleep(for: pause) }
        return !Task.isCancelled
    }

    // MARK: Asking the provider

    /// Takes a place at the provider and the lease, in that order, and asks until there is something to store or to give up.
    /// - Returns: the step that follows; nil where there is nothing to ask any more.
    private func converse(_ first: RenewalAttempt.Step) async throws(BrokerError) -> RenewalAttempt.Step? {
        guard let server = try await serverToAsk() else { return nil }
        self.server = server
        let spends = grant?.spendsRefreshToken == true
        if spends { try await renewer.records.waitForOthersAfterRollback(id, current.version) }
        do throws(BrokerError) {
            let client = tenant.configuration.client
            return try await renewer.providers.endpoint.budget.withPlace(
                for: client, at: server, of: tenant.name, urgency, mayWait: !isAssumed,
                // A provider forgives a spent token that comes again only for a short time.
                heedsPause: !(spends && attempt.isUncertain && attempt.isWithinGrace(at: elapsed))
            ) { () async throws(BrokerError) in
                var step = first
                while true {
                    switch step {
                    case .claim(let version, let over, let overdue, let isOpen):
                        step = self.next(
                            await self.takeLease(on: version, over: over, overdue: overdue, isOpen: isOpen))
                        // The claim may have been the first to meet a store that has gone back.
                        if spends, case .ask = step, self.renewer.records.rollback.remainingHold != nil {
                            self.isSuperseded = true
                            self.failure = BrokerError(.retryableError, "The store has gone back.")
                            step = self.next(.withheld)
                        }
                    case .ask(let latest, let limit):
                        if self.elapsed > latest {
                            self.failure = BrokerError(StoreError.unavailable)
                            step = self.next(.tooLate)
                        } else {
                            step = self.next(try await self.ask(limit: limit))
                        }
                    case .pause(let duration): step = self.next(await self.pause(duration))
                    default: return step
                    }
                }
            }
        } catch {
            if isAssumed, claim == .notMade {
                // Whether memory is right is to be known before a caller hears of a failure or waits for a place.
                return next(.refused)
            }
            throw decision.isUpgrade ? error.asFailedUpgrade : error
        }
    }

    /// Where to ask; nil where what is held may not be shown there, or where only a newer configuration may decide.
    private func serverToAsk() async throws(BrokerError) -> AuthorizationServer? {
        if let server { return server }
        // A replica with an old configuration would carry the session back.
        if decision.isUpgrade, try await !renewer.isCurrent(tenant) { return nil }
        do throws(BrokerError) {
            guard let held = current.record.held, grant?.spendsRefreshToken == true else {
                return try await renewer.providers.servers.server(for: tenant)
            }
            return try await renewer.providers.servers.server(for: tenant, holding: held)
        } catch {
            throw decision.isUpgrade ? error.asFailedUpgrade : error
        }
    }

    private func ask(limit: Duration) async throws(BrokerError) -> RenewalAttempt.Outcome {
        let call: TokenEndpoint.Call
        do throws(BrokerError) {
            guard let server, let next = try self.call(at: server) else { return .denied }
            call = next
        } catch {
            failure = error
            return .denied
        }
        if admitted != call.shown {
            // Others may have waited for a place together with this one.
            if let error = await renewer.clientFaults.admit(call.shown, of: tenant) {
                failure = error
                return .denied
            }
            admitted = call.shown
        }
        if attempt.isUncertain, call.grant.spendsRefreshToken {
            renewer.log.warning(
                "refresh_outcome_unknown",
                LogField.credentials(id) + [.refresh(refreshID), .provider(call.server.preset)])
            renewer.metrics.repeatedAfterUnknownOutcome(provider: call.server.preset.name)
        }
        let (answer, trace, isAnswered) = try await keepingLease { () async throws(BrokerError) in
            let start = self.renewer.time.monotonic
            var outcome = await self.renewer.providers.endpoint.send(call, limit: limit)
            if case .sessionEnded(let refusal) = outcome.answer, refusal.error == nil {
                outcome.answer = await self.ending(by: refusal, of: call, sentAt: start)
            }
            return outcome
        }
        if isAnswered { lastAnswer = .other }
        return await outcome(of: answer, to: call, trace: call.grant.spendsRefreshToken ? trace : .none)
    }

    private func outcome(
        of answer: TokenEndpoint.Answer, to call: TokenEndpoint.Call, trace: TokenEndpoint.Trace
    ) async -> RenewalAttempt.Outcome {
        let isUpgrade = decision.isUpgrade && call.grant == grant
        failure = answer.error ?? failure
        (isUpgradeDead, isToTryAgain) = (false, false)
        var retry = RenewalAttempt.Retry.scheduled
        switch answer {
        case .granted(let response)
        where call.grant.spendsRefreshToken && current.record.held?.isOfOtherUser(than: response) == true:
            renewer.log.error(
                "subject_changed", LogField.credentials(id) + [.refresh(refreshID), .provider(call.server.preset)])
            renewer.metrics.subjectChanged(provider: call.server.preset.name)
            (ending, accepted) = (.otherUser, call.shown)
            return .sessionEnded
        case .granted(let response):
            if call.grant.spendsRefreshToken, current.record.held?.learnsSubject(from: response) == true {
                renewer.log.info(
                    "subject_adopted", LogField.credentials(id) + [.refresh(refreshID), .provider(call.server.preset)])
            }
            granted = (response, call.grant)
            accepted = call.shown
            return .granted
        case .sessionEnded(let refusal):
            isUpgradeDead = isUpgrade
            accepted = call.shown
            if isUpgrade { return .notAsked(.scheduled) }
            return await endsSession(refusal) ? .sessionEnded : .denied
        case .refused, .refusedWithoutCause, .clientRefused:
            // No failure of an upgrade is final.
            if isUpgrade { break }
            if case .refusedWithoutCause(_, let status) = answer { lastAnswer = .unexplained(status: status) }
            if case .clientRefused(let error, let scope) = answer {
                if await isOutdated(refusedWith: error.errorCode) { return .denied }
                failure = error.retrying(after: ClientFault.pause)
                renewer.metrics.clientRefused(provider: call.server.preset.name)
                failure?.since = await renewer.clientFaults.note(error, scope, of: call.shown, tenant)
            }
            return trace == .none ? .denied : trace == .spent ? .unknown(.never) : .unanswered(.never)
        case .rateLimited(_, let wait):
            guard isUpgrade else {
                renewer.providers.endpoint.budget.pauses.pause(call.pause, for: wait, now: renewer.time.monotonic)
                return .denied
            }
            retry = self.retry(after: wait, call)
        case .again(_, let wait):
            retry = wait.map { self.retry(after: $0, call) } ?? .scheduled
            isToTryAgain = retry != .never
        }
        return switch trace {
        case .none: .notAsked(retry)
        case .spent: .unknown(retry)
        case .underWay: .unanswered(retry)
        }
    }

    private func retry(after wait: Duration, _ call: TokenEndpoint.Call) -> RenewalAttempt.Retry {
        if wait <= BackoffSchedule.longestWait { return .notBefore(wait) }
        renewer.providers.endpoint.budget.pauses.pause(call.pause, for: wait, now: renewer.time.monotonic)
        return .never
    }

    /// Waits before a further call, and for what the provider has asked other calls for, unless the refresh token may be
    /// spent: a provider forgives one that comes again only for a short time.
    private func pause(_ duration: Duration) async -> RenewalAttempt.Outcome {
        let latest = renewer.time.monotonic.advanced(by: max(duration, BackoffSchedule.longestWait))
        var wait = duration
        do throws(BrokerError) {
            return try await keepingLease { () async throws(BrokerError) in
                while true {
                    if !self.attempt.isUncertain, let request = self.request {
                        wait = try self.renewer.providers.endpoint.wait(
                            wait, heeding: request.pause, atMost: self.renewer.time.monotonic.duration(to: latest))
                    }
                    if await self.isStopped(after: wait) { return .stopped }
                    if wait <= .zero { return .waited }
                    wait = .zero
                }
            }
        } catch {
            (failure, isToTryAgain) = (error, false)
            return .denied
        }
    }

    /// Whether the broker is about to stop: then another replica, or the next process, makes the calls that are left, and
    /// sooner than this one could.
    private func isStopped(after duration: Duration) async -> Bool {
        let (stop, time) = (renewer.stop, renewer.time)
        if duration > .zero { await stop.wait(for: 0, since: stop.ticket(0)) { try? await time.sleep(for: duration) } }
        if !Task.isCancelled, !stop.isClosed { return false }
        failure = BrokerError(.retryableError, "The broker is shutting down.", retryAfter: 1)
        return true
    }

    // MARK: The end

    private func finish(
        _ result: Result<Renewed, BrokerError>, since start: MonotonicInstant
    ) -> Result<Renewed, BrokerError> {
        if case .failure = result, decision == .refresh(isEarly: true), counts || claim == .failed {
            // A store that takes nothing makes callers wait as a provider does that does not answer.
            renewer.decider.pauseEarlyRenewal(id, of: current.version, for: CredentialsDecider.pauseAfterEarlyFailure)
        }
        if counts, claim != .notMade || decision == .retire || result.isFailure {
            report(result, took: start.duration(to: renewer.time.monotonic))
        }
        return result
    }
}

extension Result {
    fileprivate var isFailure: Bool {
        if case .failure = self { return true }
        return false
    }
}
