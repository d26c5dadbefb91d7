internal import CredentialStore
internal import OAuth
internal import Reactor
internal import Renewal

/// One attempt to renew one set of credentials: carries out the steps that `RenewalAttempt` decides on.
///
/// It starts from the cache entry where a change of that would have been reported: the claim of the lease names the version,
/// so that it succeeds only if the store has the same version. Otherwise the run reads the store.
final class RenewalRun {
    typealias Renewed = CredentialsRenewer.Renewed

    private let renewer: CredentialsRenewer
    private let request: RenewalRequest
    private let reader: RenewalReader
    private let lease: RenewalLease
    private let calls: RenewalCalls
    private let report: RenewalReport
    private var attempt: RenewalAttempt
    private var basis = RenewalBasis()
    /// The origin of the attempt's times.
    private let beginning: MonotonicInstant
    private var stepBegan: Duration = .zero

    /// - Parameter assumed: the cache entry to start from; nil where a change of it may have been missed.
    init(_ renewer: CredentialsRenewer, _ request: RenewalRequest, assuming assumed: CredentialsSnapshot?) {
        self.renewer = renewer
        self.request = request
        report = RenewalReport(renewer, request)
        reader = RenewalReader(renewer, request, report, assuming: assumed)
        lease = RenewalLease(renewer, request)
        calls = RenewalCalls(renewer, request, report)
        beginning = renewer.time.monotonic
        attempt = RenewalAttempt(
            rules: renewer.rules(for: nil, of: request.tenant), waits: request.urgency == .caller)
    }

    private var elapsed: Duration { beginning.duration(to: renewer.time.monotonic) }

    /// Whether events and log tell of the run.
    private var isReported: Bool { !basis.isAssumed || lease.claim == .made }

    /// Whether a refusal need not be the provider's or the user's will: a call whose answer was lost may have spent the refresh
    /// token, or the store may have lost the commit that replaced it.
    private var isDoubtful: Bool {
        mayBeSpent || renewer.records.rollback.isDoubtful(basis.snapshot.version)
    }

    func run() async -> Result<Renewed, BrokerError> {
        var isHandedOver = false
        defer {
            if !isHandedOver { lease.end() }
            reader.recordWait()
        }
        var step = next(.begun)
        while true {
            switch step {
            case .read:
                calls.reset()
                switch await reader.read(&basis) {
                case .due(let standing, let rules):
                    attempt.rules = rules
                    step = next(.stands(standing))
                case .storeAway(let error):
                    report.failure = error
                    step = next(.storeAway)
                case .ended(let result): return result
                }
            case .wait(let duration):
                guard await reader.wait(duration) else {
                    return .failure(.shuttingDown)
                }
                step = next(.waited)
            case .claim:
                if basis.decision == .retire { return finish(await writer.retire()) }
                do throws(BrokerError) {
                    guard let later = try await converse(step) else { return .success(.overtaken) }
                    step = later
                } catch {
                    return finish(.failure(error))
                }
            case .publish:
                var result: Result<Renewed, BrokerError>
                (result, isHandedOver) = await writer.publish(calls, &attempt, step, since: beginning)
                await calls.liftFault()
                if case .success(.new(let snapshot, _)) = result, snapshot.record.waiting != nil {
                    result = await verify(snapshot)
                }
                return finish(result)
            case .publishEnd:
                let result = await writer.endOrHold(calls.ending, isDoubtful: isDoubtful)
                await calls.liftFault()
                return finish(result)
            case .release(let version, let release):
                await report.failed(over: version, releasing: lease, as: outcome(of: release), basis)
                await calls.liftFault()
                step = next(.stored)
            case .handOver(let version, let isOpen): step = next(await lease.handOver(version, isOpen: isOpen))
            case .finish(let result): return finish(await conclude(result))
            case .ask, .pause, .writeJournal: preconditionFailure("`converse` or the publisher carries out \(step)")
            }
        }
    }

    /// Whether a call whose answer was lost may have spent the refresh token.
    private var mayBeSpent: Bool {
        attempt.isUncertain && request.tenant.configuration.effectiveRotation != .never
    }

    /// Whether the next call may wait until the provider answers again. A refresh token that may be spent does not wait: the
    /// provider accepts it again only for a short time. But no caller waits for an earlier renewal's token to be presented
    /// again: `LeaseRecovery` does so in the background.
    private var mayBeHeldBack: Bool {
        guard basis.spendsRefreshToken, isDoubtful, attempt.isWithinGrace(at: elapsed) else { return true }
        return mayBeSpent && attempt.calls == 0 && request.urgency == .caller
    }

    private var writer: RenewalWriter { RenewalWriter(renewer, request, basis, holder: lease.holder, report) }

    private func next(_ outcome: RenewalAttempt.Outcome) -> RenewalAttempt.Step {
        let now = elapsed
        defer { stepBegan = now }
        if let sent = lease.lastExtension { attempt.leaseExtended(asked: beginning.duration(to: sent)) }
        return attempt.next(
            outcome, now: now, asked: stepBegan, storeReachableFor: reader.storeReachableFor,
            storeHasGoneBack: renewer.records.rollback.remainingHold != nil)
    }

