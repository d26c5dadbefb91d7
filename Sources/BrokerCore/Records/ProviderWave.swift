import CredentialStore
import Cryptography
import ExternalText
import JSON
import OAuth
import Reactor

/// A wave: the provider refuses the refresh tokens of many users at once, so that no session ends by it. While the record exists,
/// a set whose refresh is refused is held (`HeldMark`), and one held set is tried from time to time, for all replicas.
///
/// The due mark of the record is the time of the next trial.
struct ProviderWave: Sendable, Equatable {
    /// Tells this wave from the tenant's other ones.
    let number: Int64
    let since: Timestamp
    /// The provider's error code; nil where it has sent none.
    let errorCode: String?
    /// Sessions that ended before the wave was noticed, and are to be put back.
    var ended: [StorageKey] = []
    /// The held set that was tried last; nil before the first trial.
    var last: StorageKey?
    /// Since when the provider has refused each held set that was tried, with the first of these; nil before the first refusal.
    var refused: (since: Timestamp, first: StorageKey)?
    /// Whether the provider has refused another set, too, since then.
    var hasRefusedOthers = false

    init(number: Int64, since: Timestamp, errorCode: String?) {
        (self.number, self.since, self.errorCode) = (number, since, errorCode)
    }

    static func == (left: ProviderWave, right: ProviderWave) -> Bool { left.encoded == right.encoded }

    /// Notes that the provider has refused a held set again.
    mutating func note(refused storageKey: StorageKey, at now: Timestamp) {
        if let refused {
            if refused.first != storageKey { hasRefusedOthers = true }
        } else {
            refused = (now, storageKey)
        }
    }

    /// Whether the provider means it: it has refused several held sets, and each that was tried, for so long. From then on a trial
    /// that it refuses ends the session of the set that was tried.
    func isFinal(at now: Timestamp, after limit: Duration) -> Bool {
        guard let refused, hasRefusedOthers else { return false }
        return refused.since.duration(to: now) >= limit
    }
}

extension ProviderWave {
    var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("number", number)
            json.member("since", since.milliseconds)
            json.memberIfPresent("error_code", errorCode)
            json.member("ended", ended.map(\.description))
            json.memberIfPresent("last", last?.description)
            if let refused {
                json.member("refused_since", refused.since.milliseconds)
                json.member("refused_first", refused.first.description)
            }
            json.member("refused_others", hasRefusedOthers)
        }
    }

    /// Nil where `bytes` are not such a record.
    init?(decoding bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes), let number = json["number"]?.integer,
            let since = json["since"]?.integer
        else { return nil }
        self.init(
            number: number, since: Timestamp(milliseconds: since), errorCode: json["error_code"]?.string?.text)
        ended = (json["ended"]?.array ?? []).compactMap { $0.string.flatMap { StorageKey($0) } }
        last = json["last"]?.string.flatMap { StorageKey($0) }
        if let since = json["refused_since"]?.integer,
            let first = json["refused_first"]?.string.flatMap({ StorageKey($0) })
        {
            refused = (Timestamp(milliseconds: since), first)
        }
        hasRefusedOthers = json["refused_others"]?.bool ?? false
    }
}

/// That a set of credentials is held: its refresh token is not presented, except as a trial. The record counts while its wave
/// lasts and the set has that refresh token, so that a login, a logout and a renewal end it without a change of it.
struct HeldMark: Sendable, Equatable {
    /// `ProviderWave.number`.
    let wave: Int64
    /// SHA-256 of the refresh token.
    let digest: [UInt8]
    /// Since when the set is held.
    let since: Timestamp
    /// The provider's error code; nil where it has sent none.
    let errorCode: String?

    /// Whether the mark is about these credentials, in this wave.
    func holds(_ held: HeldCredentials?, in wave: Int64) -> Bool {
        self.wave == wave && held?.level == .user && held?.refreshTokenDigest == digest
    }

    /// The failure that a list shows.
    var failure: RenewalTrouble.Failure {
        RenewalTrouble.Failure(
            first: since, last: since, code: BrokerError.Code.illegalConfiguration.rawValue, errorCode: errorCode)
    }

    var encoded: [UInt8] {
        JSONWriter.object { json in
            json.member("wave", wave)
            json.member("digest", Base64URL.encode(digest))
            json.member("since", since.milliseconds)
            json.memberIfPresent("error_code", errorCode)
        }
    }

    init(wave: Int64, digest: [UInt8], since: Timestamp, errorCode: String?) {
        (self.wave, self.digest, self.since, self.errorCode) = (wave, digest, since, errorCode)
    }

