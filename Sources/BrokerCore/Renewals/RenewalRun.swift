import CredentialStore
import OAuth
import Reactor
import Renewal

/// One attempt to renew one set of credentials: carries out the steps that `RenewalAttempt` decides on, all of them in `carryOut`.
///
/// It starts from the cache entry if a change of that would have been reported: the claim of the lease names the version,
/// so that it succeeds only if the store has the same version. Otherwise the run reads the store.
struct RenewalRun {
    typealias Renewed = CredentialsRenewer.Renewed

    private enum Claim { case notMade, made, failed }

    private let renewer: CredentialsRenewer
    private var renewal: Renewal
    private var attempt: RenewalAttempt
    private var lease: OwnLease
    private var claim = Claim.notMade
    /// The place at the provider, from the first claim of a conversation to its last call; nil otherwise.
    private var place: ProviderBudget.Place?
    /// What is to be stored; nil before the provider has granted something.
    private var publication: Publication?
    /// Whether a task of the publisher stores the grant from the journal, under the run's lease.
    private var isHandedOver = false
    private var result = Result<Renewed, BrokerError>.success(.overtaken)
    /// The origin of the attempt's times.
    private let beginning: MonotonicInstant
    private var stepBegan: Duration = .zero

    init(_ renewer: CredentialsRenewer, _ renewal: Renewal) {
        self.renewer = renewer
        self.renewal = renewal
        lease = OwnLease(
            on: CredentialsRecords.recordID(renewal.id), of: renewal.id, as: renewal.refreshID, by: renewer.keeper)
        beginning = renewer.time.monotonic
        attempt = RenewalAttempt(
            rules: renewer.rules(for: nil, of: renewal.tenant), waits: renewal.urgency == .caller)
    }

    mutating func run() async -> Result<Renewed, BrokerError> {
        defer {
            leaveProvider()
            if !isHandedOver { lease.end() }
            if let since = renewal.waitingSince {
                renewer.metrics.waitedForLease(since.duration(to: time.monotonic))
            }
        }
        var outcome: RenewalAttempt.Outcome? = .begun
        while let last = outcome {
            let step = next(last)
            if !step.isAtProvider { leaveProvider() }
            outcome = await carryOut(step)
        }
        return result
    }

    /// - Returns: the outcome; nil if the run is over, with `result`.
    private mutating func carryOut(_ step: RenewalAttempt.Step) async -> RenewalAttempt.Outcome? {
        switch step {
        case .read: await read()
        case .wait(let duration): await wait(duration, step)
        case .claim(let version, let over, let overdue, let isOpen):
            await claim(version, over: over, overdue: overdue, isOpen: isOpen)
        case .ask(let latest, let limit): await ask(notAfter: latest, limit: limit)
        case .pause(let duration):
            await renewer.pause(&renewal, for: duration, by: attempt, extending: lease)
        case .publish(let version, let heedsLease): await publish(over: version, heedsLease: heedsLease)
        case .writeJournal: await writeJournal()
        case .publishEnd:
            await leaveStored(await renewer.endOrHold(renewal, isDoubtful: isDoubtful, under: lease))
        case .release(let version, let release): await giveUp(version, release)
        case .handOver(let version, let isOpen): await handOver(version, isOpen: isOpen)
        case .finish(let result): await finish(attempt: result)
        }
    }

    private mutating func next(_ outcome: RenewalAttempt.Outcome) -> RenewalAttempt.Step {
        let now = elapsed
        defer { stepBegan = now }
        if let sent = lease.lastExtension { attempt.leaseExtended(asked: beginning.duration(to: sent)) }
        return attempt.next(
            outcome, now: now, asked: stepBegan, storeReachableFor: renewal.storeReachableFor,
            storeHasGoneBack: records.rollback.remainingHold != nil)
    }

    private var records: CredentialsRecords { renewer.records }
    private var publisher: CredentialsPublisher { renewer.publisher }
    private var time: any Time { renewer.time }

    private var elapsed: Duration { beginning.duration(to: time.monotonic) }

    /// Whether events and log tell of the run.
    private var isReported: Bool { !renewal.isAssumed || claim == .made }

    /// Whether a refusal need not be the provider's or the user's will: a call whose answer was lost may have spent the refresh
    /// token, or the store may have lost the commit that replaced it.
    private var isDoubtful: Bool {
        mayBeSpent || records.rollback.isDoubtful(renewal.snapshot.version)
    }

