internal import CredentialStore
internal import OAuth
internal import Reactor
internal import Renewal
internal import Synchronization
internal import Waiting

/// How a run that brought nothing is told, and what is kept of that.
extension RenewalRun {
    enum LastAnswer {
        /// It refused the refresh token with that status and named no cause.
        case unexplained(status: Int)
        case other
    }

    /// Why a session is over.
    enum Ending {
        /// The provider says so.
        case refused(TokenErrorResponse)
        /// The refresh brought another user's token.
        case otherUser
    }

    /// What the record of the failures is to say after this one; nil where it says nothing of these credentials.
    func trouble(over version: Int64) async -> VaultChange? {
        guard version > 0, grant?.spendsRefreshToken == true else { return nil }
        let standing: (content: RenewalTrouble?, version: Int64)?
        do throws(StoreError) {
            standing = try await renewer.records.trouble(id)
        } catch {
            // The log has the failure; the next one is written down again.
            renewer.records.report(error, id)
            return nil
        }
        let (now, error) = (renewer.time.now, reason())
        var trouble = RenewalTrouble(version: version, after: standing?.content)
        var failed = trouble.failure ?? RenewalTrouble.Failure(first: now, last: now, code: "", errorCode: nil)
        (failed.last, failed.code, failed.errorCode) = (now, error.code.rawValue, error.errorCode)
        switch lastAnswer {
        case .unexplained(let status):
            failed.unexplained = .init(first: failed.unexplained?.first ?? now, last: now, status: status)
        case .other: failed.unexplained = nil
        // Where the provider has not answered, its last answer stands.
        case nil: break
        }
        trouble.failure = failed
        trouble.failedUpgrade = pausesFurtherTries ? tenant.version : nil
        if trouble.isRefusedWithoutCause, case .unexplained(let status) = lastAnswer {
            // A client that is not accepted may be answered so as well, and to end sessions by that would end all of them.
            let remedy =
                status == 401
                ? RefusalAdvice.client
                : "First check the configured client_secret: some providers refuse a wrong one in the same way. If the client "
                    + "is accepted, and that is how the provider says that a session is over, a tenant of the service needs "
                    + "{\"status\": \(status)} in its session_ending_answers. Or have the user log in anew."
            failure = BrokerError(
                .unexpectedError,
                "The provider has refused this user's refresh token for an hour with status \(status) and named no "
                    + "cause. \(remedy)")
        }
        return renewer.records.change(of: trouble, id, over: standing?.version)
    }

    /// Tells listeners of a failure. Where the store does not take it, a listener misses the event; the log has it.
    /// - Parameters:
    ///   - pauses: whether the renewal is not tried again for a while.
    ///   - trouble: a change that gives way to another one of the same record.
    func tell(
        _ error: BrokerError, pauses: Bool = false, with changes: [VaultChange] = [],
        _ trouble: VaultChange? = nil
    ) async {
        let now = renewer.time.now
        var events: [BrokerEvent] = []
        if let grant, grant.spendsRefreshToken {
            events.append(.refreshFailed(id, grant, error, refreshID, at: now))
            if pauses {
                let retry = now.advanced(by: RenewalFailures.pause(after: error))
                events.append(.degraded(id, error, retryAt: retry, refreshID, at: now))
            }
        }
        // The last one, for another change may have taken the lease away already.
        var tries = changes.isEmpty ? [[]] : [changes, []]
        if let trouble { tries.insert(changes + [trouble], at: 0) }
        for attempted in tries {
            do throws(StoreError) {
                return try await tell(events, with: attempted, within: Self.statementLimit)
            } catch .conflict {
                continue
            } catch {
                if !changes.isEmpty { renewer.abandoned.noteUnreleased(id) }
                return renewer.log.warning("event_not_stored", LogField.credentials(id) + [.store(error)])
            }
        }
    }

    /// What the provider is not asked because of: it does not accept the tenant's client. No renewal has begun then.
    func clientFault() -> BrokerError? {
        guard let grant else { return nil }
        let request = ClientUse(tenant.configuration.client, grant)
        guard let fault = renewer.clientFaults.standing(request, of: tenant) else { return nil }
        if decision == .refresh(isEarly: true) {
            renewer.decider.pauseEarlyRenewal(id, of: current.version, for: CredentialsDecider.pauseAfterEarlyFailure)
        }
        return decision.isUpgrade ? fault.asFailedUpgrade : fault
    }

    /// What an answer means by which the tenant has sessions ended, and which names no cause: a provider may refuse a wrong
    /// client secret by the same answer, so that the client is tried first.
    func ending(
        by refusal: TokenErrorResponse, of call: TokenEndpoint.Call, sentAt sent: MonotonicInstant
    ) async -> TokenEndpoint.Answer {
        switch await renewer.providers.trials.result(of: call.client, of: tenant, at: call.server, sentAt: sent) {
        case .verdict(.accepted), .verdict(.unclear): .sessionEnded(refusal)
        case .verdict(.refused): .clientRefused(TokenEndpoint.refusedClient(refusal), .client)
        case .later(let wait): TokenEndpoint.rateLimited(for: wait)
        case .unanswered: .again(TokenEndpoint.retryable(nil, after: nil), retryAfter: nil)
        }
    }

