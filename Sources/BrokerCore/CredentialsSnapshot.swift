package import Cryptography
internal import JSON
package import OAuth
internal import Synchronization

/// What is stored under a storage key, as it was read or written last. Immutable; replaced whole. An object, so that a
/// reader of the cache counts one reference and not one for each of the parts.
package final class CredentialsSnapshot: Sendable {
    package let record: CredentialRecord
    /// The stored record's version; 0 where nothing is stored.
    package let version: Int64
    /// The answer of `GET /credentials`, encoded once: the bytes around the number of seconds that are left.
    package let encoded: EncodedCredentials?
    /// Until when a query without conditions is answered by these, by the terms of one generation of the configuration:
    /// that above, the second since 1970 below. 0 where nobody has asked yet.
    private let served = Atomic<UInt64>(0)

    package static let nothing = CredentialsSnapshot(record: CredentialRecord(held: nil), version: 0)

    package init(record: CredentialRecord, version: Int64) {
        self.record = record
        self.version = version
        encoded = record.held.map { EncodedCredentials($0, version: version) }
    }

    /// Whether it was noted that a query without conditions is answered by these at that time.
    func isServed(_ configuration: Int, until time: Timestamp) -> Bool {
        let word = served.load(ordering: .relaxed)
        return word >> 32 == UInt64(UInt32(truncatingIfNeeded: configuration))
            && Int64(word & 0xffff_ffff) * 1000 >= time.milliseconds
    }

    func noteServed(_ configuration: Int, until time: Timestamp) {
        let second = UInt32(clamping: time.milliseconds / 1000)
        served.store(
            UInt64(UInt32(truncatingIfNeeded: configuration)) << 32 | UInt64(second), ordering: .relaxed)
    }
}

/// The body of an answer, encoded up to the number of seconds; what follows is the token, which is not kept twice. An
/// object for the same reason.
package final class EncodedCredentials: Sendable {
    /// From the entity tag, behind its first quote, to the seconds in the body: the content's length is the only field
    /// between the two.
    package let opening: [UInt8]
    /// Where the body begins in that.
    private let bodyStart: Int
    /// What comes between the seconds and a token that is plain, and after that.
    package static let beforeToken: StaticString = #","token_type":"Bearer","token":""#
    package static let afterToken: StaticString = "\"}"
    /// The digits of the seconds are filled up with spaces in front, so that the length of the body does not change
    /// while the token grows older: enough for any lifetime.
    package static let secondsWidth = 12
    package let token: SecretBytes
    package let expires: Timestamp
    /// Whether the token stands in JSON as it is, as every one does that a provider has made so far.
    package let isPlain: Bool
    /// The length of a body whose token is plain.
    package let count: Int

    package init(_ held: HeldCredentials, version: Int64) {
        let client = held.obtainedWith
        expires = held.expires
        token = held.accessToken
        isPlain = token.withRevealed { bytes in
            bytes.indices.allSatisfy { index in
                let byte = bytes[index]
                return byte > 0x20 && byte < 0x7f && byte != UInt8(ascii: "\"") && byte != UInt8(ascii: "\\")
            }
        }
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
        head += Array(#","expires_in":"#.utf8)
        count =
            head.count + Self.secondsWidth + Self.beforeToken.utf8CodeUnitCount + token.count
            + Self.afterToken.utf8CodeUnitCount
        let fields = Array("\(version)\"\r\nContent-Length: \(count)\r\n\r\n".utf8)
        opening = fields + head
        bodyStart = fields.count
    }

    /// What it takes of memory, in bytes.
    var footprint: Int {
        Footprint.allocation(16 + 48) + Footprint.bytes(opening.capacity)
    }

    /// The whole seconds that are left at `now`; 0 once it is over.
    private func seconds(at now: Timestamp) -> Int64 {
        max(0, (expires.milliseconds - now.milliseconds) / 1000)
    }

    /// The whole body at `now`.
    package func body(at now: Timestamp) -> [UInt8] {
        let seconds = String(seconds(at: now))
        var body: [UInt8] = []
        body.reserveCapacity(count)
        body += opening[bodyStart...]
        body += repeatElement(UInt8(ascii: " "), count: max(0, Self.secondsWidth - seconds.utf8.count))
        body += seconds.utf8
        if isPlain {
            body += Self.beforeToken.description.utf8
            token.withRevealed { token in for index in token.indices { body.append(token[index]) } }
            body += Self.afterToken.description.utf8
        } else {
            body.append(UInt8(ascii: ","))
            body += JSONWriter.object { json in
                json.member("token_type", "Bearer")
                json.member("token", token.revealedText)
            }.dropFirst()
        }
        return body
    }
}
