package import Cryptography
internal import JSON
package import OAuth
internal import Synchronization

/// What is stored under a storage key, as it was read or written last. Immutable; replaced whole. An object, so that a
/// reader of the cache counts one reference and not one for each of the parts.
package final class CredentialsSnapshot: Sendable {
    // What a warm read looks at comes first, for the processor's cache.
    /// Until when a query without conditions is answered by these, by the terms of one generation of the configuration:
    /// that above, the second since 1970 below. 0 where nobody has asked yet.
    private let served = Atomic<UInt64>(0)
    /// The answer of `GET /credentials`, encoded once, from the Content-Type field on, with spaces in place of the seconds
    /// that are left. Without its end where the token is not plain, and empty where nothing is stored.
    package let answer: SecretBytes
    /// Where the digits of the seconds end in the answer.
    package let secondsEnd: Int
    /// The digits of the seconds are filled up with spaces in front, so that the length of the body does not change
    /// while the token grows older: enough for any lifetime.
    package static var secondsWidth: Int { 12 }
    /// Until when the token is good, in milliseconds since 1970.
    package let expires: Int64
    /// Whether there is a token that stands in JSON as it is, as every one does that a provider has made so far.
    package let isPlain: Bool
    /// Where the body begins in the answer.
    private let bodyStart: Int
    /// The stored record's version; 0 where nothing is stored.
    package let version: Int64
    package let record: CredentialRecord

    package static let nothing = CredentialsSnapshot(record: CredentialRecord(held: nil), version: 0)

    package init(record: CredentialRecord, version: Int64) {
        var record = record
        self.version = version
        expires = record.held?.expires.milliseconds ?? 0
        if let encoded = record.held.map({ EncodedCredentials($0, version: version) }) {
            answer = encoded.answer
            bodyStart = encoded.bodyStart
            secondsEnd = encoded.secondsEnd
            isPlain = encoded.isPlain
            // In memory once.
            record.held?.accessToken = encoded.token
        } else {
            answer = SecretBytes([])
            (bodyStart, secondsEnd, isPlain) = (0, 0, false)
        }
        self.record = record
    }

    /// The body of the answer at `now`; nil where nothing is stored.
    package func body(at now: Timestamp) -> [UInt8]? {
        guard let held = record.held else { return nil }
        let seconds = Array("\(max(0, (expires - now.milliseconds) / 1000))".utf8)
        var body: [UInt8] = []
        answer.withRevealed { answer in
            body.reserveCapacity(answer.count)
            for index in bodyStart..<answer.count { body.append(answer[index]) }
        }
        let end = secondsEnd - bodyStart
        body.replaceSubrange(end - seconds.count..<end, with: seconds)
        if !isPlain {
            body.append(UInt8(ascii: ","))
            body += JSONWriter.object { json in
                json.member("token_type", "Bearer")
                json.member("token", held.accessToken.revealedText)
            }.dropFirst()
        }
        return body
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

/// The answer of `GET /credentials` to a set of credentials, encoded once: the fields that are its own, and its body.
private struct EncodedCredentials {
    let answer: SecretBytes
    let bodyStart: Int
    let secondsEnd: Int
    let isPlain: Bool
    /// In the answer's memory, where it is plain.
    let token: SecretBytes

    init(_ held: HeldCredentials, version: Int64) {
        let client = held.obtainedWith
        isPlain = held.accessToken.withRevealed { bytes in
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
        head += repeatElement(UInt8(ascii: " "), count: CredentialsSnapshot.secondsWidth)
        let beforeToken = Array(#","token_type":"Bearer","token":""#.utf8)
        let afterToken = Array("\"}".utf8)
        let count = head.count + beforeToken.count + held.accessToken.count + afterToken.count
        let fields = Array(
            """
            Content-Type: application/json\r\nCache-Control: no-store\r\nETag: "\(version)"\r\n\
            Content-Length: \(count)\r\n\r\n
            """.utf8)
        bodyStart = fields.count
        secondsEnd = fields.count + head.count
        if isPlain {
            let before = fields + head + beforeToken
            answer = SecretBytes(before, held.accessToken, afterToken)
            token = answer.extracting(before.count..<before.count + held.accessToken.count)
        } else {
            answer = SecretBytes(fields + head)
            token = held.accessToken
        }
    }
}
