internal import CredentialStore
internal import OAuth
internal import Reactor
internal import Renewal
internal import Waiting

/// Reads what a renewal starts from, and waits while another replica renews.
final class RenewalReader {
    /// What a read has led to.
    enum Found {
        /// The credentials are to be renewed by these rules.
        case due(RenewalAttempt.Standing, RenewalRules)
        case storeAway(BrokerError)
        /// There is nothing to attempt.
        case ended(Result<CredentialsRenewer.Renewed, BrokerError>)
    }

    private let renewer: CredentialsRenewer
    private let request: RenewalRequest
    private let report: RenewalReport
    /// The cache entry to start from; nil once it was used.
    private var assumed: CredentialsSnapshot?
    /// Taken before each read, so that a change after it ends the wait that follows.
    private var ticket: KeyedSignal<CredentialsID>.Ticket
    private var waitingSince: MonotonicInstant?
    /// For how long this process had reached the store without a failure when it last read the lease of an attempt whose
    /// holder may live.
    private(set) var storeReachableFor: Duration = .seconds(1 << 32)

    /// How often a read that hangs is tried. All tries together take as long as one statement may hang.
    private static let reads = 5

    private var records: CredentialsRecords { renewer.records }

    /// - Parameter assumed: the cache entry to start from; nil where a change of it may have been missed.
    init(
        _ renewer: CredentialsRenewer, _ request: RenewalRequest, _ report: RenewalReport,
        assuming assumed: CredentialsSnapshot?
    ) {
        self.renewer = renewer
        self.request = request
        self.report = report
        self.assumed = assumed
        ticket = renewer.records.changes.ticket(request.id)
    }

    /// Reads the credentials and the lease on them, or takes the cache entry at the first call, and decides.
    func read(_ basis: inout RenewalBasis) async -> Found {
        let (id, tenant) = (request.id, request.tenant)
        ticket = records.changes.ticket(id)
        if records.unpublished(id) != nil {
            // The store has the spent refresh token. The token that replaced it is in the journal.
            guard await renewer.publisher.isPublished(id, since: ticket) else {
                return .ended(.failure(BrokerError(StoreError.unavailable)))
            }
            return .ended(.success(.overtaken))
        }
        if let found = assume(&basis) { return found }
        basis.isAssumed = false
        do throws(StoreError) {
            (basis.snapshot, basis.lease) = try await readRecord()
            if renewer.needsRow(basis.snapshot, renewer.decider.decide(basis.snapshot, tenant, request.query, id)) {
                basis.snapshot = try await records.write(
                    CredentialRecord(held: nil), id, over: basis.snapshot, tenantVersion: tenant.version
                ) { _ in [] }
            }
        } catch .conflict {
            // The record, or another tenant of the same name, was made just now.
            return .ended(.success(.overtaken))
        } catch {
            records.report(error, id)
            return .storeAway(BrokerError(error))
        }
        return await decide(&basis)
    }

    /// Starts from the cache entry; nil where there is none, or where it leaves nothing to ask the provider for.
    private func assume(_ basis: inout RenewalBasis) -> Found? {
        guard let snapshot = assumed else { return nil }
        assumed = nil
        let decision = renewer.decider.decide(snapshot, request.tenant, request.query, request.id)
        basis = RenewalBasis(
            snapshot: snapshot, decision: decision, grant: decision.grant, lease: nil, failedHolder: nil,
            isAssumed: true)
        guard decision.grant != nil, snapshot.version > 0 else { return nil }
        if renewer.waves.isOn(request.tenant.name) {
            // Only the store tells whether other sets are held.
            return renewer.gate.knownHold(request, basis).map { .ended(.failure($0)) }
        }
        if let obstacle = renewer.gate.obstacle(to: request, basis) { return .ended(.failure(obstacle)) }
        return due(basis, lease: nil)
    }

