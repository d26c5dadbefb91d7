package import CredentialStore
import Cryptography
import ExternalText
package import OAuth
package import Reactor
import Renewal

/// Stores and removes credentials at the request of a user or an operator.
package final class CredentialsWriter: Sendable {
    /// Makes the changes that are committed together with new credentials, and the events that follow theirs; called with what is
    /// to be stored, and once more after each conflict. Nil when the credentials are not to be stored any more.
    package typealias Companions =
        (_ held: HeldCredentials) async throws(StoreError) -> (changes: [VaultChange], events: [BrokerEvent])?

    let records: CredentialsRecords
    let time: any Time

    init(records: CredentialsRecords) {
        self.records = records
        time = records.time
    }

    /// Stores credentials in place of any others (TIDAL's Auth design, "Setting credentials").
    /// - Parameter arrival: when the request came; nil for now.
    /// - Throws: `conflict` where the request has waited for long, and the credentials were changed since it came.
    package func set(
        _ id: CredentialsID, to held: HeldCredentials, arrival: MonotonicInstant? = nil
    ) async throws(BrokerError) -> CredentialsSnapshot {
        var (isLate, sent) = (false, Sent())
        do throws(StoreError) {
            let snapshot = try await overwrite(
                id, with: held, by: .set, nil, { _ throws(StoreError) in ([], []) },
                unless: { current in
                    isLate = self.isLate(arrival, for: current)
                    return isLate
                }, sending: &sent)
            guard let snapshot else { throw .conflict }
            return snapshot
        } catch .conflict {
            if isLate { throw Self.late }
            throw BrokerError(.notFound, "The tenant was deleted meanwhile.")
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
    }

    /// After this time, a request may have been given up, and its caller may have gone on at another replica. So it changes only what
    /// has not been changed since it came.
    package static let punctuality = EventLoop.shortestStandstill
    private static let late = BrokerError(
        .conflict,
        "The credentials were changed while this request was waiting. Look at them, and ask again if that is still wanted."
    )

    private func isLate(_ arrival: MonotonicInstant?, for current: CredentialsSnapshot) -> Bool {
        guard let arrival, current.version > 0, arrival.duration(to: time.monotonic) >= Self.punctuality else {
            return false
        }
        return VersionSource.time(of: current.version) > time.timeOfDay(at: arrival)
    }

    /// Stores the credentials of a login in place of any others. A code can be redeemed once, so a store that does not take
    /// them is asked again until it does.
    /// - Parameter waiting: what is known of credentials that are not verified yet, from the credentials before them; nil for
    ///   verified ones. No event tells of those that wait.
    /// - Parameter renewing: waits for some seconds at most while a renewal may be spending the stored refresh token.
    /// - Parameter stalled: called after each failed try since the store has taken nothing for
    ///   `CredentialsRecords.callersPatience`.
    /// - Returns: nil when `companions` returned nil.
    package func settle(
        login held: HeldCredentials, by origin: BrokerEvent.Origin, for id: CredentialsID,
        waiting: ((_ earlier: HeldCredentials?) -> WaitingVerification)? = nil, alongside companions: Companions,
        renewing: () async -> Void = {}, stalled: () -> Void = {}
    ) async throws(BrokerError) -> CredentialsSnapshot? {
        let beginning = time.monotonic
        let latest = beginning.advanced(by: Self.longestWaitForRenewal)
        func tellOfStall(_ error: StoreError, _ tries: Int) {
            if beginning.duration(to: time.monotonic) >= CredentialsRecords.callersPatience { stalled() }
        }
        var sent = Sent()
        return try await untilStored(id, failed: tellOfStall) { () async throws(StoreError) in
            let written = try await self.overwrite(
                id, with: held, by: origin, waiting, companions, renewing: renewing, until: latest, sending: &sent)
            if written != nil || !sent.isAny { return written }
            let stored = try await self.records.reread(id, requiringTombstones: false)
            return self.isStored(held, in: stored) ? stored : nil
        }
    }

    /// Whether the record has the tokens that an earlier try was to store. Where another replica has verified a set that waited, the
    /// store does not show that try: no event tells of such a set.
    func isStored(_ held: HeldCredentials, in current: CredentialsSnapshot) -> Bool {
        guard let stored = current.record.granted else { return false }
        return stored.accessToken == held.accessToken
            && (stored.refreshToken == held.refreshToken || current.record.keepsRefreshToken)
    }

    /// Runs `body` again until the store takes what was granted.
    /// - Parameter failed: called after each failed try, with their count, before the wait for the next one. Throws where no other is
    ///   to be made.
    func untilStored<R>(
        _ id: CredentialsID, failed: (_ error: StoreError, _ tries: Int) async throws(BrokerError) -> Void,
        _ body: () async throws(StoreError) -> R
    ) async throws(BrokerError) -> R {
        var tries = 0
        while true {
            do throws(StoreError) {
                return try await body()
            } catch {
                tries += 1
                try await failed(error, tries)
                try await records.waitForStore(beforeTry: tries, id, after: error)
            }
        }
    }

    /// A commit as it was decided.
    fileprivate struct Decision: Sendable {
        let write: CredentialsRecords.PreparedWrite
        /// Why it does not keep the stored refresh token; nil where it does, or where there is none.
        let dropped: HeldCredentials.NotKept?
        let made: MonotonicInstant
    }

    /// What the tries of one caller have sent to the store.
    struct Sent: Sendable {
        /// The commit whose answer was lost.
        fileprivate var latest: Decision?
        /// The commit before it, in whose place another was decided. It may have been carried out all the same.
        fileprivate var older: Decision?
        /// Whether any commit was sent.
        fileprivate(set) var isAny = false
    }

    /// A commit is decided anew once it is older than this: it may issue a code that expires, it ends the sessions that there were
    /// then, and it is sealed under the key of then.
    private static let decisionSpan: Duration = .seconds(30)

    /// Stores credentials in place of any others.
    /// - Parameter sent: what was sent before. A commit whose answer was lost is sent again before anything else is decided, until
    ///   it is `decisionSpan` old. A caller that tries again after `.unavailable` passes what the last try has left.
    /// - Returns: nil when `companions` returned nil, or `isRefused` true.
    func overwrite(
        _ id: CredentialsID, with held: HeldCredentials, by origin: BrokerEvent.Origin,
        _ waiting: ((_ earlier: HeldCredentials?) -> WaitingVerification)? = nil, _ companions: Companions,
        renewed: Timestamp? = nil, unless isRefused: (_ current: CredentialsSnapshot) -> Bool = { _ in false },
        renewing: () async -> Void = {}, until latest: MonotonicInstant? = nil,
        sending sent: inout Sent
    ) async throws(StoreError) -> CredentialsSnapshot? {
        // The cache entry is enough for the first try: if the store has another version, the try is a conflict.
        var known = records.cache.fresh(id, now: time.monotonic)
        return try await retryingConflicts { () async throws(StoreError) in
            if let latest = sent.latest {
                if latest.made.duration(to: self.time.monotonic) < Self.decisionSpan {
                    return try await self.send(latest, id, &sent)
                }
                (sent.latest, sent.older) = (nil, latest)
            }
            let made = self.time.monotonic
            let current: CredentialsSnapshot
            if let snapshot = known {
                (current, known) = (snapshot, nil)
            } else {
                current = try await self.records.reread(id, requiringTombstones: false)
            }
            // If it is carried out after this, the one that is decided now is a conflict: both replace the same version.
            if let stored = try await self.writtenByOlder(id, &sent) { return stored }
            if isRefused(current) { return nil }
            let now = self.time.now
            let held = held.loggedIn(after: current.record.held, at: now)
            guard let (others, events) = try await companions(held) else {
                // They may have met what the older one has written meanwhile.
                return try await self.writtenByOlder(id, &sent)
            }
            var record = CredentialRecord(held: held, renewed: renewed)
            var dropped: HeldCredentials.NotKept?
            if let waiting {
                // Where the set there waits itself, and a refresh has brought it, its refresh token is the one that works.
                let earlier = GrantVerification.record(refusing: current.record).held
                record = record.waiting(for: waiting(earlier), since: current.heldVersion)
            } else if origin != .set {
                dropped = self.records.keepRefreshToken(in: &record, of: self.newest(current, id), id)
                if record.granted?.refreshToken == nil { record.endedBefore = current.record.ended }
            } else if held.refreshToken == nil, current.record.held?.refreshToken != nil {
                // The caller says what is stored from now on.
                dropped = .set
            }
            var holder: String?
            if record.keepsRefreshToken, let latest, self.time.monotonic < latest {
                // A renewal that is under way is spending the refresh token. It has a moment to store its successor.
                if try await self.isBeingRenewed(current, id) {
                    await renewing()
                    throw .conflict
                }
                holder = Self.holderOfNone
            }
            let isVerified = waiting == nil
            let told = record.granted ?? held
            // Ends the sessions of the login before, unless the set waits: it may be refused, and then that login goes on.
            let hasExpired = current.record.held?.isLoggedIn(at: now) == false
            let write = try await self.records.prepareWrite(
                record, id, over: current, fencedFor: holder, alongside: others,
                endingSessionsBy: hasExpired ? .expired : .replaced
            ) { version in
                (isVerified ? [.updated(id, to: told, version: version, by: origin, nil, at: now)] : []) + events
            }
            return try await self.send(Decision(write: write, dropped: dropped, made: made), id, &sent)
        }
    }

    /// What the commit has written in whose place another is decided; nil where the store does not show that it was carried out.
    private func writtenByOlder(
        _ id: CredentialsID, _ sent: inout Sent
    ) async throws(StoreError) -> CredentialsSnapshot? {
        guard let older = sent.older, try await records.isCarriedOut(older.write) else { return nil }
        return try await send(older, id, &sent)
    }

    /// - Parameter sent: has no latest commit afterwards if that was a conflict, so that it is to be decided anew.
    private func send(
        _ next: Decision, _ id: CredentialsID, _ sent: inout Sent
    ) async throws(StoreError) -> CredentialsSnapshot {
        (sent.latest, sent.isAny) = (next, true)
        do throws(StoreError) {
            let snapshot = try await records.write(next.write, id)
            if let dropped = next.dropped { records.noteDropped(dropped, id) }
            return snapshot
        } catch {
            if error == .conflict { sent.latest = nil }
            throw error
        }
    }

    /// The newest credentials that are known, with the newest refresh token: stored ones, or those that a renewal was granted in place
    /// of exactly the stored ones and that are in the journal.
    private func newest(_ current: CredentialsSnapshot, _ id: CredentialsID) -> HeldCredentials? {
        let granted = records.unpublished(id).flatMap { $0.version == current.version + 1 ? $0 : nil }
        return GrantVerification.record(refusing: (granted ?? current).record).held
    }

    /// Whether a renewal is spending the refresh token of these credentials, or may have spent it a moment ago, so that the provider
    /// still tells its successor.
    /// - Throws: `.conflict` where the store has other credentials.
    private func isBeingRenewed(_ current: CredentialsSnapshot, _ id: CredentialsID) async throws(StoreError) -> Bool {
        let (stored, lease) = try await records.readWithLease(id, requiringTombstones: false)
        guard stored.version == current.version else { throw .conflict }
        guard let lease, !lease.isSettled else { return false }
        return !lease.wasGivenUp || lease.sinceFirstUse.map { $0 < RenewalRules.usualGrace } ?? false
    }

    /// For how long a login that keeps the stored refresh token waits for a renewal of that.
    private static let longestWaitForRenewal: Duration = .seconds(15)
    /// Holds no lease, so that a change which is fenced for it fails while there is any.
    private static let holderOfNone = "login"

    /// Removes user and client credentials and the quarantined ones (TIDAL's Auth design, "logout"). The compare-and-set of a
    /// renewal in flight then fails, so that it cannot log the user in again.
    /// - Parameters:
    ///   - arrival: when the request came; nil for now.
    ///   - companions: makes the changes that are committed together with the removal of credentials; called for each try.
    /// - Returns: the credentials that were removed; nil where there were none.
    /// - Throws: `conflict` where the request has waited for long, and the credentials were changed since it came.
    package func purge(
        _ id: CredentialsID, arrival: MonotonicInstant? = nil,
        alongside companions: (HeldCredentials) -> [VaultChange] = { _ in [] }
    ) async throws(BrokerError) -> HeldCredentials? {
        var isLate = false
        do throws(StoreError) {
            let removed = try await retryingConflicts { () async throws(StoreError) -> HeldCredentials? in
                let current = try await self.records.reread(id, requiringTombstones: false)
                var removals = try await self.records.changes(.drop, id)
                removals += try await self.records.changesRemovingAsides(id)
                let nothing = CredentialRecord(held: nil)
                // Also replaces an empty record: because of its digest, a renewal in flight could take the logout for a mistake of
                // another replica.
                if removals.isEmpty, current.version == 0 || current.record == nothing { return nil }
                isLate = self.isLate(arrival, for: current)
                if isLate { return nil }
                let (held, now) = (current.record.held ?? current.record.granted, self.time.now)
                // The set that was granted last: with it, the provider revokes the whole grant.
                let others = current.record.granted.map(companions) ?? []
                let ended = current.version == 0 ? [] : [(CredentialsRecords.recordID(id), current.version)]
                let tombstones = try await self.records.tombstones.changes(ending: ended)
                _ = try await self.records.write(
                    nothing, id, over: current, alongside: removals + others + tombstones, endingSessionsBy: .logout
                ) { version in
                    held.map { [.deauthorized(id, from: $0, version: version, by: .logout, nil, at: now)] } ?? []
                }
                // The set that was granted last: with it, the provider revokes the whole grant.
                return current.record.granted
            }
            if !isLate { return removed }
        } catch {
            records.report(error, id)
            throw BrokerError(error)
        }
        throw Self.late
    }
}
