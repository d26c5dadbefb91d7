import CredentialStore
import Cryptography
package import OAuth
import Renewal
import Synchronization
import Waiting

/// Restores sessions that a provider has ended, from their quarantined credentials, and frees those that are held.
package final class CredentialsRestorer: Sendable {
    package enum Mode: Sendable {
        /// Changes nothing and asks no provider.
        case dry
        case plain
        /// Presents each refresh token to the provider, and restores what that grants.
        case verifying
    }

    /// What is restored.
    package struct Restored: Sendable {
        package let held: HeldCredentials
        /// What is stored; nil after a dry run.
        package let snapshot: CredentialsSnapshot?
    }

    private let renewer: CredentialsRenewer
    private let writer: CredentialsWriter
    private let credentials: CredentialsProvider
    private let revocations: RevocationJob
    /// The presentations under way, each of one session.
    private let flights: SingleFlight<RefreshID, Result<Restored, BrokerError>>

    private var records: CredentialsRecords { renewer.records }
    private var time: any Time { renewer.time }

    init(
        renewer: CredentialsRenewer, writer: CredentialsWriter, credentials: CredentialsProvider,
        revocations: RevocationJob
    ) {
        self.renewer = renewer
        self.writer = writer
        self.credentials = credentials
        self.revocations = revocations
        flights = SingleFlight(on: renewer.providers.endpoint.executor)
    }

    /// Suspends until no refresh token is being presented: what was granted is stored by then.
    func finish() async { await flights.finish() }

    /// Cancels the presentations in flight, so that they wait for nothing any more.
    /// - Returns: how many were in flight.
    func cancelAll() -> Int {
        defer { flights.cancelAll() }
        return flights.count
    }

    /// Restores each of these storage keys, several at a time. A failure does not stop the others; but once the store does not answer,
    /// the rest is not tried.
    /// - Returns: the result for each storage key, in their order.
    package func restore(
        _ storageKeys: [StorageKey], of tenant: Tenant, _ mode: Mode
    ) async -> [Result<Restored, BrokerError>] {
        let store = StoreState()
        return await withTaskGroup(of: (Int, Result<Restored, BrokerError>).self) { group in
            var results = [Result<Restored, BrokerError>?](repeating: nil, count: storageKeys.count)
            var begun = 0
            while true {
                if begun < storageKeys.count {
                    let (index, id) = (begun, CredentialsID(tenant: tenant.name, storageKey: storageKeys[begun]))
                    group.addTask { (index, await self.restore(id, of: tenant, mode, store)) }
                    begun += 1
                    if begun < Self.restoredAtOnce { continue }
                }
                guard let (index, result) = await group.next() else { return results.compactMap(\.self) }
                results[index] = result
            }
        }
    }

    private func restore(
        _ id: CredentialsID, of tenant: Tenant, _ mode: Mode, _ store: StoreState
    ) async -> Result<Restored, BrokerError> {
        if store.isAway.load(ordering: .relaxed) { return .failure(BrokerError(StoreError.unavailable)) }
        // The client has gone: no further session is begun for it.
        if Task.isCancelled { return .failure(BrokerError(.retryableError, Self.interruption, retryAfter: 1)) }
        do throws(BrokerError) {
            return .success(try await restore(id, of: tenant, mode))
        } catch {
            if error.code == .storageUnavailable { store.isAway.store(true, ordering: .relaxed) }
            return .failure(error)
        }
    }

    /// Whether the store has failed to answer one of the restorations of a call.
    private final class StoreState: Sendable {
        let isAway = Atomic<Bool>(false)
    }

    private static let restoredAtOnce = 4

    /// Stores quarantined credentials again, or frees credentials that are held.
    /// - Throws: `not_found` where none are quarantined; `conflict` where a user is logged in; `retryable_error` while another call
    ///   presents their refresh token; `storage_unavailable`. When verifying also `not_found` where they have no refresh token,
    ///   `invalid_token_request` where the provider refuses it, and the errors of a renewal: then they stay quarantined.
    package func restore(_ id: CredentialsID, of tenant: Tenant, _ mode: Mode) async throws(BrokerError) -> Restored {
        switch mode {
        case .dry:
            return try await onWhatIsStored(of: id, tenant) { standing in
                switch standing {
                case .held(let held, _): .success(Restored(held: held, snapshot: nil))
                case .quarantined(let quarantined, _):
                    .success(Restored(held: quarantined.content.credentials, snapshot: nil))
                }
            }
        case .plain:
            return try await onWhatIsStored(of: id, tenant) { standing throws(StoreError) in
                switch standing {
                case .held(let held, let current):
                    guard try await self.records.free(id, held) else { throw .conflict }
                    self.noteRestored(id, current)
                    return .success(Restored(held: held, snapshot: current))
                case .quarantined(let quarantined, let current):
                    return .success(
                        try await self.write(quarantined.content.credentials, nil, id, over: current, of: quarantined))
                }
            }
        case .verifying:
            if renewer.draining.isClosed { throw Self.draining }
            let begun = try await onWhatIsStored(of: id, tenant) { standing throws(StoreError) in
                try await self.begin(standing, id, of: tenant)
            }
            guard let presented = begun else { return try await renew(id, of: tenant) }
            // A refresh token that was exchanged is stored even where the operator's client has gone.
            return try await flights.runToEnd(
                RefreshID(), on: renewer.providers.endpoint.executor, interruption: Self.interruption,
                work: { () async throws(BrokerError) in try await self.present(presented, id, of: tenant) },
                reporting: { _ in })
        }
    }

    // MARK: What is stored

    /// What can be restored of a storage key, and the record of its credentials.
    private enum Standing {
        /// The session is stored, and a wave holds it.
        case held(HeldCredentials, CredentialsSnapshot)
        case quarantined(CredentialsRecords.Quarantine, over: CredentialsSnapshot)
    }

    /// Runs `body` on what can be restored, and again after a conflict.
    private func onWhatIsStored<R>(
        of id: CredentialsID, _ tenant: Tenant, _ body: (Standing) async throws(StoreError) -> Result<R, BrokerError>
    ) async throws(BrokerError) -> R {
        let outcome: Result<R, BrokerError>
        do throws(StoreError) {
            outcome = try await retryingConflicts { () async throws(StoreError) in
                let current = try await self.records.reread(id)
                if current.record.granted?.level == .user, !current.record.isOver {
                    // Over a session that is held, a login's set may wait for its verification.
                    guard let held = current.record.held, try await self.records.isHeld(id, held) else {
                        return .failure(Self.isLoggedIn)
                    }
                    return try await body(.held(held, current))
                }
                guard let quarantined = try await self.records.quarantined(id),
                    quarantined.content.until > self.time.now
                else {
                    // Another call may have restored them since the credentials were read.
                    if try await self.records.reread(id).version != current.version { throw .conflict }
                    return .failure(Self.nothing)
                }
                if await self.renewer.isBeingPresented(quarantined, of: tenant) { return .failure(Self.isUnderWay) }
                return try await body(.quarantined(quarantined, over: current))
            }
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
        return try outcome.get()
    }

    /// Stores quarantined credentials, in place of exactly what is there.
    /// - Parameter renewed: when the provider has granted them instead of those; nil where it was not asked.
    private func write(
        _ credentials: HeldCredentials, _ renewed: Timestamp?, _ id: CredentialsID, over current: CredentialsSnapshot,
        of quarantined: CredentialsRecords.Quarantine?
    ) async throws(StoreError) -> Restored {
        let now = time.now
        // A login of its own: the sessions of apps have ended with the one before, and stay ended.
        let held = credentials.loggedIn(after: current.record.held, at: now)
        let snapshot = try await records.write(
            CredentialRecord(held: held, renewed: renewed), id, over: current,
            alongside: quarantined.map { [$0.removal] } ?? []
        ) { version in [.updated(id, to: held, version: version, by: .restored, nil, at: now)] }
        noteRestored(id, snapshot)
        return Restored(held: held, snapshot: snapshot)
    }

    private func noteRestored(_ id: CredentialsID, _ snapshot: CredentialsSnapshot) {
        records.log.info("credentials_restored", LogField.credentials(id) + [.version(snapshot.version)])
    }

    // MARK: Verified

    /// Quarantined credentials, under a lease on their record: no other call presents their refresh token meanwhile.
    private struct Presented {
        let quarantined: CredentialsRecords.Quarantine
        let current: CredentialsSnapshot
        let lease: OwnLease
        let rules: RenewalRules

        /// The claim that extends the lease.
        func claim(notAfter latest: Timestamp? = nil) -> LeaseClaim {
            lease.claim(by: rules, marksUse: true, notAfter: latest)
        }
    }

    /// Frees credentials that are held, or takes the lease on those that are quarantined.
    /// - Returns: nil for credentials that were held.
    private func begin(
        _ standing: Standing, _ id: CredentialsID, of tenant: Tenant
    ) async throws(StoreError) -> Result<Presented?, BrokerError> {
        switch standing {
        case .held(let held, _):
            guard try await records.free(id, held) else { throw .conflict }
            return .success(nil)
        case .quarantined(let quarantined, let current):
            if quarantined.content.credentials.refreshToken == nil { return .failure(Self.hasNoRefreshToken) }
            let presented = Presented(
                quarantined: quarantined, current: current,
                lease: OwnLease(on: CredentialsRecords.quarantineID(id), of: id, by: renewer.keeper),
                rules: TokenPresentation.rules(of: tenant, by: renewer))
            var claim = presented.claim(notAfter: records.claimDeadline)
            claim.replacing = quarantined.lease?.holder
            claim.replacesStanding = claim.replacing.map(renewer.holders.isGone) ?? false
            do throws(StoreError) {
                try await presented.lease.take(claim, on: quarantined.version)
                return .success(presented)
            } catch {
                presented.lease.end()
                throw error
            }
        }
    }

    /// Extends the lease before a call: another process may have taken it since, and a logout may have come.
    private func claimAgain(_ presented: Presented, _ id: CredentialsID) async throws(BrokerError) {
        do throws(StoreError) {
            try await presented.lease.take(
                presented.claim(notAfter: records.claimDeadline), on: presented.quarantined.version)
        } catch .conflict {
            throw Self.isUnderWay
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
    }

    /// Refreshes credentials that were held.
    private func renew(_ id: CredentialsID, of tenant: Tenant) async throws(BrokerError) -> Restored {
        let query = CredentialsQuery(policy: .localForceRefresh, lowestLevel: .user)
        let answer = try await credentials.credentials(id, of: tenant, query, patience: nil)
        guard let held = answer.snapshot.record.held else { throw Self.nothing }
        return Restored(held: held, snapshot: answer.snapshot)
    }

    /// Presents the refresh token, stores what the provider grants, and ends the lease.
    private func present(
        _ presented: Presented, _ id: CredentialsID, of tenant: Tenant
    ) async throws(BrokerError) -> Restored {
        defer { presented.lease.end() }
        let earlier = presented.quarantined.content.credentials
        let presentation = TokenPresentation(
            of: earlier, id, of: tenant, by: renewer, again: "restore the session again",
            claim: { () async throws(BrokerError) in try await self.claimAgain(presented, id) })
        let extending = presented.lease.beginExtending(
            by: presented.claim(), on: presented.quarantined.version, presented.rules)
        defer { presented.lease.endExtending(extending) }
        let granted: TokenPresentation.Granted
        do throws(BrokerError) {
            granted = try await presentation.run()
        } catch {
            await release(presented, isSpent: presentation.mayBeSpent)
            throw error
        }
        switch granted {
        case .refreshToken(let kept):
            return try await settle(kept, presented, id, of: tenant, by: presentation)
        case .tokens(let held, let idToken):
            switch await presentation.verdict(on: held, idToken) {
            case .verified(let verified, let told) where !earlier.isOfOtherUser(than: told):
                return try await settle(verified, presented, id, of: tenant, by: presentation)
            case .verified:
                records.log.error(
                    "subject_changed", LogField.credentials(id) + [.provider(tenant.configuration.preset)])
                renewer.metrics.subjectChanged(provider: tenant.configuration.preset.name)
                try await keep(held, presented, id)
                throw BrokerError.subjectChanged
            case .refused(let error):
                records.log.error("tokens_refused", LogField.credentials(id) + LogField.reason(of: error))
                try await keep(held, presented, id)
                throw error
            case .unavailable(let error):
                try await keep(held, presented, id)
                throw error.asMissingKeys
            }
        }
    }

    /// Stores what the provider has just granted, so that its refresh token is nowhere else. A store that does not take it is asked
    /// again until it does; meanwhile the journal has it, if there is one.
    private func settle(
        _ held: HeldCredentials, _ presented: Presented, _ id: CredentialsID, of tenant: Tenant,
        by presentation: TokenPresentation
    ) async throws(BrokerError) -> Restored {
        let now = time.now
        let login = held.loggedIn(after: presented.current.record.held, at: now)
        let record = CredentialRecord(held: login, renewed: now)
        let outcome = try await writer.untilStored(
            id,
            failed: { (error, tries) throws(BrokerError) in
                if error == .conflict, (try? await self.records.tenantExists(id)) == false {
                    throw CredentialsWriter.tenantIsGone
                }
                if tries == 1 {
                    await presentation.writeJournal(record, over: presented.current.version, by: .restored)
                }
            },
            { () async throws(StoreError) in
                try await retryingConflicts { () async throws(StoreError) in
                    try await self.store(held, at: now, presented, id)
                }
            })
        let isStored = if case .success = outcome { true } else { false }
        await presentation.leaveJournal(isStored: isStored)
        switch outcome {
        case .success: break
        case .failure(Self.isLoggedIn): try await keep(held, presented, id)
        case .failure: await revoke(held, id, of: tenant)
        }
        return try outcome.get()
    }

    /// Makes one try to store what the provider has granted.
    /// - Returns: `isLoggedIn` where another login has come, and `nothing` where a logout has.
    private func store(
        _ held: HeldCredentials, at now: Timestamp, _ presented: Presented, _ id: CredentialsID
    ) async throws(StoreError) -> Result<Restored, BrokerError> {
        let current = try await records.reread(id, requiringTombstones: false)
        if let stored = current.record.granted, stored.level == .user, !current.record.isOver {
            // An earlier try may have been carried out although its answer was lost.
            if stored.refreshToken == held.refreshToken, stored.accessToken == held.accessToken {
                return .success(Restored(held: stored, snapshot: current))
            }
            // A session that was restored meanwhile with the refresh token that is spent goes on with its successor.
            let spent = presented.quarantined.content.credentials.refreshTokenDigest
            guard let spent, stored.refreshTokenDigest == spent else { return .failure(Self.isLoggedIn) }
            return .success(try await write(held, now, id, over: current, of: nil))
        }
        let quarantined = try await records.quarantined(id)
        if let quarantined, quarantined.version == presented.quarantined.version {
            return .success(try await write(held, now, id, over: current, of: quarantined))
        }
        // Its time is over. A logout would have left another version.
        guard quarantined == nil, current.version == presented.current.version else { return .failure(Self.nothing) }
        return .success(try await write(held, now, id, over: current, of: nil))
    }

    /// Has a grant revoked that came after a logout, and that nothing will use.
    private func revoke(_ held: HeldCredentials, _ id: CredentialsID, of tenant: Tenant) async {
        records.log.warning("restored_grant_dropped", LogField.credentials(id))
        do throws(StoreError) {
            try await records.commit(
                [.require(RecordID(.tenant, id.tenant))] + revocations.revocation(of: held, id, of: tenant))
            revocations.beginSoon()
        } catch {
            if error != .conflict { records.report(error, id) }
        }
    }

    /// Keeps the refresh token that the provider has given in exchange for that of quarantined credentials, in its place, which ends
    /// the lease. Nothing is done where they were removed or replaced meanwhile.
    private func keep(
        _ held: HeldCredentials, _ presented: Presented, _ id: CredentialsID
    ) async throws(BrokerError) {
        var content = presented.quarantined.content
        if let newest = held.refreshToken, newest != content.credentials.refreshToken {
            content.credentials = content.credentials.renewing(
                refreshToken: newest, usableFrom: held.refreshableFrom)
        }
        let change = records.change(quarantining: content, id, over: presented.quarantined.version)
        try await writer.untilStored(
            id, failed: { _, _ in },
            { () async throws(StoreError) in
                do throws(StoreError) {
                    try await self.records.commit([change])
                } catch .conflict {
                    // It was carried out at an earlier try, or there is nothing left to replace.
                }
            })
    }

    /// Ends the lease after nothing was granted.
    /// - Parameter isSpent: whether the refresh token may have been exchanged all the same.
    private func release(_ presented: Presented, isSpent: Bool) async {
        let release = LeaseRelease(isSpent ? .unknown(recovery: nil) : .settled)
        do throws(StoreError) {
            try await presented.lease.giveBack(
                by: [[presented.lease.release(presented.quarantined.version, release)]], within: nil)
        } catch {
            // The lease runs out by itself. A conflict means that a logout or a login has come.
            if error != .conflict { records.report(error, presented.lease.id) }
        }
    }

    private static let interruption = "The request ended before the session was restored."
    private static let isLoggedIn = BrokerError(
        .conflict, "User credentials are stored under this storage key already.")
    private static let nothing = BrokerError(
        .notFound, "No credentials are quarantined under this storage key.")
    private static let isUnderWay = BrokerError(
        .retryableError,
        "Another call is presenting the refresh token of these credentials to the provider. Ask again.",
        retryAfter: 1)
    private static let hasNoRefreshToken = BrokerError(
        .notFound,
        "The quarantined credentials have no refresh token that the provider could be asked about. Restore them without verify."
    )
    private static let draining = BrokerError(
        .retryableError, "The broker is shutting down. Restore the session again.", retryAfter: 1)
}
