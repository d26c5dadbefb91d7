import CredentialStore
import ExternalText
import OAuth
import Reactor

/// Stores sessions again that the store has lost, in a failover to a standby that was behind, and ends again what this process has
/// ended.
struct SessionRecovery: RecordRestorer {
    let sessions: AppSessions

    let event: StaticString = "sessions_stored_again"
    let needsKnownLoss = false
    let stages: [[RecordKind]] = [[.session]]

    func witnesses(of known: RecentCommits.Known) -> [RecordID] {
        [known.id] + (known.isRemoved ? AppSessions.markIDs(known.id, known.version) : [])
    }

    func mayBeLost(_ known: RecentCommits.Known, _ versions: [Int64?]) -> Bool {
        // Whatever version it has: another replica may have stored it again that has not heard of its end.
        if known.isRemoved { return versions[0] != nil || versions.dropFirst().allSatisfy { $0 == nil } }
        return versions[0] != known.version
    }

    func restore(_ group: [RecordID]) async throws(StoreError) -> Bool {
        guard let known = sessions.records.memory.known(group).first else { return false }
        return try await sessions.restore(known)
    }
}

extension AppSessions {
    fileprivate func restore(_ known: RecentCommits.Known) async throws(StoreError) -> Bool {
        let id = known.id
        if known.isRemoved {
            if try await vault.versions(of: Self.markIDs(id, known.version)).allSatisfy({ $0 == nil }) {
                try await putMark(id)
            }
            return try await end(id, by: .revoked)
        }
        guard let session = try memory.commit(id)?.record.map({ record throws(StoreError) in try AppSession(record) })
        else {
            return false
        }
        let stored = try await vault.read(id).map { record throws(StoreError) in try AppSession(record) }
        guard Newness.isNewer(session.age, than: stored?.age) else { return false }
        if stored == nil, try await hasEnded(id) {
            memory.forget(id)
            return false
        }
        guard let client = try await client(of: session) else { return false }
        var next = session
        next.version = records.nextVersion(after: max(session.version, stored?.version ?? 0))
        let change: [VaultChange] =
            if let stored {
                [.replace(next.record(end: end(of: next, client)), version: stored.version)]
            } else {
                beginning(next, client)
            }
        try await sessions.write(id, next) { () async throws(StoreError) in try await self.vault.commit(change) }
        bus.announce(id.tenant)
        return true
    }

    /// The client; nil where there is none, or its record cannot be read.
    private func client(of session: AppSession) async throws(StoreError) -> AppClient? {
        do throws(BrokerError) {
            return try await clients.client(WireText(session.clientID), of: session.tenant)
        } catch {
            if error.code == .storageUnavailable { throw .unavailable }
            return nil
        }
    }

    /// Refuses a request for now whose session the store does not have, but may have lost: another replica may be about to store
    /// it again.
    func refuseIfLost(_ token: AppSessionToken, _ id: RecordID) async throws(AppError) {
        guard records.rollback.isUnsettled, token.isAuthentic(in: vault) else { return }
        do throws(StoreError) {
            if try await !hasEnded(id) { throw .unavailable }
        } catch {
            throw Self.lostCommits
        }
    }

    /// Whether what the store says of logins may be older than what another replica is about to store again.
    var mayBeOutdated: Bool { records.rollback.remainingLongHold != nil }

    static let lostCommits = AppError(
        .temporarilyUnavailable, "The store has lost its last commits. Try again.", retryAfter: 1)
}

extension AppSession {
    fileprivate var age: Newness.Session { Newness.Session(generation: generation, version: version) }
}
