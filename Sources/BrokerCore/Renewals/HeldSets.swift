import CredentialStore
import Cryptography
import OAuth
import Reactor

/// The sets of credentials that waves hold, for `WaveJob`.
struct HeldSets: Sendable {
    /// A held set.
    struct HeldSet: Sendable {
        let id: CredentialsID
        let snapshot: CredentialsSnapshot
        /// The version of the mark's record.
        let markVersion: Int64
        /// The provider's error code when it was held; nil where it sent none.
        let errorCode: String?

        var heldVersion: Int64 { snapshot.heldVersion }
    }

    /// What a search for a held set finds.
    enum Search: Sendable {
        case set(HeldSet)
        /// No set is held.
        case none
        /// No set that can be tried. There may be held sets that this build cannot read, or the task was cancelled.
        case unknown
    }

    private static let batch = 100
    private static let countedAtOnce = 1000
    /// How many held sets are counted.
    private static let mostCounted = 10_000
    /// How often a change is tried again that another one has come before.
    private static let tries = 8

    let renewer: CredentialsRenewer

    private var records: CredentialsRecords { renewer.records }
    private var time: any Time { renewer.time }

    /// The held set whose storage key comes after that one; the first set after the last one. Removes the marks of sets that are
    /// not held any more. A set that cannot be read is logged and passed over, so that it keeps no other one waiting.
    func next(
        after storageKey: StorageKey?, in wave: ProviderWave, _ tenant: TenantName
    ) async throws(StoreError) -> Search {
        let start = storageKey.map { CredentialsRecords.heldID(CredentialsID(tenant: tenant, storageKey: $0)) }
        let found = try await first(after: start, upTo: nil, in: wave, tenant)
        guard let start else { return found }
        if case .set = found { return found }
        let rest = try await first(after: nil, upTo: start, in: wave, tenant)
        if case (.unknown, .none) = (found, rest) { return .unknown }
        return rest
    }

    private func first(
        after start: RecordID?, upTo end: RecordID?, in wave: ProviderWave, _ tenant: TenantName
    ) async throws(StoreError) -> Search {
        var (place, isAnyUnreadable) = (start, false)
        while !Task.isCancelled {
            let marks = try await records.vault.listSealed(.held, tenant: tenant, after: place, limit: Self.batch)
            for stored in marks {
                if let end, end < stored.id { return isAnyUnreadable ? .unknown : .none }
                guard let id = CredentialsID(stored.id) else { continue }
                do throws(StoreError) {
                    if let set = try await set(id, markedBy: stored, in: wave) { return .set(set) }
                } catch {
                    try skip(error, id, isFirst: !isAnyUnreadable)
                    isAnyUnreadable = true
                }
            }
            guard marks.count == Self.batch else { return isAnyUnreadable ? .unknown : .none }
            place = marks.last?.id
        }
        return .unknown
    }

    /// Passes over a set whose record is damaged, or was written by a newer build.
    /// - Parameter isFirst: whether it is logged: one line for each search is enough to find the records one after the other.
    /// - Throws: `error` where it says something else.
    private func skip(_ error: StoreError, _ id: CredentialsID, isFirst: Bool = true) throws(StoreError) {
        guard case .damaged = error else { throw error }
        if isFirst { renewer.log.error("held_set_unreadable", LogField.credentials(id) + [.store(error)]) }
    }

    /// The set that the mark is about; nil where it is not held by that wave, and where the mark cannot be read.
    private func set(
        _ id: CredentialsID, markedBy stored: StoredRecord, in wave: ProviderWave
    ) async throws(StoreError) -> HeldSet? {
        guard let mark = content(of: stored), mark.wave == wave.number else { return nil }
        let snapshot = try await records.reread(id)
        if mark.holds(snapshot.record.held, in: wave.number) {
            return HeldSet(
                id: id, snapshot: snapshot, markVersion: stored.version, errorCode: mark.errorCode)
        }
        // A login or a logout has come, or another replica's renewal.
        try await remove(stored, id, snapshot)
        return nil
    }

    /// Whether so many sets of the tenant are held that `suffices` says so, or more than are counted. Marks count of sets that are
    /// not held any more, until a search comes to them.
    func areEnough(of tenant: TenantName, _ suffices: (Int) -> Bool) async throws(StoreError) -> Bool {
        var (count, place) = (0, nil as RecordID?)
        while count < Self.mostCounted {
            let marks = try await records.vault.listSealed(
                .held, tenant: tenant, after: place, limit: Self.countedAtOnce)
            count += marks.count
            if suffices(count) { return true }
            guard marks.count == Self.countedAtOnce else { return false }
            place = marks.last?.id
        }
        return true
    }

