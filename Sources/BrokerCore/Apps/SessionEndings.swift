internal import CredentialStore
internal import ExternalText
package import OAuth
internal import Reactor
internal import Waiting

/// Ends sessions of apps: those that expire, and those whose user has logged out, was replaced, or whose client was removed.
///
/// The commit of such a change has a record with a due mark, so that another process ends the sessions if this one dies.
/// Ending a session twice does nothing, so several replicas may do the same work.
///
/// Safe to use from any task.
package final class SessionEndings: Sendable {
    private static let batch = 100
    /// How many pages of `batch` records a logout waits for.
    private static let firstPages = 5
    /// The longest pause between two searches.
    private static let interval: Duration = .seconds(30)
    /// When a record that this process cannot read is handled again: another replica may be able to read it.
    private static let unreadablePause: Duration = .seconds(3600)

    private let sessions: AppSessions
    private var vault: Vault { sessions.vault }
    private var time: any Time { sessions.time }
    private var log: Log { sessions.log }

    init(sessions: AppSessions) {
        self.sessions = sessions
    }

    /// Works until its task is cancelled. To be called once at most.
    package func run() async {
        let signal = sessions.records.sessionEndings
        while !Task.isCancelled {
            let ticket = signal.ticket(0)
            let pause = await handleAllDue()
            await signal.wait(for: 0, since: ticket) { _ = try? await self.time.sleep(for: pause) }
        }
    }

    /// Ends all sessions that are to be ended now.
    /// - Returns: after how long to search again.
    package func handleAllDue() async -> Duration {
        do throws(StoreError) {
            let search = DueRecords(vault: vault, time: time, batch: Self.batch, interval: Self.interval)
            // A mark of this moment is due already: the commit of a logout has written it.
            try await search.handleAll(.sessionEnding, ahead: .milliseconds(1)) { due throws(StoreError) in
                try await self.handle(due) { record throws(StoreError) in try await self.carryOut(record) }
            }
            try await search.handleAll(.session, ahead: .milliseconds(1)) { due throws(StoreError) in
                try await self.handle(due) { record throws(StoreError) in try await self.expire(record) }
            }
            return try await search.pause(.sessionEnding, .session)
        } catch {
            log.storeFailed(error)
            return Self.interval
        }
    }

    /// Ends the first sessions of credentials that were removed, so that the caller finds them ended. The job ends the rest, and
    /// all of them if the store does not answer: the commit of the removal has left it a record.
    /// - Parameter removed: when the credentials were removed. Sessions of a later login go on.
    package func endFirst(of id: CredentialsID, by cause: BrokerEvent.SessionEnd, before removed: Timestamp) async {
        do throws(StoreError) {
            try await end(.of(id.storageKey), of: id.tenant, by: cause, before: removed, pages: Self.firstPages)
        } catch {
            log.storeFailed(error, LogField.credentials(id))
        }
    }

    /// - Returns: true, because each record is removed or has a later mark then; the task may be cancelled before that.
    private func handle(
        _ due: [DueRecord], _ handle: (DueRecord) async throws(StoreError) -> Void
    ) async throws(StoreError) -> Bool {
        for record in due {
            if Task.isCancelled { break }
            do throws(StoreError) {
                try await handle(record)
            } catch .damaged(let text) {
                // Another replica may be able to read what this one cannot. The other records must not wait for it.
                log.storeFailed(.damaged(text))
                try await postpone(record, to: time.now.advanced(by: Self.unreadablePause))
            }
        }
        return true
    }

    /// Ends the sessions that a record names, then removes the record.
    private func carryOut(_ due: DueRecord) async throws(StoreError) {
        guard let record = due.record, let pending = PendingSessionEnding(record) else {
            log.error("session_ending_unreadable", [.tenant(due.id.tenant), .version(due.version)])
            return try await postpone(due, to: time.now.advanced(by: Self.unreadablePause))
        }
        try await end(pending.sessions, of: due.id.tenant, by: pending.cause, before: pending.before)
        if Task.isCancelled { return }
        do throws(StoreError) {
            try await vault.commit([.remove(due.id, version: due.version)])
        } catch .conflict {
            // Another replica has done the same work.
            return
        }
    }

    private func end(
        _ which: PendingSessionEnding.Sessions, of tenant: TenantName, by cause: BrokerEvent.SessionEnd,
        before: Timestamp, pages: Int = .max
    ) async throws(StoreError) {
        var pages = pages
        let storageKey: StorageKey? = if case .of(let storageKey) = which { storageKey } else { nil }
        var after: String?
        while !Task.isCancelled {
            let (found, next) = try await sessions.list(
                of: tenant, storageKey: storageKey, after: after, limit: Self.batch)
            for session in found where session.created <= before {
                if case .ofClient(let clientID) = which, WireText(session.clientID) != WireText(clientID) { continue }
                _ = try await sessions.end(session.recordID, by: cause)
            }
            guard let next else { break }
            after = next
            pages -= 1
            if pages == 0 { return }
        }
        try await removeKeys(which, of: tenant, before: before, pages: pages)
    }

    /// Removes the biometric keys whose user or client has ended with the sessions.
    private func removeKeys(
        _ which: PendingSessionEnding.Sessions, of tenant: TenantName, before: Timestamp, pages: Int
    ) async throws(StoreError) {
        var pages = pages
        let prefix: String? =
            if case .of(let storageKey) = which { PendingSessionEnding.keyPrefix(of: storageKey) } else { nil }
        var after = prefix.map { RecordID(.biometricKey, tenant, key: $0) }
        while !Task.isCancelled {
            let found = try await vault.listSealed(.biometricKey, tenant: tenant, after: after, limit: Self.batch)
            for record in found {
                if let prefix, !WireText(record.id.key).starts(with: WireText(prefix)) { return }
                let key: BiometricKey
                do throws(StoreError) {
                    key = try BiometricKey(try vault.open(record))
                } catch {
                    log.error("biometric_key_unreadable", [.tenant(tenant), .version(record.version)])
                    continue
                }
                if case .ofClient(let clientID) = which, WireText(key.clientID) != WireText(clientID) { continue }
                if key.created <= before { try await sessions.remove(record.id) }
            }
            guard found.count == Self.batch, let last = found.last else { return }
            after = last.id
            pages -= 1
            if pages == 0 { return }
        }
    }

    /// Ends a session that has expired, or moves its mark where its client's settings have changed.
    private func expire(_ due: DueRecord) async throws(StoreError) {
        guard let record = due.record, let session = try? AppSession(record) else {
            log.error("session_unreadable", [.tenant(due.id.tenant), .version(due.version)])
            return try await postpone(due, to: time.now.advanced(by: Self.unreadablePause))
        }
        let client: AppClient?
        do throws(BrokerError) {
            client = try await sessions.clients.client(WireText(session.clientID), of: session.tenant)
        } catch {
            throw error.storeError ?? .unavailable
        }
        guard let client else {
            _ = try await sessions.end(session.recordID, by: .clientRemoved)
            return
        }
        let end = sessions.end(of: session, client)
        if end > time.now { return try await postpone(due, to: end) }
        _ = try await sessions.end(
            session.recordID, by: .expired, if: { self.sessions.end(of: $0, client) <= self.time.now })
    }

    private func postpone(_ due: DueRecord, to mark: Timestamp) async throws(StoreError) {
        do throws(StoreError) {
            try await vault.commit([.settleDue(due.id, version: due.version, due: due.mark, next: mark)])
        } catch .conflict {
            return
        }
    }
}
