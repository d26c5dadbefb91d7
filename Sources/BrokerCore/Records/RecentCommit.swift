import CredentialStore
import Cryptography
import ExternalText
import JSON
import OAuth

/// What this process last made of a record: it stored that record, or removed it. `RecentCommits` has it for some time, in case
/// the store loses the commit.
struct RecentCommit: Sendable, Equatable {
    /// A record in one version, as the journal has it.
    struct Place: Sendable, Hashable {
        let id: RecordID
        let version: Int64
    }

    let id: RecordID
    /// The version under which the record was stored; of a removed record, the last one that it had.
    var version: Int64
    /// Nil for a record that was removed.
    let record: OpenRecord?
    /// Of credentials: digests of the tokens that they have replaced, the latest one last; see `CredentialRecord.tokenDigest`. Only
    /// the latest ones where there are many.
    var replaced: [[UInt8]] = []
    /// When it was committed, by the time of day.
    let stored: Timestamp

    init(storing record: OpenRecord, replacing replaced: [[UInt8]] = [], at stored: Timestamp) {
        (id, version, self.record, self.replaced) = (record.id, record.version, record, replaced)
        self.stored = stored
    }

    init(removing id: RecordID, version: Int64, at stored: Timestamp) {
        (self.id, self.version, record) = (id, version, nil)
        self.stored = stored
    }

    // MARK: In the journal

    /// Where the journal has it, in that version or a higher one: see `RecentCommits`.
    var place: Place {
        if id.kind == .credentials {
            return Place(id: RecordID(.recent, id.tenant, key: id.key), version: version)
        }
        // No credentials are under this tenant, so the digest is no user's storage key. It is as long for the longest key.
        let name = SHA256.digest(Array("\(id.kind.rawValue)\n\(id.tenant)\n\(id.key)".utf8))
        // A removal comes after everything else.
        return Place(
            id: RecordID(.recent, .broker, key: Base64URL.encode(name)), version: record == nil ? version + 1 : version)
    }

    /// The record of the journal.
    func kept(in place: Place) -> OpenRecord {
        let content = JSONWriter.object { json in
            json.member("kept", stored.milliseconds)
            if id.kind == .credentials {
                json.member("replaced", replaced.map { Base64URL.encode($0) })
            } else {
                json.member("kind", id.kind.rawValue)
                json.member("tenant", id.tenant.description)
                json.member("key", id.key)
                json.member("version", version)
                json.memberIfPresent("lookup", record?.lookup.map { Base64URL.encode($0) })
                json.memberIfPresent("expires", record?.expires?.milliseconds)
                json.memberIfPresent("due", record?.due?.milliseconds)
            }
            json.memberIfPresent("record", record.map { Base64URL.encode($0.content.revealedBytes) })
        }
        return OpenRecord(id: place.id, version: place.version, content: SecretBytes(content))
    }

    /// Reads a record of the journal. Nil where this build cannot read it.
    init?(_ kept: OpenRecord) {
        guard let json = try? JSONValue(parsing: kept.content.revealedBytes), let time = json["kept"]?.integer else {
            return nil
        }
        let stored = Timestamp(milliseconds: time)
        switch kept.id.kind {
        case .recent where kept.id.tenant != .broker:
            guard let elements = json["replaced"]?.array, let content = Self.bytes(json["record"]),
                CredentialRecord(decoding: content) != nil
            else { return nil }
            let replaced = elements.compactMap { Self.bytes($0) }
            guard replaced.count == elements.count else { return nil }
            let id = RecordID(.credentials, kept.id.tenant, key: kept.id.key)
            let record = OpenRecord(id: id, version: kept.version, content: SecretBytes(content))
            self.init(storing: record, replacing: replaced, at: stored)
        case .recent:
            guard let kind = (json["kind"]?.string?.text).flatMap({ RecordKind(rawValue: $0) }),
                let tenant = json["tenant"]?.string?.text, let key = json["key"]?.string?.text
            else { return nil }
            let name = WireText(tenant) == WireText(TenantName.broker.description) ? .broker : TenantName(tenant)
            guard let name else { return nil }
            self.init(RecordID(kind, name, key: key), json, json["record"], at: stored)
        case .keptSession:
            self.init(
                RecordID(.session, kept.id.tenant, key: kept.id.key), json, json["session"], at: stored)
        default:
            return nil
        }
    }

    private init?(_ id: RecordID, _ json: JSONValue, _ content: JSONValue?, at stored: Timestamp) {
        guard let version = json["version"]?.integer else { return nil }
        guard let content else {
            self.init(removing: id, version: version, at: stored)
            return
        }
        guard let bytes = Self.bytes(content) else { return nil }
        let record = OpenRecord(
            id: id, version: version, content: SecretBytes(bytes), lookup: Self.bytes(json["lookup"]),
            expires: json["expires"]?.integer.map { Timestamp(milliseconds: $0) },
            due: json["due"]?.integer.map { Timestamp(milliseconds: $0) })
        self.init(storing: record, at: stored)
    }

    private static func bytes(_ json: JSONValue?) -> [UInt8]? {
        (json?.string?.text).flatMap { Base64URL.decode($0) }
    }
}

extension CredentialRecord {
    /// Identifies these credentials: the digest of the refresh token, or of the access token where there is no refresh token.
    /// Nil where there are no credentials.
    var tokenDigest: [UInt8]? {
        granted.map { held in held.refreshTokenDigest ?? held.accessToken.withRevealed { SHA256.digest($0) } }
    }

    /// Whether a login or a logout has made the record, and not a renewal.
    var isAct: Bool { renewed == nil && ended == nil && session == nil }
}