    /// Takes a place at the provider, then the lease, and asks until there is something to store or to give up.
    /// - Returns: the step that follows; nil where there is nothing to ask any more.
    private func converse(_ first: RenewalAttempt.Step) async throws(BrokerError) -> RenewalAttempt.Step? {
        let (id, tenant, spends) = (request.id, request.tenant, basis.spendsRefreshToken)
        guard let server = try await calls.findServer(basis) else { return nil }
        if spends {
            try await renewer.records.waitForOthersAfterRollback(
                id, basis.snapshot.version,
                // A provider accepts a spent token again only for a short time, and then does not punish its use.
                heedsJournals: !(attempt.isUncertain && attempt.isWithinGrace(at: elapsed)))
        }
        do throws(BrokerError) {
            return try await renewer.providers.endpoint.budget.withPlace(
                for: basis.client(of: tenant), at: server, of: tenant.name, request.urgency,
                by: id, mayWait: !basis.isAssumed,
                // A provider accepts a spent token again only for a short time.
                heedsPause: !(spends && mayBeSpent && attempt.isWithinGrace(at: elapsed))
            ) { () async throws(BrokerError) in
                if mayBeHeldBack, let error = calls.enterCircuit(basis) { throw error }
                defer { calls.leaveCircuit() }
                var step = first
                while true {
                    switch step {
                    case .claim(let version, let over, let overdue, let isOpen):
                        step = await self.claim(version, over: over, overdue: overdue, isOpen: isOpen)
                    case .ask(let latest, let limit):
                        if self.elapsed > latest {
                            self.report.failure = BrokerError(StoreError.unavailable)
                            step = self.next(.tooLate)
                        } else {
                            let outcome = try await self.calls.ask(
                                limit: limit, self.basis, self.attempt, mayBeHeldBack: self.mayBeHeldBack,
                                extending: self.lease)
                            step = self.next(outcome)
                        }
                    case .pause(let duration):
                        let outcome = await self.calls.pause(
                            duration, self.basis, self.attempt, extending: self.lease)
                        step = self.next(outcome)
                    default: return step
                    }
                }
            }
        } catch {
            // The store is read before a caller gets a failure or waits for a place because of a cache entry.
            if basis.isAssumed, lease.claim == .notMade { return next(.refused) }
            throw request.isUpgrade(basis) ? error.asFailedUpgrade : error
        }
    }

    private func claim(
        _ version: Int64, over holder: String?, overdue: Duration, isOpen: Bool
    ) async -> RenewalAttempt.Step {
        let taken = await lease.take(
            on: version, over: holder, overdue: overdue, isOpen: isOpen, for: basis, by: attempt)
        if let failure = taken.failure { report.failure = failure }
        let step = next(taken.outcome)
        // The claim may have been the first statement to find that the store has lost commits.
        guard basis.spendsRefreshToken, case .ask = step, renewer.records.rollback.remainingHold != nil else {
            return step
        }
        report.isSuperseded = true
        report.failure = BrokerError(.retryableError, "The store has gone back.")
        return next(.withheld)
    }

    /// Verifies a grant that is stored and waits for the provider's keys.
    private func verify(_ snapshot: CredentialsSnapshot) async -> Result<Renewed, BrokerError> {
        let result = await renewer.verification.verify(
            request.id, of: request.tenant, snapshot,
            in: basis.spendsRefreshToken ? basis.grant.map(request.eventContext) : nil)
        if case .failure(let error) = result { await report.announceUnverified(error, basis) }
        return result
    }

    // MARK: The end

    private func outcome(of release: RenewalAttempt.Release) -> LeaseRelease.Outcome {
        switch release {
        case .settled: return .settled
        case .open: return .open
        case .unknown:
            // Another replica is to try at once while the provider's grace lasts.
            let pause: Duration = report.isStopping ? .zero : .seconds(1)
            return .unknown(recovery: attempt.isWithinGrace(at: elapsed + pause) ? pause : nil)
        }
    }

    /// What an attempt that ended with nothing to publish is to its callers.
    private func conclude(_ result: RenewalAttempt.Result) async -> Result<Renewed, BrokerError> {
        switch result {
        case .failed: return report.isSuperseded ? .success(.overtaken) : .failure(report.reason(basis))
        case .storeAway: return .failure(report.failure ?? BrokerError(StoreError.unavailable))
        case .busy: return .success(.overtaken)
        case .stored, .ended, .overtaken:
            if lease.claim == .made { await report.announceOvertaken(basis) }
            return .success(.overtaken)
        }
    }

    private func finish(_ result: Result<Renewed, BrokerError>) -> Result<Renewed, BrokerError> {
        var isFailure = false
        if case .failure = result { isFailure = true }
        if isFailure, basis.decision == .refresh(isEarly: true), isReported || lease.claim == .failed {
            // Callers wait for a store that takes nothing as they do for a provider that does not answer.
            renewer.failures.noteEarly(
                request.id, version: basis.snapshot.version, for: RecentFailures.earlyPause)
        }
        if isReported, lease.claim != .notMade || basis.decision == .retire || isFailure {
            report.ended(result, basis, isDoubtful: isDoubtful, took: elapsed)
        }
        return result
    }
}
