internal import CredentialStore
internal import OAuth
internal import Synchronization

/// How a run that brought nothing is told, and what is kept of that.
extension RenewalRun {
    /// What the record of the failures is to say after this one; nil where it says nothing of these credentials.
    func trouble(over version: Int64) async -> VaultChange? {
        guard version > 0, grant?.spendsRefreshToken == true else { return nil }
        let standing: (content: RenewalTrouble?, version: Int64)?
        do throws(StoreError) {
            standing = try await provider.records.trouble(id)
        } catch {
            // The log has the failure; the next one is written down again.
            provider.records.report(error, id)
            return nil
        }
        let (now, error) = (provider.time.now, reason())
        var trouble = standing?.content ?? RenewalTrouble(version: version)
        if trouble.version != version { trouble = RenewalTrouble(version: version) }
        let unexplainedSince = unexplainedStatus.map { _ in trouble.failure?.unexplainedSince ?? now }
        trouble.failure = RenewalTrouble.Failure(
            first: trouble.failure?.first ?? now, last: now, code: error.code.rawValue, errorCode: error.errorCode,
            unexplainedSince: unexplainedSince, status: unexplainedStatus)
        if trouble.isDegraded, let unexplainedStatus {
            failure = BrokerError(
                .unexpectedError,
                "The provider has refused this user's refresh token for an hour with status \(unexplainedStatus) and "
                    + "named no cause. If that is how it says that a session is over, add {\"status\": "
                    + "\(unexplainedStatus)} to the tenant's session_ending_answers; or have the user log in anew.")
        }
        return provider.records.change(of: trouble, id, over: standing?.version)
    }

    /// Tells listeners of a failure. Where the store does not take it, a listener misses the event; the log has it.
    /// - Parameter trouble: a change that gives way to another one of the same record.
    func tell(
        _ error: BrokerError, isUpgradeGivenUp: Bool = false, with changes: [VaultChange] = [],
        _ trouble: VaultChange? = nil
    ) async {
        let now = provider.time.now
        var events: [BrokerEvent] = []
        if let grant, grant.spendsRefreshToken {
            events.append(.refreshFailed(id, grant, error, refreshID, at: now))
            if isUpgradeGivenUp {
                let retry = now.advanced(by: RenewalFailures.pauseAfterUpgrade)
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
                if !changes.isEmpty { provider.unreleased.withLock { _ = $0.insert(id) } }
                return provider.log.warning("event_not_stored", LogField.credentials(id) + [.store(error)])
            }
        }
    }

    func liftFault() async {
        if isClientAccepted, let grant = request?.grant { await provider.clientFaults.lift(tenant, grant) }
    }

    /// Why nothing was granted.
    func reason() -> BrokerError {
        let error =
            failure
            ?? BrokerError(
                .networkError, "The provider could not be reached or did not answer in time.", retryAfter: 5)
        return decision.isUpgrade ? error.asFailedUpgrade : error
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
                + "present one failed: \(detail)", errorCode: errorCode, retryAfter: 5)
    }
}
