internal import Cryptography
internal import ExternalText
internal import HTTPCodec
internal import JSON
package import OAuth

/// What is stored under a storage key, as it was read or written last. Immutable; replaced whole. An object, so that a
/// reader of the cache counts one reference and not one for each of the parts.
package final class CredentialsSnapshot: Sendable {
    /// Of every storage key under which nothing is stored.
    package static let nothing = CredentialsSnapshot(CredentialRecord(held: nil), version: 0, nil)

    /// The stored record's version; 0 where nothing is stored.
    package let version: Int64
    package let record: CredentialRecord
    /// The answer of `GET /credentials`, encoded once, from the Content-Type field on, with spaces in place of the seconds
    /// that are left, and before it its opening. Without its end where the token is not plain, and empty where nothing is
    /// stored.
    let bytes: SecretBytes
    /// Whether there is a token that stands in JSON as it is, as every one does that a provider has made so far.
    let isPlain: Bool
    /// Where the body begins in the bytes.
    private let bodyStart: Int
    /// Where the digits of the seconds end in the bytes.
    private let secondsEnd: Int
    /// The digits of the seconds are filled up with spaces in front, so that the length of the body does not change
    /// while the token grows older: enough for any lifetime.
    package static var secondsWidth: Int { 12 }

    /// Whether it is stored. What is not has no entity tag: another change may come first, and then its version is never
    /// stored.
    package let isStored: Bool

    package convenience init(_ record: CredentialRecord, of id: CredentialsID, version: Int64) {
        self.init(
            record, version: version,
            record.held.map { EncodedCredentials($0, after: record.session, of: id, version: version) })
    }

    /// What could not be stored yet in place of the version `base`. It counts as the next one, and that number is told to
    /// nothing outside of this process.
    package convenience init(unpublished record: CredentialRecord, of id: CredentialsID, over base: Int64) {
        let version = base + 1
        self.init(
            record, version: version,
            record.held.map { EncodedCredentials($0, after: record.session, of: id, version: version) }, isStored: false
        )
    }

    private init(
        _ record: CredentialRecord, version: Int64, _ encoded: EncodedCredentials?, isStored: Bool = true
    ) {
        var record = record
        self.version = version
        self.isStored = isStored
        bytes = encoded?.bytes ?? SecretBytes([])
        bodyStart = encoded?.bodyStart ?? 0
        secondsEnd = encoded?.secondsEnd ?? 0
        isPlain = encoded?.isPlain ?? false
        // In memory once.
        if let encoded { record.held?.accessToken = encoded.token }
        self.record = record
    }

    /// The body of the answer at `now`; nil where nothing is stored.
    /// - Parameter degradation: why it is given although it lives shorter than was asked for.
    package func body(at now: Timestamp, _ degradation: Degradation? = nil) -> [UInt8]? {
        guard let held = record.held else { return nil }
        var body: [UInt8] = []
        bytes.withRevealed { bytes in
            body.reserveCapacity(bytes.count)
            for index in bodyStart..<bytes.count { body.append(bytes[index]) }
        }
        if let expiry = held.expiry {
            let seconds = Array("\(max(0, (expiry.milliseconds - now.milliseconds) / 1000))".utf8)
            let end = secondsEnd - bodyStart
            body.replaceSubrange(end - seconds.count..<end, with: seconds)
        }
        if !isPlain {
            body.append(UInt8(ascii: ","))
            body += JSONWriter.object { json in
                json.member("token_type", "Bearer")
                json.member("token", held.accessToken.revealedText)
            }.dropFirst()
        }
        if let degradation {
            body.removeLast()
            body.append(UInt8(ascii: ","))
            body += JSONWriter.object { degradation.encode(to: &$0) }.dropFirst()
        }
        return body
    }
}

extension CredentialsSnapshot: Cacheable {
    /// None where a warm read has nothing to send as it stands.
    package var hint: CachedAnswer { isPlain && isStored ? CachedAnswer(of: bytes) : CachedAnswer() }
}

/// The answer of `GET /credentials` to a set of credentials, encoded once: the fields that are its own, and its body.
private struct EncodedCredentials {
    let bytes: SecretBytes
    let bodyStart: Int
    let secondsEnd: Int
    let isPlain: Bool
    /// In the same memory, where it is plain.
    let token: SecretBytes

    /// - Parameter session: the user's that is over, beside a lower level.
    init(_ held: HeldCredentials, after session: EndedSession?, of id: CredentialsID, version: Int64) {
        let client = held.obtainedWith
        isPlain = held.accessToken.withRevealed { bytes in
            bytes.indices.allSatisfy { index in
                let byte = bytes[index]
                return byte > 0x20 && byte < 0x7f && byte != UInt8(ascii: "\"") && byte != UInt8(ascii: "\\")
            }
        }
        var head = JSONWriter.object { json in
            json.member("level", held.level.rawValue)
            json.member("client_id", client.clientID.text)
            json.member("requested_scopes", client.scopes.values)
            json.memberOrNull("client_unique_key", client.clientUniqueKey?.text)
            json.member("granted_scopes", held.grantedScopes.values)
            json.memberOrNull("user_id", held.userID?.text)
            if held.level < .user { session?.encode(to: &json) }
            json.memberOrNull("expires", held.expiry?.description)
        }
        head.removeLast()
        head.append(contentsOf: #","expires_in":"#.utf8)
        // What never ends has no seconds left that would have to be written.
        let seconds = held.expiry == nil ? "null".utf8 : "".utf8
        head.append(
            contentsOf: repeatElement(UInt8(ascii: " "), count: CredentialsSnapshot.secondsWidth - seconds.count))
        head.append(contentsOf: seconds)
        let secondsEndInHead = head.count
        head.append(contentsOf: #","token_type":"Bearer","token":""#.utf8)
        let afterToken: [UInt8] = [UInt8(ascii: "\""), UInt8(ascii: "}")]
        let count = head.count + held.accessToken.count + afterToken.count
        let fields = """
            \(ResponseEncoder.contentTypeOptions)Content-Type: application/json\r\nCache-Control: no-store\r\n\
            ETag: "\(version)"\r\nContent-Length: \(count)\r\n\r\n
            """.utf8
        var before = CachedAnswer.opening(
            id, expires: held.expires.milliseconds, version: version, count: fields.count + count,
            secondsEnd: fields.count + secondsEndInHead)
        before.reserveCapacity(before.count + fields.count + head.count)
        before.append(contentsOf: fields)
        bodyStart = before.count
        secondsEnd = bodyStart + secondsEndInHead
        before += head
        if isPlain {
            bytes = SecretBytes(prefix: before, secret: held.accessToken, suffix: afterToken)
            token = bytes.extracting(before.count..<before.count + held.accessToken.count)
        } else {
            bytes = SecretBytes(Array(before[..<secondsEnd]))
            token = held.accessToken
        }
    }
}