    /// Whether a call whose answer was lost may have spent the refresh token.
    private var mayBeSpent: Bool {
        attempt.isUncertain && renewal.tenant.configuration.effectiveRotation != .never
    }

    /// Whether the next call may wait until the provider answers again. A refresh token that may be spent does not wait: the
    /// provider accepts it again only for a short time. But no caller waits for an earlier renewal's token to be presented
    /// again: `LeaseRecovery` does so in the background.
    private var mayBeHeldBack: Bool {
        guard renewal.spendsRefreshToken, isDoubtful, attempt.isWithinGrace(at: elapsed) else { return true }
        return mayBeSpent && attempt.calls == 0 && renewal.urgency == .caller
    }

    // MARK: Before the call

    private mutating func read() async -> RenewalAttempt.Outcome? {
        switch await renewer.read(&renewal) {
        case .due(let standing, let rules):
            attempt.rules = rules
            return .stands(standing)
        case .storeAway(let error):
            renewal.failure = error
            return .storeAway
        case .ended(let result): return end(with: result)
        }
    }

    private mutating func claim(
        _ version: Int64, over holder: String?, overdue: Duration, isOpen: Bool
    ) async -> RenewalAttempt.Outcome? {
        if renewal.decision == .retire { return finish(await renewer.retire(renewal)) }
        if place == nil {
            do throws(BrokerError) {
                guard let server = try await findServer() else { return end(with: .success(.overtaken)) }
                if let refusal = await enterProvider(at: server) {
                    leaveProvider()
                    // The store is read before a caller gets a failure or waits for a place because of a cache entry.
                    if renewal.isAssumed, claim == .notMade { return .refused }
                    return finish(.failure(renewal.isUpgrade ? refusal.asFailedUpgrade : refusal))
                }
            } catch {
                return finish(.failure(error))
            }
        }
        return await takeLease(on: version, over: holder, overdue: overdue, isOpen: isOpen)
    }

    private mutating func findServer() async throws(BrokerError) -> AuthorizationServer? {
        guard let server = try await renewer.findServer(&renewal) else { return nil }
        if renewal.spendsRefreshToken {
            try await records.waitForOthersAfterRollback(
                renewal.id, renewal.snapshot.version,
                // A provider accepts a spent token again only for a short time, and then does not punish its use.
                heedsJournals: !(attempt.isUncertain && attempt.isWithinGrace(at: elapsed)))
        }
        return server
    }

    /// Takes a place at the provider, before the lease, so that no replica holds a lease while it waits in a queue.
    /// - Returns: why the provider is not to be asked; nil if it may be.
    private mutating func enterProvider(at server: AuthorizationServer) async -> BrokerError? {
        do throws(BrokerError) {
            place = try await renewer.providers.endpoint.budget.takePlace(
                for: renewal.client, at: server, of: renewal.tenant.name, renewal.urgency, by: renewal.id,
                mayWait: !renewal.isAssumed,
                // A provider accepts a spent token again only for a short time.
                heedsPause: !(renewal.spendsRefreshToken && mayBeSpent && attempt.isWithinGrace(at: elapsed)))
        } catch {
            return error
        }
        return mayBeHeldBack ? renewer.enterCircuit(&renewal) : nil
    }

    /// Gives the place at the provider back, and the circuit's trial if it was not made.
    private mutating func leaveProvider() {
        guard let place = place.take() else { return }
        renewer.leaveCircuit(&renewal)
        renewer.providers.endpoint.budget.giveBack(place)
    }

