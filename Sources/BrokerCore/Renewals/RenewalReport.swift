internal import CredentialStore
internal import ExternalText
internal import HTTPCodec
internal import OAuth
internal import Reactor
internal import Renewal
internal import Synchronization
internal import Waiting

/// Reports how a renewal ends that brings nothing: to its callers, to listeners, to other replicas, in the record of the
/// user's failures. Reports the end of every renewal in the log and the metrics.
final class RenewalReport {
    enum LastAnswer {
        /// The provider refused the refresh token with that status and named no cause.
        case unexplained(status: Int)
        case other
    }

    private let renewer: CredentialsRenewer
    private let request: RenewalRequest
    /// What the last call, or the store, failed with.
    var failure: BrokerError?
    /// Whether a newer configuration of the tenant, or a newer state of the store, is to decide.
    var isSuperseded = false
    /// Whether the provider was not called because it has left the last calls without an answer.
    var isSparing = false
    /// The provider's last answer; nil where it has given none.
    var lastAnswer: LastAnswer?
    /// Whether the provider's last answer was compared with those to made-up grants, so that `failure` says what it means.
    var isCompared = false
    /// After how long an answer that may mean several things is compared.
    private static let comparedAfter: Duration = .seconds(60)

    static let overtaken = BrokerError(.conflict, "A login, a logout or another replica was faster.")

    private var id: CredentialsID { request.id }

    init(_ renewer: CredentialsRenewer, _ request: RenewalRequest) {
        self.renewer = renewer
        self.request = request
    }

    var isStopping: Bool { Task.isCancelled || renewer.draining.isClosed }

    // MARK: To callers

    /// Why nothing was granted.
    func reason(_ basis: RenewalBasis) -> BrokerError {
        let failure =
            failure
            ?? BrokerError(
                .networkError, "The provider could not be reached or did not answer in time.", retryAfter: 5)
        let error = request.isUpgrade(basis) ? failure.asFailedUpgrade : failure
        return pausesFurtherTries(basis) ? error.retrying(after: RecentFailures.pause(after: error)) : error
    }

    /// Whether further callers get this failure for a while, without another try. That is so for an upgrade, no failure of
    /// which is final. A refresh is tried again when the next caller asks (TIDAL's Auth design, "Refreshing credentials"). A
    /// store that did not answer is asked again at once, as is a provider that was spared, and a tenant that is gone needs no
    /// pause.
    func pausesFurtherTries(_ basis: RenewalBasis) -> Bool {
        request.isUpgrade(basis) && !isStopping && !isSuperseded && !isSparing
            && failure?.code != .storageUnavailable && failure?.code != .notFound
    }

    /// Keeps the failure, so that further callers get it at once.
    func remember(_ error: BrokerError, over version: Int64, _ basis: RenewalBasis) {
        guard let grant = basis.grant else { return }
        renewer.failures.noteUpgrade(
            error, id, version: version, configuration: request.tenant.version, grant: grant,
            for: RecentFailures.pause(after: error))
    }

    // MARK: To listeners and other replicas

    /// Gives the lease back, with the reason for the other replicas, and reports the failure.
    func failed(
        over version: Int64, releasing lease: RenewalLease, as outcome: LeaseRelease.Outcome, _ basis: RenewalBasis
    )
        async
    {
        let trouble = isStopping || isSuperseded || isSparing ? nil : await trouble(over: version, basis)
        let (error, pauses) = (reason(basis), pausesFurtherTries(basis))
        if pauses { remember(error, over: version, basis) }
        var release = LeaseRelease(outcome)
        if !isStopping, !isSuperseded, !isSparing {
            release.failure = renewer.failures.shared(error, pauses: pauses, of: request.tenant)
        }
        await announce(
            error, basis, pauses: pauses, with: lease.changes(releasing: version, release), trouble: trouble)
        if case .unknown(_?) = outcome { renewer.abandoned.signal() }
    }

    /// Whether the provider has given this user the same answer for a while.
    func hasLasted(_ error: BrokerError, _ basis: RenewalBasis) async -> Bool {
        do throws(StoreError) {
            guard let known = try await renewer.records.trouble(id)?.content, known.version == basis.snapshot.version,
                let failed = known.failure
            else { return false }
            return failed.code == error.code.rawValue && failed.errorCode == error.errorCode
                && failed.first.duration(to: renewer.time.now) >= Self.comparedAfter
        } catch {
            renewer.records.report(error, id)
            return false
        }
    }

    /// Logs that made-up grants get an answer of the provider's, too.
    func logProvesNothing(_ answer: RefusedAnswer, at server: AuthorizationServer) {
        var fields = request.logFields + [.provider(server.preset), .status(Status(answer.status))]
        if let error = answer.error { fields.append(.providerError(code: error.text)) }
        renewer.log.warning("refusal_proves_nothing", fields)
    }

    /// Announces that another change came before the renewal.
    func announceOvertaken(_ basis: RenewalBasis) async { await announce(Self.overtaken, basis) }

    /// Announces that the grant is stored and could not be verified.
    func announceUnverified(_ error: BrokerError, _ basis: RenewalBasis) async { await announce(error, basis) }

