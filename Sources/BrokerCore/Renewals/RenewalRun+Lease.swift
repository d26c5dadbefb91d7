internal import CredentialStore
internal import OAuth
internal import Reactor
internal import Renewal
internal import Synchronization

/// The lease of a run.
extension RenewalRun {
    /// Takes the lease, or extends it before a further call. The first claim is one commit with the events that tell of the
    /// renewal's beginning: a store that cannot be written to could not take the provider's answer either, and then the
    /// refresh token had better not be spent.
    func takeLease(
        on version: Int64, over replaced: String?, overdue: Duration, isOpen: Bool
    ) async -> RenewalAttempt.Outcome {
        let (records, isFirst) = (renewer.records, claim != .made)
        // The refresh token may be spent where a call, or another holder, came before.
        let limit = isFirst && replaced == nil ? nil : Self.statementLimit
        var events: [BrokerEvent] = []
        if isFirst, let grant, grant.spendsRefreshToken {
            events = BrokerEvent.steps(
                [.refreshStarted, .refreshRefreshingAccessToken], id, grant, refreshID, at: renewer.time.now)
        }
        do throws(StoreError) {
            var changes: [VaultChange] = []
            // What is not stored yet has no row to stand in.
            if version > 0 {
                var claim = leaseClaim(
                    isOpen: isOpen,
                    notAfter: limit.map { renewer.time.now.advanced(by: $0) } ?? records.claimDeadline)
                // Between two calls that both did not reach the provider nothing was used.
                claim.restartsUse = attempt.calls > 0 && !attempt.isUncertain
                if isFirst || replaced != nil {
                    claim.replacing = replaced ?? failedHolder
                    claim.overdue = overdue
                    claim.replacesStanding = replaced.map { renewer.holders.isGone($0) } ?? false
                }
                changes.append(.claim(CredentialsRecords.recordID(id), version: version, claim))
            }
            try await tell(events, with: changes, within: limit)
            claim = .made
            return .claimed
        } catch .conflict {
            if attempt.calls == 0 { claim = .notMade }
            return .refused
        } catch {
            if isFirst { claim = .failed }
            // The claim may have been carried out, or be carried out yet: the lease is then one of an attempt that has ended.
            if isFirst, replaced != nil { renewer.abandoned.noteUnreleased(id) }
            records.report(error, id)
            failure = BrokerError(error)
            return .storeAway
        }
    }

    private func leaseClaim(isOpen: Bool, notAfter: Timestamp?) -> LeaseClaim {
        // An extension takes no lease that the row has not.
        LeaseClaim(
            holder: holder, replacing: holder, for: attempt.rules.leaseSpan,
            marksUse: grant?.spendsRefreshToken == true, isOpen: isOpen,
            notAfter: notAfter)
    }

    /// Runs `body` while the lease is extended.
    func keepingLease<R>(_ body: () async throws(BrokerError) -> R) async throws(BrokerError) -> R {
        if attempt.version == 0 { return try await body() }
        let token = renewer.keeper.keep(
            LeaseKeeper.Held(
                id: id, version: attempt.version, claim: leaseClaim(isOpen: attempt.isOpen, notAfter: nil),
                interval: attempt.rules.extensionInterval, extended: extended))
        defer { renewer.keeper.letGo(token) }
        return try await body()
    }

    /// Commits, and waits for that as long as `limit` says.
    func tell(
        _ events: [BrokerEvent], with changes: [VaultChange], within limit: Duration?
    ) async throws(StoreError) {
        let (records, id) = (renewer.records, id)
        guard let limit else { return try await records.tell(events, of: id, with: changes) }
        try await records.within(limit) { () async throws(StoreError) in
            try await records.tell(events, of: id, with: changes)
        }
    }

    /// Gives the lease back for a while, without a word to listeners: the renewal goes on, here or at another replica.
    func handOver(_ version: Int64, _ isOpen: Bool) async -> RenewalAttempt.Outcome {
        let release = LeaseRelease(isOpen ? .open : .unknown(recovery: .zero))
        do throws(StoreError) {
            try await tell(
                [],
                with: [.release(CredentialsRecords.recordID(id), version: version, holder: holder, release)],
                within: Self.statementLimit)
            // A lease is not taken again under the name that has given it up.
            renewer.holders.end(holder)
            holder = renewer.holders.begin(RefreshID())
            return .stored
        } catch .conflict {
            return .refused
        } catch {
            renewer.records.report(error, id)
            renewer.abandoned.noteUnreleased(id)
            return .storeAway
        }
    }

    /// Gives the lease back and tells how a renewal ended that brought nothing.
    func letGo(over version: Int64, _ release: RenewalAttempt.Release) async {
        let outcome: LeaseRelease.Outcome
        switch release {
        case .settled: outcome = .settled
        case .open: outcome = .open
        case .unknown:
            // Another replica is to try at once while the provider's grace lasts.
            let pause: Duration = isStopping ? .zero : .seconds(1)
            outcome = .unknown(recovery: attempt.isWithinGrace(at: elapsed + pause) ? pause : nil)
        }
        let trouble = isStopping || isSuperseded ? nil : await trouble(over: version)
        let error = reason()
        let pauses = pausesFurtherTries
        var leaseRelease = LeaseRelease(outcome)
        if pauses { remember(error, over: version) }
        if !isStopping, !isSuperseded {
            leaseRelease.failure = renewer.failures.shared(error, pauses: pauses, of: tenant)
        }
        let change: [VaultChange] =
            version > 0
            ? [.release(CredentialsRecords.recordID(id), version: version, holder: holder, leaseRelease)] : []
        await tell(error, pauses: pauses, with: change, trouble)
        if case .unknown(_?) = outcome { renewer.abandoned.signal() }
        await liftFault()
    }
}
