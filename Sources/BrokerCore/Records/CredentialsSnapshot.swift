internal import Cryptography
internal import ExternalText
package import HTTPCodec
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
    /// The answer of `GET /credentials`, encoded once but for the seconds that are left, as `CachedAnswer` has it. Without
    /// its end where the token is not plain, and empty where nothing is stored.
    let bytes: SecretBytes
    /// Whether there is a token that stands in JSON as it is, as every one does that a provider has made so far.
    let isPlain: Bool
    /// Where the body begins in the bytes.
    private let bodyStart: Int
    /// Where the seconds that are left belong in the bytes.
    private let secondsPlace: Int

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
        secondsPlace = encoded?.secondsPlace ?? 0
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
            for index in bodyStart..<secondsPlace { body.append(bytes[index]) }
            if held.expiry != nil {
                body.append(contentsOf: "\(Self.seconds(until: held.expires.milliseconds, at: now))".utf8)
            }
            for index in secondsPlace..<bytes.count { body.append(bytes[index]) }
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

extension CredentialsSnapshot {
    /// `expires_in`: the whole seconds that are left, 0 after the end.
    /// - Parameter expires: in milliseconds since 1970.
    package static func seconds(until expires: Int64, at now: Timestamp) -> Int64 {
        max(0, expires - now.milliseconds) / 1000
    }

    /// The fields of an answer.
    /// - Parameter tag: nil for none.
    package static func fields(tag: String?) -> Fields {
        var fields: Fields = ["Content-Type": "application/json", "Cache-Control": "no-store"]
        if let tag { fields.append("ETag", tag) }
        return fields
    }

    /// The fields of an answer that the caller has already.
    package static func fieldsOfNotModified(tag: String) -> Fields { ["Cache-Control": "no-store", "ETag": tag] }

    /// Where the lines of `fieldsOfNotModified` begin in those of `fields`.
    package static let notModifiedStart = encoded(["Content-Type": "application/json"]).count - 2

    /// The lines of fields, with an empty line behind them.
    fileprivate static func encoded(_ fields: Fields) -> [UInt8] {
        do {
            return try ResponseEncoder.encode(fields)
        } catch {
            preconditionFailure("the fields of an answer cannot be encoded")
        }
    }

    /// The entity tag of a stored record.
    package static func tag(_ version: Int64) -> String { "\"\(version)\"" }
}

extension CredentialsSnapshot: Cacheable {
    /// None where there is no answer that can be sent as it stands.
    package var hint: CachedAnswer { isPlain && isStored ? CachedAnswer(of: bytes) : CachedAnswer() }
}

/// The answer of `GET /credentials` to a set of credentials, encoded once: its field lines and its body.
private struct EncodedCredentials {
    let bytes: SecretBytes
    let bodyStart: Int
    let secondsPlace: Int
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
        if held.expiry == nil { head.append(contentsOf: "null".utf8) }
        let tail = Array(#","token_type":"Bearer","token":""#.utf8)
        let afterToken: [UInt8] = [UInt8(ascii: "\""), UInt8(ascii: "}")]
        let tag = CredentialsSnapshot.tag(version)
        let fields = CredentialsSnapshot.encoded(CredentialsSnapshot.fields(tag: tag))
        let facts = CachedAnswer.Facts(
            id, expires: held.expires, fields: fields.count, entityTag: tag.utf8.count, before: head.count,
            after: tail.count + held.accessToken.count + afterToken.count)
        var before = CachedAnswer.opening(id, facts)
        before.reserveCapacity(before.count + fields.count + head.count + tail.count)
        before += fields
        bodyStart = before.count
        before += head
        secondsPlace = before.count
        if isPlain {
            before += tail
            bytes = SecretBytes(prefix: before, secret: held.accessToken, suffix: afterToken)
            token = bytes.extracting(before.count..<before.count + held.accessToken.count)
        } else {
            bytes = SecretBytes(before)
            token = held.accessToken
        }
    }
}