    /// Commits changes, and the events of a failure. If the store does not take them, listeners miss the events; the log has
    /// them.
    /// - Parameters:
    ///   - pauses: whether the renewal is not tried again for a while.
    ///   - trouble: a change that is left out if the same record was changed meanwhile.
    private func announce(
        _ error: BrokerError, _ basis: RenewalBasis, pauses: Bool = false, with changes: [VaultChange] = [],
        trouble: VaultChange? = nil
    ) async {
        let now = renewer.time.now
        var events: [BrokerEvent] = []
        if let grant = basis.grant, grant.spendsRefreshToken {
            events.append(.refreshFailed(request.eventContext(grant), error, at: now))
            if pauses {
                let retry = now.advanced(by: RecentFailures.pause(after: error))
                events.append(.degraded(id, error, retryAt: retry, request.refreshID, at: now))
            }
        }
        // At last without changes, since another change may have taken the lease away already.
        var tries = changes.isEmpty ? [[]] : [changes, []]
        if let trouble { tries.insert(changes + [trouble], at: 0) }
        for attempted in tries {
            do throws(StoreError) {
                return try await renewer.records.commit(
                    attempted, events: events, of: id, within: CredentialsRecords.statementLimit)
            } catch .conflict {
                continue
            } catch {
                if !changes.isEmpty { renewer.abandoned.noteUnreleased(id) }
                return renewer.log.warning("event_not_stored", LogField.credentials(id) + [.store(error)])
            }
        }
    }

    /// The change that writes this failure to the record of the user's failures; nil where there is nothing to write.
    private func trouble(over version: Int64, _ basis: RenewalBasis) async -> VaultChange? {
        guard version > 0, basis.spendsRefreshToken else { return nil }
        let known: (content: RenewalTrouble?, version: Int64)?
        do throws(StoreError) {
            known = try await renewer.records.trouble(id)
        } catch {
            // The log has this failure, and the next failure is written down again.
            renewer.records.report(error, id)
            return nil
        }
        let (now, error) = (renewer.time.now, reason(basis))
        var trouble = RenewalTrouble(version: version, after: known?.content)
        var failed = trouble.failure ?? RenewalTrouble.Failure(first: now, last: now, code: "", errorCode: nil)
        (failed.last, failed.code, failed.errorCode) = (now, error.code.rawValue, error.errorCode)
        switch lastAnswer {
        case .unexplained(let status):
            failed.unexplained = .init(first: failed.unexplained?.first ?? now, last: now, status: status)
        case .other: failed.unexplained = nil
        // The provider has not answered, so its earlier answer still counts.
        case nil: break
        }
        trouble.failure = failed
        trouble.failedUpgrade = pausesFurtherTries(basis) ? request.tenant.version : nil
        if trouble.isRefusedWithoutCause, !isCompared, case .unexplained(let status) = lastAnswer {
            failure = Self.refusedWithoutCause(status: status)
        }
        return renewer.records.change(of: trouble, id, over: known?.version)
    }

    private static func refusedWithoutCause(status: Int) -> BrokerError {
        // Some providers give the same answer when they do not accept the client. To end sessions because of it would then end
        // all of them.
        let remedy =
            status == 401
            ? RefusalAdvice.client
            : "First check the configured client_secret: some providers refuse a wrong one in the same way. If the client "
                + "is accepted, and that is how the provider says that a session is over, a tenant of the service needs "
                + "{\"status\": \(status)} in its session_ending_answers. Or have the user log in anew."
        return BrokerError(
            .unexpectedError,
            "The provider has refused this user's refresh token for an hour with status \(status) and named no "
                + "cause. \(remedy)")
    }

    // MARK: To the log

    /// Logs and counts the end of the renewal.
    /// - Parameter isDoubtful: whether a refusal need not be the provider's or the user's will.
    func ended(
        _ result: Result<CredentialsRenewer.Renewed, BrokerError>, _ basis: RenewalBasis, isDoubtful: Bool,
        took duration: Duration
    ) {
        var outcome: Metrics.Renewal
        var fields = request.logFields + [.duration(duration)]
        switch result {
        case .success(.overtaken): outcome = .overtaken
        case .success(.new(let snapshot, _)):
            outcome = basis.decision == .retire ? .retired : .succeeded
            if basis.spendsRefreshToken, snapshot.record.held == nil || snapshot.record.isOver {
                outcome = isDoubtful ? .sessionLost : .sessionEnded
            }
            fields.append(.version(snapshot.version))
        case .failure(let error):
            outcome = !error.endsSession ? .failed : isDoubtful ? .sessionLost : .sessionEnded
            fields.append(.code(error.code))
            if let withheld = error.withheld { fields.append(.withheld(withheld)) }
        }
        renewer.metrics.renewalEnded(
            provider: request.tenant.configuration.preset.name, basis.grant, outcome, took: duration)
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
    /// What callers get when an upgrade fails: an error that may be over at the next try, since the user stays logged in with
    /// the stored credentials.
    var asFailedUpgrade: BrokerError {
        var error: BrokerError
        switch code {
        case .retryableError, .storageUnavailable, .notFound: return self
        case .networkError: error = BrokerError(.retryableError, detail, retryAfter: retryAfter)
        default:
            error = BrokerError(
                .retryableError,
                "The stored credentials were obtained with another client configuration, and carrying them over to the "
                    + "present one failed: \(detail)", errorCode: errorCode, retryAfter: retryAfter ?? 5)
        }
        error.withheld = withheld
        return error
    }
}
