import CredentialStore
import Cryptography
package import OAuth
package import Reactor
package import Waiting

/// Ends the sessions of users who have logged out at their providers: at once, and again for a day where that fails.
///
/// What is needed for that is in a record of its own, which the commit of the logout writes. Its due mark says when the next try
/// is made; the replica that moves the mark by compare-and-set makes it. A process that ends meanwhile leaves the record to
/// another replica, or to the next process.
///
/// It also sees to grants of logins whose process has ended: see `UnsettledCode`.
///
/// Safe to use from any task.
package final class RevocationJob: BackgroundJob {
    /// A logout whose revocation has its record.
    package struct Logout: Sendable {
        fileprivate let pending: PendingRevocation
        fileprivate let record: OpenRecord
    }

    private static let batch = 100
    /// How many revocations are made at once.
    private static let atOnce = 8
    /// When a record that this process cannot read is handled again: another replica may be able to read it.
    private static let unreadablePause: Duration = .seconds(3600)
    /// The longest that a provider's `Retry-After` delays the next try.
    private static let longestRetryAfter: Duration = .seconds(3600)

    let records: CredentialsRecords
    let providers: ProviderAccess
    private let clientFaults: ClientFaults
    private let pauses = RevocationPauses()
    package let time: any Time
    let log: Log
    /// Signalled when this process has written an earlier mark.
    private let marks = KeyedSignal<Int>()
    package var wakeUps: KeyedSignal<Int>? { marks }

    var vault: Vault { records.vault }

    init(records: CredentialsRecords, providers: ProviderAccess, clientFaults: ClientFaults) {
        self.records = records
        self.providers = providers
        self.clientFaults = clientFaults
        (time, log) = (records.time, records.log)
    }

    /// How long one try takes at most: the provider's metadata may have to be fetched first.
    var longestTry: Duration { providers.callLimit + .seconds(10) }

    // MARK: At the logout

    /// Whether the tenant's provider may have an endpoint that ends sessions.
    private func mayRevoke(_ tenant: Tenant) -> Bool {
        providers.servers.mayRevoke(tenant.configuration)
    }

    /// The record that the commit of a logout writes; nil where the provider cannot end sessions.
    func logout(of held: HeldCredentials, _ id: CredentialsID, of tenant: Tenant) -> Logout? {
        guard mayRevoke(tenant) else { return nil }
        let now = time.now
        let pending = PendingRevocation(storageKey: id.storageKey, credentials: held, loggedOut: now)
        // Another replica makes the next try if this process ends during the first one. A broker that does not run until the
        // tries should have ended makes a last one, and the record expires if none can read it.
        return Logout(
            pending: pending,
            record: newRecord(pending.encoded, of: id.tenant, since: now, due: now.advanced(by: longestTry)))
    }

    func newRecord(_ content: [UInt8], of tenant: TenantName, since begun: Timestamp, due: Timestamp) -> OpenRecord {
        Self.record(
            content, RecordID(.revocation, tenant, key: RefreshID().text), version: records.nextVersion(after: 0),
            since: begun, due: due)
    }

    static func record(
        _ content: [UInt8], _ id: RecordID, version: Int64, since begun: Timestamp, due: Timestamp
    ) -> OpenRecord {
        OpenRecord(
            id: id, version: version, content: SecretBytes(content),
            expires: begun.advanced(by: PendingRevocation.span * 2), due: due)
    }

    /// Logs a user out: removes the credentials, then makes the first try to end the session at the provider. A try that fails
    /// is repeated in the background.
    /// - Returns: the outcome of the revocation; nil where there were no credentials to remove.
    /// - Throws: `storage_unavailable` where the store does not answer, and `conflict` as `CredentialsWriter.purge` does; then
    ///   nothing was revoked.
    package func logOut(
        _ id: CredentialsID, of tenant: Tenant, by writer: CredentialsWriter, arrival: MonotonicInstant? = nil
    ) async throws(BrokerError) -> ProviderAccess.Revocation? {
        var logout: Logout?
        let purged = try await writer.purge(id, arrival: arrival) { held in
            logout = self.logout(of: held, id, of: tenant)
            return logout.map { [.insert($0.record)] } ?? []
        }
        guard let purged else { return nil }
        guard let logout else { return .unsupported }
        let outcome = await revoke(purged, of: tenant)
        let (pending, record) = (logout.pending, logout.record)
        do throws(StoreError) {
            switch outcome {
            case .revoked, .unsupported: try await vault.commit([.remove(record.id, version: record.version)])
            case .failed(let failure) where failure.isFinal:
                try await giveUp(pending, id, after: failure, .remove(record.id, version: record.version))
            case .failed(let failure):
                log.warning("revocation_failed", LogField.credentials(id) + failure.fields)
                let next = later(pending.firstTry(after: time.now), failure)
                try await vault.moveMark(of: record.id, record.version, from: record.due, to: next)
                marks.signal(0)
            }
        } catch {
            // The mark stays as the logout has set it, and the revocation is tried again then.
            records.report(error, id)
        }
        return outcome.told
    }

    // MARK: One try

    private enum Outcome {
        case revoked
        case failed(RevocationFailure)
        /// The tenant's provider cannot end the session.
        case unsupported

        var told: ProviderAccess.Revocation {
            switch self {
            case .revoked: .revoked
            case .failed: .failed
            case .unsupported: .unsupported
            }
        }
    }

    /// Revokes credentials at the provider that has granted them, unless that does not accept the tenant's client at present.
    private func revoke(_ held: HeldCredentials, of tenant: Tenant) async -> Outcome {
        do throws(BrokerError) {
            guard let server = try await providers.server(endingSessionOf: held, of: tenant) else {
                return .unsupported
            }
            let tenant = tenant.ofClient(of: held)
            if let fault = clientFaults.refusal(ofClientOf: tenant) {
                return .failed(
                    RevocationFailure(
                        code: fault.code, errorCode: fault.errorCode,
                        retryAfter: fault.retryAfter.map { .seconds($0) }))
            }
            if let failure = pauses.refusal(of: tenant, now: time.monotonic) { return .failed(failure) }
            let failure = await providers.endpoint.revoke(held, for: tenant.configuration.client, at: server)
            pauses.note(failure, of: tenant, now: time.monotonic)
            return failure.map { .failed($0) } ?? .revoked
        } catch {
            return .failed(RevocationFailure(code: error.code, errorCode: error.errorCode))
        }
    }

    /// When to try again: not before the provider may be asked.
    private func later(_ next: Timestamp, _ failure: RevocationFailure) -> Timestamp {
        max(next, time.now.advanced(by: min(failure.retryAfter ?? .zero, Self.longestRetryAfter)))
    }

    /// Tells that the session could not be ended, and removes its record.
    private func giveUp(
        _ pending: PendingRevocation, _ id: CredentialsID, after failure: RevocationFailure, _ removal: VaultChange
    ) async throws(StoreError) {
        let event = BrokerEvent.revocationFailed(
            id, failure.code, errorCode: failure.errorCode, status: failure.status, since: pending.loggedOut,
            at: time.now)
        try await records.commit([removal], events: [event], of: id)
        log.error("revocation_given_up", LogField.credentials(id) + failure.fields)
    }

    // MARK: At a login

    /// The change that has a grant revoked that will never be used, at once and again for a day; none where the provider cannot
    /// end sessions. `beginSoon` is to be called once it is committed.
    func revocation(of held: HeldCredentials, _ id: CredentialsID, by server: AuthorizationServer) -> [VaultChange] {
        server.canRevoke ? [revocation(of: held, id)] : []
    }

    /// The same for a grant whose provider's endpoints may not be known now.
    func revocation(of held: HeldCredentials, _ id: CredentialsID, of tenant: Tenant) -> [VaultChange] {
        mayRevoke(tenant) ? [revocation(of: held, id)] : []
    }

    private func revocation(of held: HeldCredentials, _ id: CredentialsID) -> VaultChange {
        let now = time.now
        let pending = PendingRevocation(storageKey: id.storageKey, credentials: held, loggedOut: now)
        return .insert(newRecord(pending.encoded, of: id.tenant, since: now, due: now))
    }

    /// Has the job look for revocations that are due.
    func beginSoon() { marks.signal(0) }

    // MARK: In the background

    package func work() async -> NextTime { .after(await handleAllDue()) }

    /// Makes every try that is due now.
    /// - Returns: after how long to search again.
    package func handleAllDue() async -> Duration {
        let search = DueRecords(vault: vault, time: time, batch: Self.batch, interval: JobInterval.revocation)
        return await search.pause(.revocation, log: log) { () async throws(StoreError) in
            try await search.handleAll(.revocation) { due throws(StoreError) in
                try await self.handle(due)
                return true
            }
        }
    }

    private func handle(_ due: [DueRecord]) async throws(StoreError) {
        let failure = await withTaskGroup(of: StoreError?.self) { group in
            var (begun, failure) = (0, StoreError?.none)
            for record in due {
                if failure != nil || Task.isCancelled { break }
                if begun >= Self.atOnce, let ended = await group.next() { failure = failure ?? ended }
                group.addTask { await self.attempt(record) }
                begun += 1
            }
            for await ended in group { failure = failure ?? ended }
            return failure
        }
        if let failure { throw failure }
    }

    /// Makes one try, unless another replica makes it.
    /// - Returns: the error of the store; nil where it answered.
    private func attempt(_ due: DueRecord) async -> StoreError? {
        do throws(StoreError) {
            if let code = due.record.flatMap({ UnsettledCode(decoding: $0.content.revealedBytes) }) {
                try await settle(code, due)
                return nil
            }
            guard let pending = due.record.flatMap({ PendingRevocation(decoding: $0.content.revealedBytes) }) else {
                log.error("revocation_unreadable", [.tenant(due.id.tenant), .version(due.version)])
                try await vault.moveMark(
                    of: due.id, due.version, from: due.mark, to: time.now.advanced(by: Self.unreadablePause))
                return nil
            }
            let claimed = time.now.advanced(by: longestTry)
            guard try await vault.moveMark(of: due.id, due.version, from: due.mark, to: claimed) else { return nil }
            let id = CredentialsID(tenant: due.id.tenant, storageKey: pending.storageKey)
            let removal = VaultChange.remove(due.id, version: due.version)
            let outcome: Outcome
            do throws(BrokerError) {
                // The tenant's records are gone with it.
                guard let tenant = try await records.tenants.currentTenant(due.id.tenant) else { return nil }
                outcome = await revoke(pending.credentials, of: tenant)
            } catch {
                outcome = .failed(RevocationFailure(code: error.code))
            }
            switch (outcome, pending.nextTry(after: time.now)) {
            case (.revoked, _):
                try await vault.commit([removal])
                log.info("revoked", LogField.credentials(id))
            case (.failed(let failure), let next?) where !failure.isFinal:
                log.warning("revocation_failed", LogField.credentials(id) + failure.fields)
                try await vault.moveMark(of: due.id, due.version, from: claimed, to: later(next, failure))
            case (.failed(let failure), _): try await giveUp(pending, id, after: failure, removal)
            case (.unsupported, _): try await giveUp(pending, id, after: .unsupported, removal)
            }
        } catch .conflict {
            // The tenant was removed, or the login has ended after all.
            return nil
        } catch {
            return error
        }
        return nil
    }
}
