internal import Containers
internal import CredentialStore
internal import ExternalText
internal import OAuth
internal import Reactor

/// Sessions that the store has lost, in a failover to a standby that was behind.
extension AppSessions: RestoredRecords {
    func takeUp() async throws(StoreError) -> Bool {
        try await memory.takeUp()
        return !memory.recent.isEmpty
    }

    private static let batch = 500

    /// Stores again what this process stored lately and the store has lost, and ends again what it has ended.
    /// - Parameter isLastTime: whether the other replicas have had their turn. What another replica has changed since is stored
    ///   again only then: that replica has it as it was later, unless its process has died.
    func restoreLost(isLastTime: Bool) async throws(StoreError) {
        var restored = 0
        for batch in memory.recent.filter({ isLastTime || !$0.isSuperseded }).inBatches(of: Self.batch) {
            let ended = batch.filter { $0.session == nil }
            let versions = try await vault.versions(of: batch.map(\.id))
            let marks = try await vault.versions(of: ended.flatMap { Self.markIDs($0.id, $0.version) })
            var lost: [SessionMemory.Entry] = []
            for (entry, version) in zip(batch, versions) {
                if entry.session == nil ? version != nil : version ?? 0 < entry.version { lost.append(entry) }
            }
            for (index, entry) in ended.enumerated() where marks[2 * index] == nil && marks[2 * index + 1] == nil {
                try await putMark(entry.id)
            }
            restored += try await CredentialsRecords.count(lost, log) { entry async throws(StoreError) in
                do throws(StoreError) {
                    return try await self.restore(entry)
                } catch .conflict {
                    // Another replica was faster, or the client is gone.
                    return false
                }
            }
        }
        if restored > 0 { log.warning("sessions_stored_again", [.restored(restored)]) }
    }

    private func restore(_ entry: SessionMemory.Entry) async throws(StoreError) -> Bool {
        guard let session = entry.session else {
            // Whatever version it has: another replica may have stored it again that has not heard of its end.
            return try await end(entry.id, by: .revoked)
        }
        let stored = try await vault.read(entry.id)
        if let stored, stored.version >= session.version { return false }
        if stored == nil, try await hasEnded(entry.id) {
            memory.forget(entry.id)
            return false
        }
        guard let client = try await client(of: session) else { return false }
        var next = session
        next.version = records.nextVersion(after: session.version)
        let change: [VaultChange] =
            if let stored {
                [.replace(next.record(end: end(of: next, client)), version: stored.version)]
            } else {
                beginning(next, client)
            }
        try await sessions.write(entry.id, next) { () async throws(StoreError) in try await self.vault.commit(change) }
        memory.keep(next)
        bus.announce(entry.id.tenant)
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
