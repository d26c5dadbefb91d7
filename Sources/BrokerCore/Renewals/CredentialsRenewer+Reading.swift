import CredentialStore
import OAuth
import Reactor
import Renewal
import Waiting

/// Reads what a renewal starts from, and waits while another replica renews.
extension CredentialsRenewer {
    /// What a read has led to.
    enum Found {
        /// The credentials are to be renewed by these rules.
        case due(RenewalAttempt.Standing, RenewalRules)
        case storeAway(BrokerError)
        /// There is nothing to attempt.
        case ended(Result<Renewed, BrokerError>)
    }

    /// How often a read that hangs is tried. All tries together take as long as one statement may hang.
    private static let reads = 5

    /// Reads the credentials and the lease on them, or takes the cache entry at the first call, and decides.
    func read(_ renewal: inout Renewal) async -> Found {
        let (id, tenant) = (renewal.id, renewal.tenant)
        let ticket = records.changes.ticket(id)
        // What is asked, and where, follows from what is read now.
        (renewal.ticket, renewal.server, renewal.prepared) = (ticket, nil, nil)
        if records.unpublished(id) != nil {
            // The store has the spent refresh token. The token that replaced it is in the journal.
            guard await publisher.isPublished(id, since: ticket) else {
                return .ended(.failure(BrokerError(StoreError.unavailable)))
            }
            return .ended(.success(.overtaken))
        }
        if let found = assume(&renewal) { return found }
        renewal.isAssumed = false
        do throws(StoreError) {
            (renewal.snapshot, renewal.lease) = try await readRecord(renewal)
            if needsRow(renewal.snapshot, decider.decide(renewal.snapshot, tenant, renewal.query, id)) {
                renewal.snapshot = try await records.write(
                    CredentialRecord(held: nil), id, over: renewal.snapshot, tenantVersion: tenant.version
                ) { _ in [] }
            }
        } catch .conflict {
            // The record, or another tenant of the same name, was made just now.
            return .ended(.success(.overtaken))
        } catch {
            records.report(error, id)
            return .storeAway(BrokerError(error))
        }
        return await decide(&renewal)
    }

    /// Starts from the cache entry; nil if there is none, or if it leaves nothing to ask the provider for.
    private func assume(_ renewal: inout Renewal) -> Found? {
        guard let snapshot = renewal.assumed.take() else { return nil }
        renewal.snapshot = snapshot
        renewal.decision = decider.decide(snapshot, renewal.tenant, renewal.query, renewal.id)
        renewal.grant = renewal.decision.grant
        (renewal.lease, renewal.failedHolder, renewal.isAssumed) = (nil, nil, true)
        guard renewal.grant != nil, snapshot.version > 0 else { return nil }
        if waves.isOn(renewal.tenant.name) {
            // Only the store tells whether other sets are held.
            return gate.knownHold(renewal).map { .ended(.failure($0)) }
        }
        if let obstacle = gate.obstacle(to: renewal) { return .ended(.failure(obstacle)) }
        return due(renewal, lease: nil)
    }

    /// Reads the record and its lease. While the provider's grace runs, a statement that hangs must not use up the rest of
    /// it, and the next statement may use another connection.
    private func readRecord(
        _ renewal: Renewal
    ) async throws(StoreError) -> (snapshot: CredentialsSnapshot, lease: Lease?) {
        let (records, id) = (records, renewal.id)
        // A renewal that no other attempt has begun before presents a token that is not spent yet.
        let mayFollowAnother =
            renewal.waitingSince != nil
            || renewal.urgency == .background && renewal.query.policy != .localForceRefresh
        guard mayFollowAnother else { return try await records.readWithLease(id) }
        for _ in 1..<Self.reads {
            let start = time.monotonic
            do throws(StoreError) {
                return try await time.within(CredentialsRecords.statementLimit) { () async throws(StoreError) in
                    try await records.readWithLease(id)
                }
            } catch {
                let hung = start.duration(to: time.monotonic) >= CredentialsRecords.statementLimit
                guard error == .unavailable, hung, !Task.isCancelled else { throw error }
            }
        }
        return try await records.readWithLease(id)
    }

    /// Decides about what was read.
    private func decide(_ renewal: inout Renewal) async -> Found {
        let (id, tenant, snapshot) = (renewal.id, renewal.tenant, renewal.snapshot)
        var lease = renewal.lease
        renewal.failedHolder = nil
        if let read = lease, read.isSettled { (renewal.failedHolder, lease) = (read.holder, nil) }
        let isGone = lease.map { holders.isGone($0.holder) } ?? false
        renewal.decision = decider.decide(snapshot, tenant, renewal.query, id)
        renewal.grant = renewal.decision.grant
        if renewal.decision == .verify {
            // The set has waited, so that each caller decides by what is left of its lifetime.
            return .ended(await verification.verify(id, of: tenant, snapshot).map { _ in .overtaken })
        }
        if renewal.grant == nil, renewal.decision != .retire || lease == nil {
            guard renewal.decision != .retire else { return due(renewal, lease: nil) }
            guard let lease, lease.hasRunOut || isGone else { return .ended(.success(.overtaken)) }
            guard let recovery = recovery(of: snapshot, lease, tenant, id) else {
                await settle(lease, id, snapshot, tenant)
                return .ended(.success(.overtaken))
            }
            (renewal.decision, renewal.grant) = (recovery, recovery.grant)
        }
        // Another replica may be exchanging the refresh token, so that it is put away under the lease only. Credentials
        // without a refresh token need no lease.
        if renewal.decision == .retire, renewal.held?.refreshToken == nil { lease = nil }
        if let obstacle = gate.obstacle(to: renewal) { return .ended(.failure(obstacle)) }
        // A trial whose process has died may have spent the refresh token, which is presented again then.
        let mayBeSpent = lease.map { $0.hasRunOut || isGone } ?? false
        if !mayBeSpent, let refusal = await gate.hold(renewal) { return .ended(.failure(refusal)) }
        if let lease, !isGone || lease.isOpen { renewal.storeReachableFor = await records.reachableFor() }
        return due(renewal, lease: lease.map(holders.standing))
    }

    private func due(_ renewal: Renewal, lease: StandingLease?) -> Found {
        var delay: Duration = .zero
        if renewal.spendsRefreshToken, let from = renewal.held?.refreshableFrom {
            delay = time.now.duration(to: from)
            // No call leaves more to wait for, so the record was written by another clock.
            if delay > providers.callLimit(of: renewal.tenant) * 2 { delay = .zero }
        }
        return .due(
            RenewalAttempt.Standing(version: renewal.snapshot.version, isDue: true, lease: lease, delay: delay),
            rules(for: renewal.grant, of: renewal.tenant))
    }

    /// Waits until another replica announces the end of its renewal, or for `duration` at most.
    /// - Returns: false if the process is about to end.
    func wait(_ duration: Duration, _ renewal: inout Renewal) async -> Bool {
        let (id, time) = (renewal.id, time)
        renewal.waitingSince = renewal.waitingSince ?? time.monotonic
        let pause = min(duration, CredentialsRecords.changeInterval)
        await records.changes.wait(for: id, since: renewal.ticket ?? records.changes.ticket(id)) {
            try? await time.sleep(for: pause)
        }
        return !Task.isCancelled
    }
}
