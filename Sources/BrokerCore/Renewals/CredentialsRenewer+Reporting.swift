import CredentialStore
import OAuth
import Reactor
import Waiting

/// Reports how a renewal ends that brings nothing: to its callers, to listeners, to other replicas, in the record of the
/// user's failures. Reports the end of every renewal in the log and the metrics.
extension CredentialsRenewer {
    /// After how long an answer that may mean several things is compared.
    private static let comparedAfter: Duration = .seconds(60)

    private static let overtaken = BrokerError(.conflict, "A login, a logout or another replica was faster.")

    var isStopping: Bool { Task.isCancelled || draining.isClosed }

    // MARK: To callers

    /// Why nothing was granted.
    func reason(_ renewal: Renewal) -> BrokerError {
        let failure =
            renewal.failure
            ?? BrokerError(
                .networkError, "The provider could not be reached or did not answer in time.", retryAfter: 5)
        let error = renewal.isUpgrade ? failure.asFailedUpgrade : failure
        return pausesFurtherTries(renewal) ? error.retrying(after: RecentFailures.pause(after: error)) : error
    }

    /// Whether further callers get this failure for a while, without another try. That is so for an upgrade, no failure of
    /// which is final. A refresh is tried again when the next caller asks (TIDAL's Auth design, "Refreshing credentials"). A
    /// store that did not answer is asked again at once, as is a provider that was spared, and a tenant that is gone needs no
    /// pause.
    func pausesFurtherTries(_ renewal: Renewal) -> Bool {
        renewal.isUpgrade && !isStopping && renewal.excuse == nil && renewal.failure?.code != .storageUnavailable
            && renewal.failure?.code != .notFound
    }

    /// Keeps the failure, so that further callers get it at once.
    func remember(_ error: BrokerError, over version: Int64, _ renewal: Renewal) {
        guard let grant = renewal.grant else { return }
        failures.noteUpgrade(
            error, renewal.id, version: version, configuration: renewal.tenant.version, grant: grant,
            for: RecentFailures.pause(after: error))
    }

    // MARK: To listeners and other replicas

    /// Gives the lease back, with the reason for the other replicas, and reports the failure.
    func failed(
        _ renewal: inout Renewal, over version: Int64, releasing lease: OwnLease, as outcome: LeaseRelease.Outcome
    ) async {
        let isExcused = isStopping || renewal.excuse != nil
        let trouble = isExcused ? nil : await trouble(over: version, &renewal)
        let (error, pauses) = (reason(renewal), pausesFurtherTries(renewal))
        if pauses { remember(error, over: version, renewal) }
        var release = LeaseRelease(outcome)
        if !isStopping, renewal.excuse == nil {
            release.failure = failures.shared(error, pauses: pauses, of: renewal.tenant)
        }
        let changes = version > 0 ? [lease.release(version, release)] : []
        await announce(error, renewal, pauses: pauses, by: lease, with: changes, trouble: trouble)
        if case .unknown(_?) = outcome { abandoned.signal() }
    }

    /// Whether the provider has given this user the same answer for a while.
    func hasLasted(_ error: BrokerError, _ renewal: Renewal) async -> Bool {
        let id = renewal.id
        do throws(StoreError) {
            guard let known = try await records.trouble(id)?.content, known.version == renewal.snapshot.version,
                let failed = known.failure
            else { return false }
            return failed.code == error.code.rawValue && failed.errorCode == error.errorCode
                && failed.first.duration(to: time.now) >= Self.comparedAfter
        } catch {
            records.report(error, id)
            return false
        }
    }

    /// Announces that another change came before the renewal.
    func announceOvertaken(_ renewal: Renewal, by lease: OwnLease) async {
        await announce(Self.overtaken, renewal, by: lease)
    }

    /// Announces that the grant is stored and could not be verified.
    func announceUnverified(_ error: BrokerError, _ renewal: Renewal, by lease: OwnLease) async {
        await announce(error, renewal, by: lease)
    }

