import CredentialStore
import ExternalText
package import OAuth
import Reactor
package import Waiting

/// Ends sessions of apps: those that expire, and those whose login has ended or whose client was removed.
///
/// The commit of such a change has a record with a due mark, so that another process ends the sessions if this one dies.
/// Ending a session twice does nothing, so several replicas may do the same work.
///
/// Safe to use from any task.
package final class SessionEndings: BackgroundJob {
    private static let batch = 100
    /// How many pages of `batch` records a logout waits for.
    private static let firstPages = 5
    /// When a record that this process cannot read is handled again: another replica may be able to read it.
    private static let unreadablePause: Duration = .seconds(3600)

    private let sessions: AppSessions
    private var vault: Vault { sessions.vault }
    package var time: any Time { sessions.time }
    package var wakeUps: KeyedSignal<Int>? { sessions.records.sessionEndings }
    private var log: Log { sessions.log }

    init(sessions: AppSessions) {
        self.sessions = sessions
    }

    package func work() async -> NextTime { .after(await handleAllDue()) }

    /// Ends all sessions that are to be ended now.
    /// - Returns: after how long to search again.
    package func handleAllDue() async -> Duration {
        let search = DueRecords(vault: vault, time: time, batch: Self.batch, interval: JobInterval.sessionEndings)
        return await search.pause(.sessionEnding, .session, log: log) { () async throws(StoreError) in
            // A mark of this moment is due already: the commit of a logout has written it.
            try await search.handleAll(.sessionEnding, ahead: .milliseconds(1)) { due throws(StoreError) in
                try await self.handle(due) { record throws(StoreError) in try await self.carryOut(record) }
            }
            try await search.handleAll(.session, ahead: .milliseconds(1)) { due throws(StoreError) in
                try await self.handle(due) { record throws(StoreError) in try await self.expire(record) }
            }
        }
    }

    /// Ends the first sessions of credentials that were removed, so that the caller finds them ended. The job ends the rest, and
    /// all of them if the store does not answer: the commit of the removal has left it a record.
    /// - Parameter removed: when the credentials were removed. Sessions of a later login go on.
    package func endFirst(of id: CredentialsID, by cause: BrokerEvent.SessionEnd, before removed: Timestamp) async {
        do throws(StoreError) {
            let ending = PendingSessionEnding(.of(id.storageKey), cause: cause, before: removed)
            try await carryOut(ending, in: id.tenant, pages: Self.firstPages)
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
        try await carryOut(pending, in: due.id.tenant)
        if Task.isCancelled { return }
        do throws(StoreError) {
            try await vault.commit([.remove(due.id, version: due.version)])
        } catch .conflict {
            // Another replica has done the same work.
            return
        }
    }

    private func carryOut(
        _ ending: PendingSessionEnding, in tenant: TenantName, pages: Int = .max
    ) async throws(StoreError) {
        var (pages, present): (Int, Timestamp?) = (pages, nil)
        let storageKey: StorageKey? = if case .of(let storageKey) = ending.sessions { storageKey } else { nil }
        if let storageKey {
            // Read before the sessions: those of a login that comes now are not found.
            let id = CredentialsID(tenant: tenant, storageKey: storageKey)
            let held = try await sessions.records.reread(id, requiringTombstones: false).record.held
            if let held, held.isLoggedIn(at: time.now) { present = held.loggedInSince }
        }
        var after: String?
        while !Task.isCancelled {
            let (found, next) = try await sessions.list(
                of: tenant, storageKey: storageKey, after: after, limit: Self.batch)
            for session in found where ending.ends(session.owner, of: session.clientID, whileLoggedInSince: present) {
                _ = try await sessions.end(session.recordID, by: ending.cause)
            }
            guard let next else { break }
            after = next
            pages -= 1
            if pages == 0 { return }
        }
        try await removeKeys(ending, in: tenant, whileLoggedInSince: present, pages: pages)
    }

    /// Removes the biometric keys whose login or client has ended with the sessions.
    private func removeKeys(
        _ ending: PendingSessionEnding, in tenant: TenantName, whileLoggedInSince present: Timestamp?, pages: Int
    ) async throws(StoreError) {
        var pages = pages
        let prefix: String? =
            if case .of(let storageKey) = ending.sessions { PendingSessionEnding.keyPrefix(of: storageKey) } else {
                nil
            }
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
                if ending.ends(key.owner, of: key.clientID, whileLoggedInSince: present) {
                    try await sessions.remove(record.id)
                }
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
        try await vault.moveMark(of: due.id, due.version, from: due.mark, to: mark)
    }
}

extension PendingSessionEnding {
    /// Whether it ends what belongs to that login and client.
    /// - Parameter present: the login that is there now; nil where there is none, or where it does not matter. What belongs to it
    ///   goes on.
    func ends(_ owner: AppOwner, of clientID: String, whileLoggedInSince present: Timestamp?) -> Bool {
        if case .ofClient(let ended) = sessions, WireText(clientID) != WireText(ended) { return false }
        guard let own = owner.login else { return owner.created <= before }
        if own == present, own != HeldCredentials.unknownLogin { return false }
        return own == login || owner.created <= before
    }
}
