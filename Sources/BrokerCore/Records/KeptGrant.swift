internal import CredentialStore
internal import Cryptography
internal import ExternalText
internal import JSON
internal import OAuth

/// What this process stored under a storage key last: kept for some time, for a store that goes back to before that.
struct KeptGrant: Sendable, Equatable {
    let id: CredentialsID
    /// The version that it was stored as.
    let version: Int64
    /// Credentials, or the mark that a logout or a provider's refusal left.
    let record: CredentialRecord
    /// Digests of what it has come after, the last one last; see `CredentialRecord.tokenDigest`. The first ones are left
    /// out where there are many.
    let replaced: [[UInt8]]
    /// By the time of day.
    let kept: Timestamp

    init(id: CredentialsID, version: Int64, record: CredentialRecord, replaced: [[UInt8]], kept: Timestamp) {
        self.id = id
        self.version = version
        self.record = record
        self.replaced = replaced
        self.kept = kept
    }

    static func recordID(_ id: CredentialsID) -> RecordID {
        RecordID(.granted, id.tenant, key: id.storageKey.description)
    }

    /// In the form that is sealed.
    var open: OpenRecord {
        let content = JSONWriter.object { json in
            json.member("kept", kept.milliseconds)
            json.member("replaced", replaced.map { Base64URL.encode($0) })
            json.member("record", Base64URL.encode(record.encoded))
        }
        return OpenRecord(id: Self.recordID(id), version: version, content: SecretBytes(content))
    }

    /// Nil where the record is none of this build's.
    init?(_ open: OpenRecord) {
        guard let id = CredentialsID(open.id), let json = try? JSONValue(parsing: open.content.revealedBytes),
            let kept = json["kept"]?.integer, let elements = json["replaced"]?.array,
            let content = (json["record"]?.string?.text).flatMap(Base64URL.decode),
            let record = CredentialRecord(decoding: content)
        else { return nil }
        let replaced = elements.compactMap { $0.string.flatMap { Base64URL.decode($0.text) } }
        guard replaced.count == elements.count else { return nil }
        self.init(
            id: id, version: open.version, record: record, replaced: replaced, kept: Timestamp(milliseconds: kept))
    }
}

extension CredentialRecord {
    /// Tells these credentials from all others: the digest of the refresh token, without one of the access token; nil where
    /// nothing is held.
    var tokenDigest: [UInt8]? {
        held.map { held in held.refreshTokenDigest ?? held.accessToken.withRevealed { SHA256.digest($0) } }
    }

    /// Whether a user or an operator has brought it about, by a login or a logout, and no renewal.
    var isAct: Bool { renewed == nil && ended == nil && session == nil }
}