    /// Where the provider has accepted the client, it is asked for all users again.
    func liftFault() async {
        if let accepted { await renewer.clientFaults.lift(accepted, of: tenant) }
    }

    /// Why nothing was granted.
    func reason() -> BrokerError {
        let failure =
            failure
            ?? BrokerError(
                .networkError, "The provider could not be reached or did not answer in time.", retryAfter: 5)
        let error = decision.isUpgrade ? failure.asFailedUpgrade : failure
        return pausesFurtherTries ? error.retrying(after: RenewalFailures.pause(after: error)) : error
    }

    /// Whether further callers are told of this failure for a while, without another try. That is so of an upgrade, of which
    /// no failure is final; a refresh is tried again when the next caller asks (TIDAL's Auth design, "Refreshing
    /// credentials"). A store that was away is asked again as soon as it answers, and a tenant that is gone needs no pause.
    var pausesFurtherTries: Bool {
        decision.isUpgrade && !isStopping && !isSuperseded
            && failure?.code != .storageUnavailable && failure?.code != .notFound
    }

    var isStopping: Bool { Task.isCancelled || renewer.stop.isClosed }

    /// Keeps the failure, so that further callers are told at once.
    func remember(_ error: BrokerError, over version: Int64) {
        guard let grant else { return }
        renewer.failures.remember(
            error, id, version, grant, of: tenant, for: RenewalFailures.pause(after: error),
            now: renewer.time.monotonic)
    }

    /// What an attempt that ended with nothing to publish is to the callers.
    func conclude(_ result: RenewalAttempt.Result) async -> Result<Renewed, BrokerError> {
        switch result {
        case .failed: return isSuperseded ? .success(.overtaken) : .failure(reason())
        case .storeAway: return .failure(failure ?? BrokerError(StoreError.unavailable))
        case .busy: return .success(.overtaken)
        case .stored, .ended, .overtaken:
            if claim == .made { await tell(Self.overtaken) }
            return .success(.overtaken)
        }
    }

    static let overtaken = BrokerError(.conflict, "A login, a logout or another replica was faster.")

    /// Whether a refusal need not be the provider's or the user's will: the refresh token may have been spent by a call whose
    /// answer was lost, or the store may have gone back to a spent one.
    var isDoubtful: Bool { attempt.isUncertain || renewer.records.rollback.isDoubtful(current.version) }

    /// Tells the log and the metrics how the run ended.
    func report(_ result: Result<Renewed, BrokerError>, took duration: Duration) {
        var outcome: Metrics.Renewal
        var fields: [LogField] = LogField.credentials(id) + [.refresh(refreshID), .duration(duration)]
        switch result {
        case .success(.overtaken): outcome = .overtaken
        case .success(.new(let snapshot, _)):
            outcome = decision == .retire ? .retired : .succeeded
            if grant?.spendsRefreshToken == true, snapshot.record.held == nil {
                outcome = isDoubtful ? .sessionLost : .sessionEnded
            }
            fields.append(.version(snapshot.version))
        case .failure(let error):
            outcome = .failed
            fields.append(.code(error.code))
        }
        renewer.metrics.renewalEnded(
            provider: tenant.configuration.preset.name, grant, outcome, took: duration)
        switch outcome {
        case .succeeded: renewer.log.info("credentials_renewed", fields)
        case .overtaken: renewer.log.info("renewal_overtaken", fields)
        case .retired: renewer.log.info("credentials_retired", fields)
        case .sessionEnded: renewer.log.warning("session_ended_by_provider", fields)
        case .sessionLost: renewer.log.error("session_lost", fields)
        case .failed: renewer.log.warning("renewal_failed", fields)
        }
    }
}

extension CredentialsDecision {
    /// Whether it carries credentials over to the client that is configured now.
    var isUpgrade: Bool {
        switch self {
        case .upgrade, .obtainClientCredentials(isUpgrade: true): true
        default: false
        }
    }
}

extension BrokerError {
    /// Whatever kept an upgrade from succeeding is told as something that may be over next time: the user stays
    /// logged in with what is stored.
    var asFailedUpgrade: BrokerError {
        switch code {
        case .retryableError, .storageUnavailable, .notFound: return self
        case .networkError: return BrokerError(.retryableError, detail, retryAfter: retryAfter)
        default: break
        }
        return BrokerError(
            .retryableError,
            "The stored credentials were obtained with another client configuration, and carrying them over to the "
                + "present one failed: \(detail)", errorCode: errorCode, retryAfter: retryAfter ?? 5)
    }
}
