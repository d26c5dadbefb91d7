internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import JSON
internal import OAuth

/// What this process last stored under a storage key. `GrantMemory` has it for some time, in case the store loses the commit.
struct RecentGrant: Sendable, Equatable {
    let id: CredentialsID
    /// The version under which it was stored.
    let version: Int64
    /// Credentials, or the empty record of a logout or of a session that a provider ended.
    let record: CredentialRecord
    /// Digests of the tokens that it has replaced, the latest one last; see `CredentialRecord.tokenDigest`. Only the latest
    /// ones where there are many.
    let replaced: [[UInt8]]
    /// When it was stored, by the time of day.
    let stored: Timestamp

    init(id: CredentialsID, version: Int64, record: CredentialRecord, replaced: [[UInt8]], stored: Timestamp) {
        self.id = id
        self.version = version
        self.record = record
        self.replaced = replaced
        self.stored = stored
    }

    static func recordID(_ id: CredentialsID) -> RecordID {
        RecordID(.granted, id.tenant, key: id.storageKey.description)
    }

    /// The record that is sealed.
    var open: OpenRecord {
        let content = JSONWriter.object { json in
            json.member("kept", stored.milliseconds)
            json.member("replaced", replaced.map { Base64URL.encode($0) })
            json.member("record", Base64URL.encode(record.encoded))
        }
        return OpenRecord(id: Self.recordID(id), version: version, content: SecretBytes(content))
    }

    /// Nil where this build cannot read the record.
    init?(_ open: OpenRecord) {
        guard let id = CredentialsID(open.id), let json = try? JSONValue(parsing: open.content.revealedBytes),
            let stored = json["kept"]?.integer, let elements = json["replaced"]?.array,
            let content = (json["record"]?.string?.text).flatMap(Base64URL.decode),
            let record = CredentialRecord(decoding: content)
        else { return nil }
        let replaced = elements.compactMap { $0.string.flatMap { Base64URL.decode($0.text) } }
        guard replaced.count == elements.count else { return nil }
        self.init(
            id: id, version: open.version, record: record, replaced: replaced,
            stored: Timestamp(milliseconds: stored))
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