    /// Nil where `bytes` are not such a record.
    init?(decoding bytes: [UInt8]) {
        guard let json = try? JSONValue(parsing: bytes), let wave = json["wave"]?.integer,
            let digest = (json["digest"]?.string?.text).flatMap(Base64URL.decode), let since = json["since"]?.integer
        else { return nil }
        self.init(
            wave: wave, digest: digest, since: Timestamp(milliseconds: since),
            errorCode: json["error_code"]?.string?.text)
    }
}

extension CredentialsRecords {
    static func waveID(_ tenant: TenantName) -> RecordID { RecordID(.wave, tenant) }

    /// The record that has the sets freed which the wave has held.
    static func freedID(_ tenant: TenantName, _ wave: Int64) -> RecordID {
        RecordID(.wave, tenant, key: "freed-\(wave)")
    }

    static func heldID(_ id: CredentialsID) -> RecordID {
        RecordID(.held, id.tenant, key: id.storageKey.description)
    }

    /// Whether the record is that of a tenant's wave.
    static func isWave(_ id: RecordID) -> Bool { id == waveID(id.tenant) }

    /// The tenant's wave, with the version of its record; nil where there is none. A wave that this build cannot read is one all the
    /// same, with the number 0.
    func wave(_ tenant: TenantName) async throws(StoreError) -> (wave: ProviderWave, version: Int64)? {
        guard let stored = try await note(Self.waveID(tenant)) else { return nil }
        let wave = stored.content.flatMap { ProviderWave(decoding: $0.revealedBytes) }
        return (wave ?? ProviderWave(number: 0, since: time.now, errorCode: nil), stored.version)
    }

    /// The change that writes the record.
    /// - Parameters:
    ///   - due: when the next trial is made.
    ///   - version: the version that is replaced; nil where there is none.
    /// - Returns: the change, and the version that it gives the record.
    func change(
        of wave: ProviderWave, _ tenant: TenantName, due: Timestamp, over version: Int64?
    ) -> (change: VaultChange, version: Int64) {
        let record = OpenRecord(
            id: Self.waveID(tenant), version: nextVersion(after: version ?? 0), content: SecretBytes(wave.encoded),
            due: due)
        return (version.map { .replace(record, version: $0) } ?? .insert(record), record.version)
    }

    /// The change that has the sets freed which a wave has held that is over.
    func changeFreeing(_ wave: ProviderWave, _ tenant: TenantName) -> VaultChange {
        .insert(
            OpenRecord(
                id: Self.freedID(tenant, wave.number), version: nextVersion(after: 0),
                content: SecretBytes(wave.encoded), due: time.now))
    }

    /// The mark of a set that is held, with the version of its record; nil where there is none. The mark is nil where this build
    /// cannot read it.
    func heldMark(_ id: CredentialsID) async throws(StoreError) -> (mark: HeldMark?, version: Int64)? {
        guard let stored = try await note(Self.heldID(id)) else { return nil }
        return (stored.content.flatMap { HeldMark(decoding: $0.revealedBytes) }, stored.version)
    }

    /// The change that writes the mark.
    /// - Parameter version: the version that is replaced; nil where there is none.
    func change(of mark: HeldMark, _ id: CredentialsID, over version: Int64?) -> VaultChange {
        let record = OpenRecord(
            id: Self.heldID(id), version: nextVersion(after: version ?? 0), content: SecretBytes(mark.encoded))
        return version.map { .replace(record, version: $0) } ?? .insert(record)
    }

    /// Whether the tenant's wave holds the credentials.
    func isHeld(_ id: CredentialsID, _ held: HeldCredentials?) async throws(StoreError) -> Bool {
        guard let wave = try await wave(id.tenant)?.wave else { return false }
        return try await heldMark(id)?.mark?.holds(held, in: wave.number) == true
    }

    /// Frees the credentials if they are held, so that they are renewed when they are next asked for.
    /// - Returns: whether they were held.
    func free(_ id: CredentialsID, _ held: HeldCredentials?) async throws(StoreError) -> Bool {
        guard let wave = try await wave(id.tenant)?.wave, let known = try await heldMark(id),
            known.mark?.holds(held, in: wave.number) == true
        else { return false }
        try await commit(
            [.remove(Self.heldID(id), version: known.version)], events: [.recovered(id, at: time.now)], of: id)
        // A store with one writer tells of no changes.
        bus.announce(Self.heldID(id), version: nil)
        return true
    }
}
