package import CredentialStore
package import Cryptography
import ExternalText
import JSON
package import OAuth
import Reactor
import Waiting

/// The sessions of apps in the store, with a cache of those that were used last.
///
/// Safe to use from any task, at any replica: each change is a compare-and-set of exactly the version that was read.
package final class AppSessions: Sendable {
    /// For how long a refresh token that was replaced gets the same answer again, because the answer may have been lost.
    package static let repetition: Duration = .seconds(10)
    /// After how long a use of a session without rotation is noted, which its idle end is measured from.
    private static let useInterval: Duration = .seconds(3600)

    let vault: Vault
    let records: CredentialsRecords
    let clients: AppClientDirectory
    let time: any Time
    let log: Log
    let bus: EventBus
    let sessions: CachedRecords<RecordID, AppSession>
    /// The answers that apps did not get because the store did not tell whether it had committed them.
    let unanswered: UnansweredGrants
    /// When refresh tokens were presented first that are being answered, or were not answered in time.
    let deferred: DeferredTokens
    let deferralReports: DeferralReports
    /// What this process committed lately, for a store that loses commits.
    var memory: RecentCommits { records.memory }

    init(records: CredentialsRecords, clients: AppClientDirectory) {
        self.records = records
        self.clients = clients
        (vault, bus, time, log) = (records.vault, records.bus, records.time, records.log)
        unanswered = UnansweredGrants(time: time)
        deferred = DeferredTokens(time: time)
        deferralReports = DeferralReports(of: deferred, records: records)
        let cache = RevalidatingCache<RecordID, AppSession>(bytes: 32 << 20, validity: bus.cacheValidity) {
            id, session in
            2 * id.key.utf8.count + 512 + session.replaced.reduce(0) { $0 + $1.answer.count + 128 }
                + (session.deviceKey?.jwk.count ?? 0) + (session.deviceInfo?.count ?? 0)
        } version: {
            $0.version
        }
        sessions = CachedRecords(cache, vault: vault, time: time)
        bus.onChange(of: .session) { id, version in cache.invalidate(id, olderThan: version) }
        bus.onRemoval { tenant in cache.removeAll { id, _ in id.tenant == tenant } }
    }

    /// The cache, for `CacheRevalidation`.
    var revalidatedCache: AnyRevalidatingCache { AnyRevalidatingCache(sessions.cache) { id, _ in id } }

    // MARK: Reading

    /// The session; nil where there is none. Does not suspend while a valid entry is in the cache.
    func session(_ id: RecordID) async throws(StoreError) -> AppSession? {
        if let session = sessions.valid(id) { return session }
        return try await reread(id)
    }

    /// The session, read from the store.
    package func reread(_ id: RecordID) async throws(StoreError) -> AppSession? {
        try await sessions.current(id) { () async throws(StoreError) in
            try await self.vault.read(id).map(AppSession.init)
        }
    }

    /// The session that a refresh token names, whatever else is in the token; nil where there is none.
    func known(_ token: AppSessionToken, of tenant: TenantName) async throws(AppError) -> AppSession? {
        let id = RecordID(.session, tenant, key: token.sessionID)
        do throws(StoreError) {
            if let session = try await session(id) { return session }
        } catch {
            throw AppError(BrokerError(error))
        }
        try await refuseIfLost(token, id)
        return nil
    }

    /// Whether a refresh token names a session of any tenant.
    func isKnown(_ token: AppSessionToken) async throws(AppError) -> Bool {
        do throws(StoreError) {
            return try await vault.find(.session, lookup: AppSession.lookup(token.sessionID)) != nil
        } catch {
            throw AppError(BrokerError(error))
        }
    }

    /// What a refresh token is good for.
    package enum Found: Sendable {
        case present(AppSession)
        /// The token was replaced a moment ago: the same answer is due.
        case repeated(AppSession, answer: SecretBytes)
        /// The token was presented a moment after its first use, and could not be answered then: its successor is due, with an
        /// access token that is good now.
        case delayed(AppSession, answer: SecretBytes)

        package var session: AppSession {
            switch self {
            case .present(let session), .repeated(let session, _), .delayed(let session, _): session
            }
        }
    }

    /// The session of a refresh token. A token that was replaced before ends its session (RFC 9700 §4.14.2), and one that was never
    /// issued changes nothing.
    /// - Parameter arrival: when the request came; nil for now.
    /// - Throws: `invalid_grant` where there is no such session of this client, or it has ended.
    package func find(
        _ token: AppSessionToken, of client: AppClient, arrival: Timestamp? = nil
    ) async throws(AppError) -> Found {
        let id = RecordID(.session, client.tenant, key: token.sessionID)
        var session: AppSession?
        do throws(StoreError) {
            session = try await self.session(id)
            // The cache may not have heard of the latest rotation yet.
            if let known = session, !known.has(token) { session = try await reread(id) }
        } catch {
            throw AppError(BrokerError(error))
        }
        if session == nil { try await refuseIfLost(token, id) }
        guard let session, WireText(session.clientID) == WireText(client.clientID), session.created >= client.created,
            session.hasIssued(token, by: vault)
        else { throw AppError.invalidRefreshToken }
        let now = time.now
        guard end(of: session, client) > now else {
            if mayBeOutdated { throw Self.lostCommits }
            try await end(session, by: .expired)
            throw AppError.invalidRefreshToken
        }
        if session.has(token) { return .present(session) }
        // Also a token before the last one: the app's next refresh may have come while this request was on its way.
        if let place = session.place(ofReplaced: token) {
            let earlier = session.replaced[place]
            if earlier.replaced.duration(to: now) <= Self.repetition {
                return .repeated(session, answer: earlier.answer)
            }
            // A request that waited for the store, or was told to come again, came in time.
            let arrival = arrival ?? now
            let first = deferred.firstPresentation(of: token.secretDigest) ?? arrival
            if earlier.replaced.duration(to: min(first, arrival)) <= Self.repetition {
                return .delayed(session, answer: earlier.answer)
            }
            do throws(StoreError) {
                if try await deferralReports.mayBeDeferred(
                    token.secretDigest, replaced: earlier.replaced, isLatest: place == 0)
                {
                    log.info("session_repeated_late", LogField.credentials(session.credentialsID))
                    return .delayed(session, answer: earlier.answer)
                }
            } catch {
                throw AppError(BrokerError(error))
            }
        }
        if let answer = unanswered.answer(to: token.secretDigest, provenBy: session.secretDigest) {
            return .delayed(session, answer: answer)
        }
        if token.generation > session.generation, token.isAuthentic(in: vault) {
            // The store has lost the commit that replaced the token which it has.
            log.warning("session_behind_token", LogField.credentials(session.credentialsID))
            return .present(session)
        }
        log.warning("session_replayed", LogField.credentials(session.credentialsID))
        try await end(session, by: .replay)
        throw AppError.invalidRefreshToken
    }

    /// When the session ends unless it is used.
    package func end(of session: AppSession, _ client: AppClient) -> Timestamp {
        client.sessionEnd(created: session.created, lastUsed: session.lastUsed)
    }

    /// Up to `limit` sessions of the tenant after `after`, in the order of their identifiers.
    /// - Parameter storageKey: nil for the sessions of all storage keys.
    /// - Returns: the sessions without those that cannot be read, and the identifier behind which to go on; nil where there are
    ///   no more.
    package func list(
        of tenant: TenantName, storageKey: StorageKey?, after: String?, limit: Int
    ) async throws(StoreError) -> (sessions: [AppSession], next: String?) {
        let prefix = storageKey.map(PendingSessionEnding.keyPrefix)
        let place = after ?? prefix
        let found = try await vault.listSealed(
            .session, tenant: tenant, after: place.map { RecordID(.session, tenant, key: $0) }, limit: limit)
        var sessions: [AppSession] = []
        for record in found {
            if let prefix, !WireText(record.id.key).starts(with: WireText(prefix)) { return (sessions, nil) }
            do throws(StoreError) {
                sessions.append(try AppSession(try vault.open(record)))
            } catch {
                log.error("session_unreadable", [.tenant(tenant), .version(record.version)])
            }
        }
        return (sessions, found.count == limit ? found.last?.id.key : nil)
    }

    // MARK: Writing

    /// Whether a session that goes on with its refresh token is to be written again.
    func isDue(_ session: AppSession) -> Bool {
        session.lastUsed.duration(to: time.now) >= Self.useInterval
    }

    /// Writes a session in place of exactly the version that was read.
    /// - Parameters:
    ///   - others: further changes of the same commit.
    /// - Throws: `.conflict` where the session was changed or ended meanwhile.
    @discardableResult
    package func replace(
        _ session: AppSession, _ client: AppClient, alongside others: [VaultChange] = []
    ) async throws(StoreError) -> AppSession {
        var next = session
        next.version = records.nextVersion(after: session.version)
        let change = VaultChange.replace(next.record(end: end(of: next, client)), version: session.version)
        do throws(StoreError) {
            try await sessions.write(session.recordID, next) { () async throws(StoreError) in
                try await self.vault.commit([change] + others)
            }
        } catch {
            // A store that has lost commits has an older version than the cache.
            if error == .conflict { sessions.forget(session.recordID) }
            throw error
        }
        return next
    }

    /// The changes that begin a session, with its event.
    func beginning(_ session: AppSession, _ client: AppClient) -> [VaultChange] {
        [
            .require(client.recordID), .insert(session.record(end: end(of: session, client))),
            BrokerEvent.entry(
                [
                    .sessionStarted(
                        session.credentialsID, session: session.id, client: session.clientID, at: session.created)
                ], of: session.credentialsID, at: session.created),
        ]
    }

    /// Sends the commit that begins a session, perhaps again, and has the session in memory from then on.
    func begin(_ session: AppSession, by commit: PreparedCommit) async throws(StoreError) {
        let arrival = try await sessions.write(
            session.recordID, session, sending: { () async throws(StoreError) in try await self.vault.commit(commit) })
        // It may have ended since.
        if arrival == .earlier, try await reread(session.recordID)?.version == session.version {
            await memory.note(commit.changes)
        }
        bus.announce(session.tenant)
    }

    // MARK: Ends

    /// For how long the store shows that a session has ended: for longer than any process keeps the session.
    private var markValidity: Duration { max(.seconds(600), memory.span * 2) }

    /// What the keys of the records that show a session's end begin with.
    private static func markPrefix(_ id: RecordID) -> String { id.key + "." }

    /// The records either of which shows the end of a session whose last record had that version: that of the commit which ended
    /// it, and that of `putMark`.
    static func markIDs(_ id: RecordID, _ version: Int64) -> [RecordID] { [markID(id, version), markID(id, 0)] }

    private static func markID(_ id: RecordID, _ version: Int64) -> RecordID {
        RecordID(.endedSession, id.tenant, key: markPrefix(id) + String(version))
    }

    private func mark(_ id: RecordID, _ version: Int64) -> VaultChange {
        .insert(
            OpenRecord(
                id: Self.markID(id, version), version: 1, content: SecretBytes([]),
                expires: time.now.advanced(by: markValidity)))
    }

    /// Shows that a session has ended that the store does not have.
    func putMark(_ id: RecordID) async throws(StoreError) {
        do throws(StoreError) {
            try await vault.commit([mark(id, 0)])
        } catch .conflict {
            // It is shown already.
            return
        }
    }

    /// Whether the store shows that the session has ended, within the last minutes.
    func hasEnded(_ id: RecordID) async throws(StoreError) -> Bool {
        let prefix = Self.markPrefix(id)
        let found = try await vault.list(
            .endedSession, tenant: id.tenant, after: RecordID(.endedSession, id.tenant, key: prefix), limit: 1)
        return found.contains { WireText($0.id.key).starts(with: WireText(prefix)) }
    }

    /// Removes a record, whatever became of it since it was read.
    func remove(_ id: RecordID) async throws(StoreError) {
        try await retryingConflicts { () async throws(StoreError) in
            guard let version = try await self.vault.version(of: id) else { return }
            try await self.vault.commit([.remove(id, version: version)])
        }
    }

    /// Ends a session, whatever it became since it was read.
    /// - Throws: `temporarily_unavailable` where the store does not answer.
    func end(_ session: AppSession, by cause: BrokerEvent.SessionEnd) async throws(AppError) {
        do throws(StoreError) {
            _ = try await end(session.recordID, by: cause)
        } catch {
            throw AppError(BrokerError(error))
        }
    }

    /// Ends the session.
    /// - Parameters:
    ///   - companions: further changes of the commit; called for each try.
    ///   - isKnown: whether there was such a session. If the store has lost it, no replica stores it again then.
    /// - Returns: false where there is none.
    package func end(
        _ id: RecordID, by cause: BrokerEvent.SessionEnd, isKnown: Bool = false,
        if condition: (AppSession) -> Bool = { _ in true },
        alongside companions: (AppSession) -> [VaultChange] = { _ in [] }
    ) async throws(StoreError) -> Bool {
        try await sessions.remove(id) { () async throws(StoreError) in
            guard let record = try await self.vault.read(id) else {
                if isKnown, self.records.rollback.isUnsettled {
                    try await self.putMark(id)
                    // As after a commit that ends it.
                    await self.memory.note([.remove(id, version: 0)])
                }
                return false
            }
            let session = try AppSession(record)
            guard condition(session) else { return false }
            let event = BrokerEvent.sessionEnded(
                session.credentialsID, session: session.id, client: session.clientID, by: cause, at: self.time.now)
            try await self.records.commit(
                [.remove(id, version: record.version), self.mark(id, record.version)] + companions(session),
                events: [event], of: session.credentialsID)
            self.bus.announce(id, version: nil)
            self.log.info(
                "session_ended", LogField.credentials(session.credentialsID) + [.outcome(cause.logged)])
            return true
        }
    }
}

extension BrokerEvent.SessionEnd {
    fileprivate var logged: StaticString {
        switch self {
        case .revoked: "revoked"
        case .replay: "replay"
        case .expired: "expired"
        case .logout: "logout"
        case .replaced: "replaced"
        case .clientRemoved: "client_removed"
        }
    }
}