    /// Reads the record and its lease. While the provider's grace runs, a statement that hangs must not use up the rest of
    /// it, and the next statement may use another connection.
    private func readRecord() async throws(StoreError) -> (snapshot: CredentialsSnapshot, lease: Lease?) {
        let (records, id) = (records, request.id)
        // A renewal that no other attempt has begun before presents a token that is not spent yet.
        let mayFollowAnother =
            waitingSince != nil || request.urgency == .background && request.query.policy != .localForceRefresh
        guard mayFollowAnother else { return try await records.readWithLease(id) }
        for _ in 1..<Self.reads {
            let start = renewer.time.monotonic
            do throws(StoreError) {
                return try await records.within(CredentialsRecords.statementLimit) { () async throws(StoreError) in
                    try await records.readWithLease(id)
                }
            } catch {
                let hung = start.duration(to: renewer.time.monotonic) >= CredentialsRecords.statementLimit
                guard error == .unavailable, hung, !Task.isCancelled else { throw error }
            }
        }
        return try await records.readWithLease(id)
    }

    /// Decides about what was read.
    private func decide(_ basis: inout RenewalBasis) async -> Found {
        let (id, tenant) = (request.id, request.tenant)
        var lease = basis.lease
        basis.failedHolder = nil
        if let read = lease, read.isSettled { (basis.failedHolder, lease) = (read.holder, nil) }
        let isGone = lease.map { renewer.holders.isGone($0.holder) } ?? false
        basis.decision = renewer.decider.decide(basis.snapshot, tenant, request.query, id)
        basis.grant = basis.decision.grant
        if basis.decision == .verify {
            // The set has waited, so that each caller decides by what is left of its lifetime.
            return .ended(
                await renewer.verification.verify(id, of: tenant, basis.snapshot).map { _ in .overtaken })
        }
        if basis.grant == nil, basis.decision != .retire || lease == nil {
            guard basis.decision != .retire else { return due(basis, lease: nil) }
            guard let lease, lease.hasRunOut || isGone else { return .ended(.success(.overtaken)) }
            guard let recovery = renewer.recovery(of: basis.snapshot, lease, tenant, id) else {
                await renewer.settle(lease, id, basis.snapshot, tenant)
                return .ended(.success(.overtaken))
            }
            (basis.decision, basis.grant) = (recovery, recovery.grant)
        }
        // Another replica may be exchanging the refresh token, so that it is put away under the lease only. Credentials
        // without a refresh token need no lease.
        if basis.decision == .retire, basis.held?.refreshToken == nil { lease = nil }
        if let obstacle = renewer.gate.obstacle(to: request, basis) { return .ended(.failure(obstacle)) }
        // A trial whose process has died may have spent the refresh token, which is presented again then.
        let mayBeSpent = lease.map { $0.hasRunOut || isGone } ?? false
        if !mayBeSpent, let refusal = await renewer.gate.hold(request, basis) { return .ended(.failure(refusal)) }
        if let lease, !isGone || lease.isOpen { storeReachableFor = await records.reachableFor() }
        return due(basis, lease: lease.map(renewer.holders.standing))
    }

    private func due(_ basis: RenewalBasis, lease: StandingLease?) -> Found {
        var delay: Duration = .zero
        if basis.spendsRefreshToken, let from = basis.held?.refreshableFrom {
            delay = renewer.time.now.duration(to: from)
            // No call leaves more to wait for, so the record was written by another clock.
            if delay > renewer.providers.callLimit(of: request.tenant) * 2 { delay = .zero }
        }
        return .due(
            RenewalAttempt.Standing(version: basis.snapshot.version, isDue: true, lease: lease, delay: delay),
            renewer.rules(for: basis.grant, of: request.tenant))
    }

    /// Waits until another replica announces the end of its renewal, or for `duration` at most.
    /// - Returns: false where the process is about to end.
    func wait(_ duration: Duration) async -> Bool {
        waitingSince = waitingSince ?? renewer.time.monotonic
        let time = renewer.time
        let pause = min(duration, CredentialsRecords.changeInterval)
        await records.changes.wait(for: request.id, since: ticket) { try? await time.sleep(for: pause) }
        return !Task.isCancelled
    }

    /// Records in the metrics how long the renewal has waited for other attempts, if it has.
    func recordWait() {
        if let waitingSince { renewer.metrics.waitedForLease(waitingSince.duration(to: renewer.time.monotonic)) }
    }
}