    /// Commits changes, and the events of a failure. If the store does not take them, listeners miss the events; the log has
    /// them.
    /// - Parameters:
    ///   - pauses: whether the renewal is not tried again for a while.
    ///   - changes: give the lease back; none if it stays as it is.
    ///   - trouble: a change that is left out if the same record was changed meanwhile.
    private func announce(
        _ error: BrokerError, _ renewal: Renewal, pauses: Bool = false, by lease: OwnLease,
        with changes: [VaultChange] = [], trouble: VaultChange? = nil
    ) async {
        let (id, now) = (renewal.id, time.now)
        var events: [BrokerEvent] = []
        if let grant = renewal.grant, grant.spendsRefreshToken {
            events.append(.refreshFailed(renewal.eventContext(grant), error, at: now))
            if pauses {
                let retry = now.advanced(by: RecentFailures.pause(after: error))
                events.append(.degraded(id, error, retryAt: retry, renewal.refreshID, at: now))
            }
        }
        // At last without changes, since another change may have taken the lease away already.
        var tries = changes.isEmpty ? [[]] : [changes, []]
        if let trouble { tries.insert(changes + [trouble], at: 0) }
        do throws(StoreError) {
            try await lease.giveBack(by: tries, telling: events)
        } catch {
            if error != .conflict { log.warning("event_not_stored", LogField.credentials(id) + [.store(error)]) }
        }
    }

    /// The change that writes this failure to the record of the user's failures; nil if there is nothing to write.
    private func trouble(over version: Int64, _ renewal: inout Renewal) async -> VaultChange? {
        guard version > 0, renewal.spendsRefreshToken else { return nil }
        let id = renewal.id
        let known: (content: RenewalTrouble?, version: Int64)?
        do throws(StoreError) {
            known = try await records.trouble(id)
        } catch {
            // The log has this failure, and the next failure is written down again.
            records.report(error, id)
            return nil
        }
        let (now, error) = (time.now, reason(renewal))
        var trouble = RenewalTrouble(version: version, after: known?.content)
        var failed = trouble.failure ?? RenewalTrouble.Failure(first: now, last: now, code: "", errorCode: nil)
        (failed.last, failed.code, failed.errorCode) = (now, error.code.rawValue, error.errorCode)
        switch renewal.cause {
        case .unexplained(let status, _):
            failed.unexplained = .init(first: failed.unexplained?.first ?? now, last: now, status: status)
        case .other: failed.unexplained = nil
        // The provider has not answered, so its earlier answer still counts.
        case nil: break
        }
        trouble.failure = failed
        trouble.failedUpgrade = pausesFurtherTries(renewal) ? renewal.tenant.version : nil
        if trouble.isRefusedWithoutCause, case .unexplained(let status, isCompared: false) = renewal.cause {
            renewal.failure = Self.refusedWithoutCause(status: status)
        }
        return records.change(of: trouble, id, over: known?.version)
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
        _ result: Result<Renewed, BrokerError>, _ renewal: Renewal, isDoubtful: Bool, took duration: Duration
    ) {
        var outcome: Metrics.Renewal
        var fields = renewal.logFields + [.duration(duration)]
        switch result {
        case .success(.overtaken): outcome = .overtaken
        case .success(.new(let snapshot, _)):
            outcome = renewal.decision == .retire ? .retired : .succeeded
            if renewal.spendsRefreshToken, snapshot.record.held == nil || snapshot.record.isOver {
                outcome = isDoubtful ? .sessionLost : .sessionEnded
            }
            fields.append(.version(snapshot.version))
        case .failure(let error):
            outcome = !error.endsSession ? .failed : isDoubtful ? .sessionLost : .sessionEnded
            fields.append(.code(error.code))
            if let withheld = error.withheld { fields.append(.withheld(withheld)) }
        }
        metrics.renewalEnded(
            provider: renewal.tenant.configuration.preset.name, renewal.grant, outcome, took: duration)
        switch outcome {
        case .succeeded: log.info("credentials_renewed", fields)
        case .overtaken: log.info("renewal_overtaken", fields)
        case .retired: log.info("credentials_retired", fields)
        case .sessionEnded: log.warning("session_ended_by_provider", fields)
        case .sessionLost: log.error("session_lost", fields)
        case .failed: log.warning("renewal_failed", fields)
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
