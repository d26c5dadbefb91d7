internal import CredentialStore
internal import Cryptography
internal import OAuth
internal import Reactor

/// The sets of credentials that waves hold, for `WaveJob`.
struct HeldSets: Sendable {
    /// A held set.
    struct HeldSet: Sendable {
        let id: CredentialsID
        let snapshot: CredentialsSnapshot
        /// The version of the mark's record.
        let markVersion: Int64

        var heldVersion: Int64 { snapshot.heldVersion }
    }

    private static let batch = 100
    /// How often a change is tried again that another one has come before.
    private static let tries = 8

    let renewer: CredentialsRenewer

    private var records: CredentialsRecords { renewer.records }
    private var time: any Time { renewer.time }

    /// The held set whose storage key comes after that one; the first set after the last one. Removes the marks of sets that are
    /// not held any more. Nil where none is held.
    func next(
        after storageKey: StorageKey?, in wave: ProviderWave, _ tenant: TenantName
    ) async throws(StoreError) -> HeldSet? {
        let start = storageKey.map { CredentialsRecords.heldID(CredentialsID(tenant: tenant, storageKey: $0)) }
        if let set = try await first(after: start, upTo: nil, in: wave, tenant) { return set }
        guard let start else { return nil }
        return try await first(after: nil, upTo: start, in: wave, tenant)
    }

    private func first(
        after start: RecordID?, upTo end: RecordID?, in wave: ProviderWave, _ tenant: TenantName
    ) async throws(StoreError) -> HeldSet? {
        var place = start
        while !Task.isCancelled {
            let marks = try await records.vault.listSealed(.held, tenant: tenant, after: place, limit: Self.batch)
            for stored in marks {
                if let end, end < stored.id { return nil }
                if let set = try await set(of: stored, in: wave) { return set }
            }
            guard marks.count == Self.batch else { return nil }
            place = marks.last?.id
        }
        return nil
    }

    /// The set that the mark is about; nil where it is not held by that wave, and where the mark cannot be read.
    private func set(of stored: StoredRecord, in wave: ProviderWave) async throws(StoreError) -> HeldSet? {
        guard let id = CredentialsID(stored.id), let mark = content(of: stored), mark.wave == wave.number else {
            return nil
        }
        let snapshot = try await records.reread(id)
        if mark.holds(snapshot.record.held, in: wave.number) {
            return HeldSet(id: id, snapshot: snapshot, markVersion: stored.version)
        }
        // A login or a logout has come, or another replica's renewal.
        try await remove(stored, id, snapshot)
        return nil
    }

    private func content(of stored: StoredRecord) -> HeldMark? {
        (try? records.vault.open(stored).content).flatMap { HeldMark(decoding: $0.revealedBytes) }
    }

    /// Removes a mark that holds nothing any more; listeners are told where the user has a session.
    private func remove(
        _ stored: StoredRecord, _ id: CredentialsID, _ snapshot: CredentialsSnapshot
    ) async throws(StoreError) {
        let isActive = snapshot.record.held?.level == .user && !snapshot.record.isOver
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
        try await remove(stored, id, try await records.reread(id))
    }

    /// Stores a session again, held, that the provider has ended before the wave was noticed; nothing where a user has logged in
    /// or out since.
    func putBack(_ id: CredentialsID, in wave: ProviderWave, of tenant: Tenant) async throws(StoreError) {
        for _ in 0..<Self.tries {
            let current = try await records.reread(id)
            if current.record.granted?.level == .user, !current.record.isOver { return }
            let (now, window) = (time.now, tenant.configuration.wave.window)
            guard let quarantined = try await records.quarantined(id), quarantined.content.until > now,
                let session = quarantined.content.session, session.cause == .revoked,
                session.time >= wave.since.advanced(by: .zero - window)
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

    /// Ends a held session, and quarantines its credentials.
    func end(_ set: HeldSet, of tenant: Tenant) async throws(StoreError) {
        guard let held = set.snapshot.record.held else { return }
        let (id, now) = (set.id, time.now)
        let record = CredentialRecord(
            held: nil, ended: held.refreshTokenDigest, session: EndedSession(.revoked, at: now))
        let quarantine = try await records.changes(.keep(held, for: renewer.quarantine), id)
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