    private func content(of stored: StoredRecord) -> HeldMark? {
        (try? records.vault.open(stored).content).flatMap { HeldMark(decoding: $0.revealedBytes) }
    }

    /// Removes a mark that holds nothing any more; listeners are told where the user has a session.
    /// - Parameter snapshot: nil where it cannot be read.
    private func remove(
        _ stored: StoredRecord, _ id: CredentialsID, _ snapshot: CredentialsSnapshot?
    ) async throws(StoreError) {
        let isActive = snapshot.map { $0.record.held?.level == .user && !$0.record.isOver } ?? false
        do throws(StoreError) {
            try await records.commit(
                [.remove(stored.id, version: stored.version)],
                events: isActive ? [.recovered(id, at: time.now)] : [], of: id)
            records.bus.announce(stored.id, version: nil)
        } catch .conflict {
            // Another replica has done so, or the set is held by another wave.
        }
    }

    /// Removes the mark of a wave that is over. Its set is renewed when it is next asked for.
    func free(_ stored: StoredRecord, from wave: ProviderWave) async throws(StoreError) {
        guard let id = CredentialsID(stored.id), content(of: stored)?.wave == wave.number else { return }
        var snapshot: CredentialsSnapshot?
        do throws(StoreError) {
            snapshot = try await records.reread(id)
        } catch {
            try skip(error, id)
        }
        try await remove(stored, id, snapshot)
    }

    /// Stores a session again, held, that the provider has ended before the wave was noticed; nothing where a user has logged in
    /// or out since, and where what is stored cannot be read.
    func putBack(_ id: CredentialsID, in wave: ProviderWave, of tenant: Tenant) async throws(StoreError) {
        do throws(StoreError) {
            try await putBackReadable(id, in: wave, of: tenant)
        } catch {
            try skip(error, id)
        }
    }

    private func putBackReadable(
        _ id: CredentialsID, in wave: ProviderWave, of tenant: Tenant
    ) async throws(StoreError) {
        for _ in 0..<Self.tries {
            let current = try await records.reread(id)
            if current.record.granted?.level == .user, !current.record.isOver { return }
            let (now, window) = (time.now, tenant.configuration.wave.window)
            guard let quarantined = try await records.quarantined(id), quarantined.content.until > now,
                let session = quarantined.content.session, session.cause == .revoked,
                session.time >= wave.since.advanced(by: .zero - window),
                await !renewer.isBeingPresented(quarantined, of: tenant)
            else { return }
            // A login of its own: the sessions of apps have ended with the one before.
            let held = quarantined.content.credentials.loggedIn(after: current.record.held, at: now)
            let holding = try await renewer.waves.changesHolding(
                held, id, in: wave, errorCode: wave.errorCode, nil)
            do throws(StoreError) {
                _ = try await records.write(
                    CredentialRecord(held: held), id, over: current,
                    alongside: [quarantined.removal] + holding.changes
                ) { version in
                    [.updated(id, to: held, version: version, by: .set, nil, at: now)] + holding.events
                }
                renewer.waves.noteHeld(id, tenant.configuration.preset)
                return
            } catch .conflict {
                continue
            }
        }
    }

    /// Ends a held session whose refresh token the provider has just refused again, and quarantines its credentials.
    func end(_ set: HeldSet, of tenant: Tenant) async throws(StoreError) {
        guard let held = set.snapshot.record.held else { return }
        let (id, now) = (set.id, time.now)
        let session = EndedSession(
            .revoked, at: now, code: BrokerError.Code.unexpectedError.rawValue, errorCode: set.errorCode)
        let record = CredentialRecord(held: nil, ended: held.refreshTokenDigest, session: session)
        let quarantine = try await records.changes(.keep(held, for: renewer.quarantine, after: session), id)
        do throws(StoreError) {
            _ = try await records.write(
                record, id, over: set.snapshot,
                alongside: quarantine + [.remove(CredentialsRecords.heldID(id), version: set.markVersion)],
                endingSessionsBy: .revoked
            ) { version in [.deauthorized(id, from: held, version: version, by: .revoked, nil, at: now)] }
        } catch .conflict {
            // The set or its mark was changed; the next search finds what is left.
        }
    }
}
