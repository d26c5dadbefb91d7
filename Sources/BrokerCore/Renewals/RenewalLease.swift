internal import CredentialStore
internal import OAuth
internal import Reactor
internal import Renewal
internal import Synchronization

/// The lease of one renewal: taken before the first call to the provider, extended meanwhile, given back at the end.
final class RenewalLease {
    enum Claim { case notMade, made, failed }

    private let renewer: CredentialsRenewer
    private let request: RenewalRequest
    /// The name under which the lease is held.
    private(set) var holder: String
    private(set) var claim = Claim.notMade
    private let extended = LeaseKeeper.Extension()

    private var id: CredentialsID { request.id }

    init(_ renewer: CredentialsRenewer, _ request: RenewalRequest) {
        self.renewer = renewer
        self.request = request
        holder = renewer.holders.begin(request.refreshID)
    }

    /// When the store was last asked to extend the lease and did so; nil where it never did.
    var lastExtension: MonotonicInstant? { extended.last }

    /// Takes the lease, or extends it before a further call.
    ///
    /// The first claim and the events that announce the renewal are one commit. A store that cannot be written to could not
    /// take the provider's answer either, and then the refresh token must not be spent.
    /// - Parameters:
    ///   - version: the version of the record on which the lease is taken.
    ///   - replaced: the holder whose lease is taken over; nil where there is none.
    ///   - overdue: for how long that lease must have run out.
    ///   - isOpen: see `RenewalAttempt.Step.claim`.
    /// - Returns: the outcome; with `.storeAway`, also the error.
    func take(
        on version: Int64, over replaced: String?, overdue: Duration, isOpen: Bool, for basis: RenewalBasis,
        by attempt: RenewalAttempt
    ) async -> (outcome: RenewalAttempt.Outcome, failure: BrokerError?) {
        let (records, isFirst) = (renewer.records, claim != .made)
        // After a call of this attempt or of another holder, the refresh token may be spent, and time is short.
        let limit = isFirst && replaced == nil ? nil : CredentialsRecords.statementLimit
        var events: [BrokerEvent] = []
        if isFirst, let grant = basis.grant, grant.spendsRefreshToken {
            events = BrokerEvent.steps(
                [.refreshStarted, .refreshRefreshingAccessToken], of: request.eventContext(grant),
                at: renewer.time.now)
        }
        do throws(StoreError) {
            var changes: [VaultChange] = []
            // Credentials that are not stored yet have no row for a lease.
            if version > 0 {
                var claim = leaseClaim(
                    attempt, basis, isOpen: isOpen,
                    notAfter: limit.map { renewer.time.now.advanced(by: $0) } ?? records.claimDeadline)
                // Between two calls that both did not reach the provider nothing was used.
                claim.restartsUse = attempt.calls > 0 && !attempt.isUncertain
                if isFirst || replaced != nil {
                    claim.replacing = replaced ?? basis.failedHolder
                    claim.overdue = overdue
                    claim.replacesStanding = replaced.map { renewer.holders.isGone($0) } ?? false
                }
                changes.append(.claim(CredentialsRecords.recordID(id), version: version, claim))
            }
            try await records.commit(changes, events: events, of: id, within: limit)
            claim = .made
            return (.claimed, nil)
        } catch .conflict {
            if attempt.calls == 0 { claim = .notMade }
            return (.refused, nil)
        } catch {
            if isFirst { claim = .failed }
            // The store may have carried the claim out, or may do so yet. The lease is then that of an attempt that has ended.
            if isFirst, replaced != nil { renewer.abandoned.noteUnreleased(id) }
            records.report(error, id)
            return (.storeAway, BrokerError(error))
        }
    }

    private func leaseClaim(
        _ attempt: RenewalAttempt, _ basis: RenewalBasis, isOpen: Bool, notAfter: Timestamp?
    ) -> LeaseClaim {
        // An extension replaces only this holder's own lease.
        LeaseClaim(
            holder: holder, replacing: holder, for: attempt.rules.leaseSpan, marksUse: basis.spendsRefreshToken,
            isOpen: isOpen, notAfter: notAfter)
    }

    /// Runs `body` while the lease is extended.
    func whileExtending<R>(
        _ attempt: RenewalAttempt, _ basis: RenewalBasis, _ body: () async throws(BrokerError) -> R
    ) async throws(BrokerError) -> R {
        if attempt.version == 0 { return try await body() }
        let token = renewer.keeper.beginExtending(
            LeaseKeeper.Held(
                record: CredentialsRecords.recordID(id), version: attempt.version,
                claim: leaseClaim(attempt, basis, isOpen: attempt.isOpen, notAfter: nil),
                interval: attempt.rules.extensionInterval, extended: extended))
        defer { renewer.keeper.endExtending(token) }
        return try await body()
    }

    /// Gives the lease back for a while, without an event: the renewal goes on, here or at another replica.
    func handOver(_ version: Int64, isOpen: Bool) async -> RenewalAttempt.Outcome {
        let release = LeaseRelease(isOpen ? .open : .unknown(recovery: .zero))
        do throws(StoreError) {
            try await renewer.records.commit(
                [.release(CredentialsRecords.recordID(id), version: version, holder: holder, release)], events: [],
                of: id, within: CredentialsRecords.statementLimit)
            // A lease is not taken again under a name that has given it up.
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

    /// The change that gives the lease back; none where there is no record.
    func changes(releasing version: Int64, _ release: LeaseRelease) -> [VaultChange] {
        version > 0
            ? [.release(CredentialsRecords.recordID(id), version: version, holder: holder, release)] : []
    }

    /// The attempt has ended, and has nothing left to store under this lease.
    func end() { renewer.holders.end(holder) }
}