    /// Takes the lease, or extends it before a further call.
    ///
    /// The first claim and the events that announce the renewal are one commit. A store that cannot be written to could not
    /// take the provider's answer either, and then the refresh token must not be spent.
    /// - Parameters:
    ///   - version: the version of the record on which the lease is taken.
    ///   - replaced: the holder whose lease is taken over; nil for none.
    ///   - overdue: for how long that lease must have run out.
    ///   - isOpen: see `RenewalAttempt.Step.claim`.
    private mutating func takeLease(
        on version: Int64, over replaced: String?, overdue: Duration, isOpen: Bool
    ) async -> RenewalAttempt.Outcome {
        let isFirst = claim != .made
        // After a call of this attempt or of another holder, the refresh token may be spent, and time is short.
        let limit = isFirst && replaced == nil ? nil : CredentialsRecords.statementLimit
        var events: [BrokerEvent] = []
        if isFirst, let grant = renewal.grant, grant.spendsRefreshToken {
            events = BrokerEvent.steps(
                [.refreshStarted, .refreshRefreshingAccessToken], of: renewal.eventContext(grant), at: time.now)
        }
        do throws(StoreError) {
            if version > 0 {
                var request = lease.claim(
                    by: attempt.rules, marksUse: renewal.spendsRefreshToken, isOpen: isOpen,
                    notAfter: limit.map { time.now.advanced(by: $0) } ?? records.claimDeadline)
                // Between two calls that both did not reach the provider nothing was used.
                request.restartsUse = attempt.calls > 0 && !attempt.isUncertain
                if isFirst || replaced != nil {
                    request.replacing = replaced ?? renewal.failedHolder
                    request.overdue = overdue
                    request.replacesStanding = replaced.map { renewer.holders.isGone($0) } ?? false
                }
                try await lease.take(request, on: version, telling: events, within: limit)
            } else {
                // Credentials that are not stored yet have no row for a lease.
                try await records.commit([], events: events, of: renewal.id, within: limit)
            }
            claim = .made
            return .claimed
        } catch .conflict {
            if attempt.calls == 0 { claim = .notMade }
            return .refused
        } catch {
            if isFirst { claim = .failed }
            // The store may have carried the claim out, or may do so yet. The lease is then that of an attempt that has ended.
            if isFirst, replaced != nil { lease.noteUnreleased() }
            records.report(error, renewal.id)
            renewal.failure = BrokerError(error)
            return .storeAway
        }
    }

    private mutating func ask(notAfter latest: Duration, limit: Duration) async -> RenewalAttempt.Outcome {
        // The claim may have been the first statement to find that the store has lost commits.
        if renewal.spendsRefreshToken, records.rollback.remainingHold != nil {
            renewal.excuse = .superseded
            renewal.failure = BrokerError(.retryableError, "The store has gone back.")
            return .withheld
        }
        if elapsed > latest {
            renewal.failure = BrokerError(StoreError.unavailable)
            return .tooLate
        }
        return await renewer.ask(
            &renewal, by: attempt, limit: limit, mayBeHeldBack: mayBeHeldBack, extending: lease)
    }

    // MARK: What was granted

    private mutating func publish(over version: Int64, heedsLease: Bool) async -> RenewalAttempt.Outcome? {
        var current: Publication
        if let begun = publication.take() {
            current = begun
        } else {
            switch await renewer.publication(of: &renewal, by: attempt, under: lease) {
            case .publication(let made): current = made
            case .ended(let result): return await leaveStored(result)
            }
        }
        let outcome = await publisher.store(&current, over: version, heedsLease: heedsLease)
        publication = current
        return outcome
    }

    private mutating func writeJournal() async -> RenewalAttempt.Outcome? {
        guard let publication, await publisher.writeJournal(publication, grace: attempt.rules.grace) else {
            return .notJournaled
        }
        return await leaveJournaled(publication, at: next(.journaled))
    }

    /// Waits for another attempt, or for a store that has not taken the grant.
    private mutating func wait(
        _ duration: Duration, _ step: RenewalAttempt.Step
    ) async -> RenewalAttempt.Outcome? {
        guard let publication else {
            guard await renewer.wait(duration, &renewal) else { return end(with: .failure(.shuttingDown)) }
            return .waited
        }
        renewer.answerCallers(renewal.id, .failure(.grantNotStored), awaySince: publication.awaySince)
        await publisher.waitForStore(duration, publication, isJournaled: false)
        guard Task.isCancelled else { return .waited }
        // For the next process.
        if await publisher.writeJournal(publication, grace: attempt.rules.grace) {
            return await leaveJournaled(publication, at: step)
        }
        return await leaveStored(.failure(.grantNotStored))
    }

