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

    /// Stores again what this process stored lately and the store has lost, and ends again what it has ended.
    /// - Parameter isLastTime: whether the other replicas have had their turn. What another replica has changed since is stored
    ///   again only then: that replica has it as it was later, unless its process has died.
    func restoreLost(isLastTime: Bool) async throws(StoreError) {
        var restored = 0
        for entry in memory.recent where isLastTime || !entry.isSuperseded {
            do throws(StoreError) {
                if try await restore(entry) { restored += 1 }
            } catch .conflict {
                // Another replica was faster, or the client is gone.
                continue
            }
        }
        if restored > 0 { log.warning("sessions_stored_again", [.restored(restored)]) }
    }

    private func restore(_ entry: SessionMemory.Entry) async throws(StoreError) -> Bool {
        let stored = try await vault.read(entry.id)
        guard let session = entry.session else {
            // Whatever version it has: another replica may have stored it again that has not heard of its end.
            return stored == nil ? false : try await end(entry.id, by: .revoked)
        }
        if let stored, stored.version >= session.version { return false }
        if stored == nil, try await hasEnded(entry.id) {
            memory.forget(entry.id)
            return false
        }
        guard let client = try await client(of: session) else { return false }
        var next = session
        next.version = records.nextVersion(after: session.version)
        let ticket = cache.ticket(entry.id, now: time.monotonic)
        let change: [VaultChange] =
            if let stored {
                [.replace(next.record(end: end(of: next, client)), version: stored.version)]
            } else {
                beginning(next, client)
            }
        try await vault.commit(change)
        cache.put(entry.id, next, ticket)
        memory.keep(next)
        bus.announce(entry.id.tenant)
        return true
    }

    private func client(of session: AppSession) async throws(StoreError) -> AppClient? {
        do throws(BrokerError) {
            return try await clients.client(WireText(session.clientID), of: session.tenant)
        } catch {
            throw .unavailable
        }
    }

    /// Whether a session that the store does not have may be one that it has lost, and that another replica is about to store
    /// again.
    func mayBeRestored(_ token: AppSessionToken) -> Bool {
        records.rollback.remainingLongHold != nil && token.isAuthentic(in: vault)
    }
}
