package import CredentialStore
internal import Cryptography
package import OAuth
internal import Synchronization

/// Stores, removes and restores credentials because a user or an operator wants it so.
package final class CredentialsWriter: Sendable {
    /// What is committed together with new credentials, and told after them; made anew for each try. Nil when there
    /// is no longer a reason to store them.
    package typealias Companions = () async throws(StoreError) -> (changes: [VaultChange], events: [BrokerEvent])?

    private let records: CredentialsRecords
    private let time: any Time

    init(records: CredentialsRecords) {
        self.records = records
        time = records.time
    }

    /// Stores credentials over whatever is there (TIDAL's Auth design, "Setting credentials").
    package func set(_ id: CredentialsID, to held: HeldCredentials) async throws(BrokerError) -> CredentialsSnapshot {
        do throws(StoreError) {
            let snapshot = try await overwrite(id, with: held, by: .set) { () throws(StoreError) in ([], []) }
            guard let snapshot else { throw .conflict }
            return snapshot
        } catch .conflict {
            throw BrokerError(.notFound, "The tenant was deleted meanwhile.")
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
    }

    /// Stores what a login brought, over whatever is there. A code is redeemed once, so a store that is away is asked
    /// until it answers.
    /// - Returns: nil when `companions` saw that the login no longer counts.
    package func settle(
        login held: HeldCredentials, by origin: BrokerEvent.Origin, for id: CredentialsID,
        alongside companions: Companions
    ) async throws(BrokerError) -> CredentialsSnapshot? {
        try await untilStoreAnswers(id) { () async throws(StoreError) in
            if let snapshot = try await self.overwrite(id, with: held, by: origin, companions) { return snapshot }
            // An earlier try may have arrived although its answer did not.
            let standing = try await self.records.reread(id)
            return standing.record.held == held ? standing : nil
        }
    }

    /// Runs `body` again while the store is away.
    private func untilStoreAnswers<R>(
        _ id: CredentialsID, _ body: () async throws(StoreError) -> R
    ) async throws(BrokerError) -> R {
        var tries = 0
        while true {
            do throws(StoreError) {
                return try await body()
            } catch .unavailable {
                tries += 1
                try await records.waitForStore(beforeTry: tries, id)
            } catch {
                records.report(error, id)
                throw BrokerError(error)
            }
        }
    }

    private func overwrite(
        _ id: CredentialsID, with held: HeldCredentials, by origin: BrokerEvent.Origin, _ companions: Companions
    ) async throws(StoreError) -> CredentialsSnapshot? {
        // What is in memory does for the first try: what is not stored any more is not replaced.
        var known = records.cache.fresh(id, now: time.monotonic)
        return try await retryingConflicts { () async throws(StoreError) in
            guard let (others, told) = try await companions() else { return nil }
            let current: CredentialsSnapshot
            if let snapshot = known {
                (current, known) = (snapshot, nil)
            } else {
                current = try await self.records.reread(id)
            }
            let now = self.time.now
            return try await self.records.write(CredentialRecord(held: held), id, over: current, alongside: others) {
                version in [.updated(id, to: held, version: version, by: origin, nil, at: now)] + told
            }
        }
    }

    /// Purges user and client credentials and what was kept aside (TIDAL's Auth design, "logout"). A
    /// renewal in flight loses its compare-and-set against this and cannot bring the user back.
    /// - Returns: what was purged; nil when nothing was there.
    package func purge(_ id: CredentialsID) async throws(BrokerError) -> HeldCredentials? {
        do throws(StoreError) {
            return try await retryingConflicts { () async throws(StoreError) in
                let current = try await self.records.reread(id)
                let aside = try await self.records.changes(.drop, id)
                let nothing = CredentialRecord(held: nil)
                // Even where nothing is left to purge, a tombstone's mark goes: it would let a renewal in flight
                // take the logout for another's mistake.
                if aside.isEmpty, current.version == 0 || current.record == nothing { return nil }
                let (held, now) = (current.record.held, self.time.now)
                _ = try await self.records.write(nothing, id, over: current, alongside: aside) { version in
                    held.map { [.deauthorized(id, from: $0, version: version, by: .logout, nil, at: now)] } ?? []
                }
                return held
            }
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
    }

    /// Puts back what a provider ended and was kept aside.
    /// - Throws: `not_found` where nothing is kept aside, `conflict` where a user is logged in.
    package func restore(_ id: CredentialsID) async throws(BrokerError) -> CredentialsSnapshot {
        let outcome: Result<CredentialsSnapshot, BrokerError>
        do throws(StoreError) {
            outcome = try await retryingConflicts { () async throws(StoreError) in
                let current = try await self.records.reread(id)
                if current.record.held?.level == .user {
                    return .failure(
                        BrokerError(.conflict, "User credentials are stored under this storage key already."))
                }
                guard let aside = try await self.records.aside(id), aside.content.until > self.time.now else {
                    // It may have been put back since we looked at the credentials.
                    if try await self.records.reread(id).version != current.version { throw .conflict }
                    return .failure(BrokerError(.notFound, "Nothing is kept aside under this storage key."))
                }
                let (held, now) = (aside.content.credentials, self.time.now)
                return .success(
                    try await self.records.write(
                        CredentialRecord(held: held), id, over: current, alongside: [aside.removal]
                    ) { version in [.updated(id, to: held, version: version, by: .set, nil, at: now)] })
            }
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
        return try outcome.get()
    }

    /// Puts back what is kept aside under each of these storage keys, some of them at a time. One that cannot be put back
    /// keeps no other from it; but once the store does not answer, those that are left are not tried.
    /// - Returns: what became of each, in their order.
    package func restore(
        _ tenant: TenantName, _ storageKeys: [StorageKey]
    ) async -> [Result<CredentialsSnapshot, BrokerError>] {
        let store = StoreSeen()
        return await withTaskGroup(of: (Int, Result<CredentialsSnapshot, BrokerError>).self) { group in
            var results = [Result<CredentialsSnapshot, BrokerError>?](repeating: nil, count: storageKeys.count)
            var begun = 0
            while true {
                if begun < storageKeys.count {
                    let (index, id) = (begun, CredentialsID(tenant: tenant, storageKey: storageKeys[begun]))
                    group.addTask { (index, await self.restore(id, store)) }
                    begun += 1
                    if begun < Self.restoredAtOnce { continue }
                }
                guard let (index, result) = await group.next() else { return results.compactMap(\.self) }
                results[index] = result
            }
        }
    }

    private func restore(_ id: CredentialsID, _ store: StoreSeen) async -> Result<CredentialsSnapshot, BrokerError> {
        if store.isAway.load(ordering: .relaxed) { return .failure(BrokerError(StoreError.unavailable)) }
        do throws(BrokerError) {
            return .success(try await restore(id))
        } catch {
            if error.code == .storageUnavailable { store.isAway.store(true, ordering: .relaxed) }
            return .failure(error)
        }
    }

    /// What those have seen of the store that work at once.
    private final class StoreSeen: Sendable {
        let isAway = Atomic<Bool>(false)
    }

    private static let restoredAtOnce = 4
}
