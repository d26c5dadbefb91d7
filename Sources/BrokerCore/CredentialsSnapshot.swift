internal import Cryptography
internal import JSON
package import OAuth

/// What is stored under a storage key, as it was read or written last. Immutable; replaced whole. An object, so that a
/// reader of the cache counts one reference and not one for each of the parts.
package final class CredentialsSnapshot: Sendable {
    package let record: CredentialRecord
    /// The stored record's version; 0 where nothing is stored.
    package let version: Int64
    /// The answer of `GET /credentials`, encoded once: the bytes around the number of seconds that are left.
    package let encoded: EncodedCredentials?

    package static let nothing = CredentialsSnapshot(record: CredentialRecord(held: nil), version: 0)

    package init(record: CredentialRecord, version: Int64) {
        self.record = record
        self.version = version
        encoded = record.held.map(EncodedCredentials.init)
    }
}

/// The body of an answer in two pieces.
package struct EncodedCredentials: Sendable {
    private let beforeSeconds: [UInt8]
    private let afterSeconds: [UInt8]
    private let expires: Timestamp

    package init(_ held: HeldCredentials) {
        let client = held.obtainedWith
        expires = held.expires
        var head = JSONWriter.object { json in
            json.member("level", held.level.rawValue)
            json.member("client_id", client.clientID)
            json.member("requested_scopes", client.scopes.values)
            json.memberOrNull("client_unique_key", client.clientUniqueKey)
            json.member("granted_scopes", held.grantedScopes.values)
            json.memberOrNull("user_id", held.userID)
            json.member("expires", held.expires.description)
        }
        head.removeLast()
        beforeSeconds = head + Array(#","expires_in":"#.utf8)
        let tail = JSONWriter.object { json in
            json.member("token_type", "Bearer")
            json.member("token", held.accessToken.revealedText)
        }
        afterSeconds = [UInt8(ascii: ",")] + tail.dropFirst()
    }

    /// What it takes of memory beside its own fields, in bytes.
    var footprint: Int { Footprint.bytes(beforeSeconds.capacity) + Footprint.bytes(afterSeconds.capacity) }

    /// The whole body, with the seconds that are left at `now`.
    package func body(at now: Timestamp) -> [UInt8] {
        let seconds = max(0, now.duration(to: expires).components.seconds)
        var body: [UInt8] = []
        body.reserveCapacity(beforeSeconds.count + afterSeconds.count + 20)
        body += beforeSeconds
        body += String(seconds).utf8
        body += afterSeconds
        return body
    }
}