    /// Answers the callers from the journal. A task of the publisher carries out the attempt's other steps.
    /// - Parameter step: the first of them.
    private mutating func leaveJournaled(
        _ publication: Publication, at step: RenewalAttempt.Step
    ) async -> RenewalAttempt.Outcome? {
        publisher.publishInBackground(publication, attempt, step, since: beginning)
        isHandedOver = true
        // Nil if this process knows of a later change of the record: then only the store can say which of the two counts.
        guard let snapshot = records.unpublished(renewal.id), let answer = renewal.forCallers else {
            return await leaveStored(.success(.overtaken))
        }
        return await leaveStored(
            answer.refusal.map { .failure($0) } ?? .success(.new(snapshot, life: answer.life)))
    }

    // MARK: The end

    /// Ends the run after the provider has granted something or has ended the session.
    private mutating func leaveStored(_ result: Result<Renewed, BrokerError>) async -> RenewalAttempt.Outcome? {
        await renewer.liftFault(renewal)
        guard case .success(.new(let snapshot, _)) = result, snapshot.record.waiting != nil else {
            return finish(result)
        }
        // The grant is stored and waits for the provider's keys.
        let refresh = renewal.spendsRefreshToken ? renewal.grant.map { renewal.eventContext($0) } : nil
        let verified = await renewer.verification.verify(renewal.id, of: renewal.tenant, snapshot, in: refresh)
        if case .failure(let error) = verified { await renewer.announceUnverified(error, renewal, by: lease) }
        return finish(verified)
    }

    private mutating func giveUp(
        _ version: Int64, _ release: RenewalAttempt.Release
    ) async -> RenewalAttempt.Outcome {
        let outcome: LeaseRelease.Outcome
        switch release {
        case .settled: outcome = .settled
        case .open: outcome = .open
        case .unknown:
            // Another replica is to try at once while the provider's grace lasts.
            let pause: Duration = renewer.isStopping ? .zero : .seconds(1)
            outcome = .unknown(recovery: attempt.isWithinGrace(at: elapsed + pause) ? pause : nil)
        }
        await renewer.failed(&renewal, over: version, releasing: lease, as: outcome)
        await renewer.liftFault(renewal)
        return .stored
    }

    /// Gives the lease back for a while, without an event: the renewal goes on, here or at another replica.
    private mutating func handOver(_ version: Int64, isOpen: Bool) async -> RenewalAttempt.Outcome {
        do throws(StoreError) {
            try await lease.handOver(version, LeaseRelease(isOpen ? .open : .unknown(recovery: .zero)))
            return .stored
        } catch .conflict {
            return .refused
        } catch {
            records.report(error, renewal.id)
            return .storeAway
        }
    }

    /// What the attempt's end is to the callers.
    private mutating func finish(attempt ended: RenewalAttempt.Result) async -> RenewalAttempt.Outcome? {
        if let publication { return await leaveStored(await renewer.published(publication, of: renewal, under: lease)) }
        switch ended {
        case .failed:
            return finish(renewal.excuse == .superseded ? .success(.overtaken) : .failure(renewer.reason(renewal)))
        case .storeAway: return finish(.failure(renewal.failure ?? BrokerError(StoreError.unavailable)))
        case .busy: return finish(.success(.overtaken))
        case .stored, .ended, .overtaken:
            if claim == .made { await renewer.announceOvertaken(renewal, by: lease) }
            return finish(.success(.overtaken))
        }
    }

    /// Ends the run, and reports its end.
    private mutating func finish(_ result: Result<Renewed, BrokerError>) -> RenewalAttempt.Outcome? {
        let isFailure = if case .failure = result { true } else { false }
        if isFailure, renewal.isEarly, isReported || claim == .failed {
            // Callers wait for a store that takes nothing as they do for a provider that does not answer.
            renewer.failures.noteEarly(
                renewal.id, version: renewal.snapshot.version, for: RecentFailures.earlyPause)
        }
        if isReported, claim != .notMade || renewal.decision == .retire || isFailure {
            renewer.ended(result, renewal, isDoubtful: isDoubtful, took: elapsed)
        }
        return end(with: result)
    }

    private mutating func end(with result: Result<Renewed, BrokerError>) -> RenewalAttempt.Outcome? {
        self.result = result
        return nil
    }
}

extension RenewalAttempt.Step {
    /// Whether the step is part of the conversation with the provider, during which the run holds a place there.
    fileprivate var isAtProvider: Bool {
        switch self {
        case .claim, .ask, .pause: true
        case .read, .wait, .publish, .writeJournal, .publishEnd, .release, .handOver, .finish: false
        }
    }
}
