import Cryptography
import ExternalText
package import HTTPCodec
import JSON
package import OAuth

/// What is stored under a storage key, as it was read or written last. Immutable. An object, so that a reader of the cache
/// counts one reference, and not one for each part.
package final class CredentialsSnapshot: Sendable {
    /// The snapshot of every storage key under which nothing is stored.
    package static let nothing = CredentialsSnapshot(CredentialRecord(held: nil), version: 0, nil)

    /// The stored record's version; 0 where nothing is stored.
    package let version: Int64
    package let record: CredentialRecord
    /// The version under which callers know the set that may be served: the record's, or an earlier one where the record was
    /// written again without another set for them.
    package var heldVersion: Int64 { record.heldSince ?? version }
    /// The encoded answer of `GET /credentials` without the value of `expires_in`, as in `CachedAnswer`. It ends before the
    /// token's members where the token is not plain, and is empty where nothing is stored.
    let bytes: SecretBytes
    /// Whether the token is written in JSON without escapes, as every token that providers have made so far.
    let isPlain: Bool
    /// The index at which the body begins.
    private let bodyStart: Int
    /// The index at which the value of `expires_in` belongs.
    private let secondsPlace: Int

    /// Whether it is stored. A snapshot that is not stored has no entity tag: if another change comes first, its version is
    /// never stored.
    package let isStored: Bool

    package convenience init(_ record: CredentialRecord, of id: CredentialsID, version: Int64) {
        self.init(
            record, version: version,
            record.held.map { EncodedCredentials($0, of: id, version: record.heldSince ?? version) })
    }

    /// A snapshot that could not be stored yet in place of the version `base`. Its version is `base` + 1, which is not used
    /// outside of this process.
    package convenience init(unpublished record: CredentialRecord, of id: CredentialsID, over base: Int64) {
        let version = base + 1
        self.init(
            record, version: version,
            record.held.map { EncodedCredentials($0, of: id, version: version) }, isStored: false)
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
        if let encoded, record.waiting == nil { record.granted?.accessToken = encoded.token }
        self.record = record
    }

    /// The body of the answer at `now`; nil where nothing is stored.
    /// - Parameters:
    ///   - degradation: why the token has a shorter lifetime than the caller asked for; nil where it does not.
    ///   - reconnectURI: where the user whose session has ended logs in again; nil for no such address.
    package func body(
        at now: Timestamp, _ degradation: Degradation? = nil, reconnectURI: String? = nil
    ) -> [UInt8]? {
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
                json.member("token_type", held.tokenType)
                json.member("token", held.accessToken.revealedText)
            }.dropFirst()
        }
        if let degradation {
            body.removeLast()
            body.append(UInt8(ascii: ","))
            body += JSONWriter.object { degradation.encode(to: &$0) }.dropFirst()
        }
        if let session = record.session {
            body.removeLast()
            body.append(UInt8(ascii: ","))
            body += JSONWriter.object { session.encode(to: &$0, reconnectURI: reconnectURI) }.dropFirst()
        }
        return body
    }
}

extension CredentialsSnapshot {
    /// The value of `expires_in`: the whole seconds until the token expires, 0 after that.
    /// - Parameter expires: in milliseconds since 1970.
    package static func seconds(until expires: Int64, at now: Timestamp) -> Int64 {
        max(0, expires - now.milliseconds) / 1000
    }

    /// The fields of an answer.
    /// - Parameter tag: the entity tag; nil for none.
    package static func fields(tag: String?) -> Fields {
        var fields: Fields = ["Content-Type": "application/json", "Cache-Control": "no-store"]
        if let tag { fields.append("ETag", tag) }
        return fields
    }

    /// The fields of the answer 304.
    package static func fieldsOfNotModified(tag: String) -> Fields { ["Cache-Control": "no-store", "ETag": tag] }

    /// The index in the lines of `fields` at which the lines of `fieldsOfNotModified` begin.
    package static let notModifiedStart = encoded(["Content-Type": "application/json"]).count - 2

    /// The lines of fields, with an empty line after them.
    fileprivate static func encoded(_ fields: Fields) -> [UInt8] {
        do {
            return try ResponseEncoder.encode(fields)
        } catch {
            preconditionFailure("the fields of an answer cannot be encoded")
        }
    }

    /// The entity tag of answers whose last change has this version.
    package static func tag(_ version: Int64) -> String { "\"\(version)\"" }
}

extension CredentialsSnapshot: Cacheable {
    /// Empty where the answer cannot be sent as it is. Beside an ended session, it has an address that is made for each answer.
    package var hint: CachedAnswer {
        isPlain && isStored && record.session == nil ? CachedAnswer(of: bytes) : CachedAnswer()
    }
}

/// The encoded answer of `GET /credentials` for a set of credentials: its field lines and its body.
private struct EncodedCredentials {
    let bytes: SecretBytes
    let bodyStart: Int
    let secondsPlace: Int
    let isPlain: Bool
    /// In the same memory, where it is plain.
    let token: SecretBytes

    init(_ held: HeldCredentials, of id: CredentialsID, version: Int64) {
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
            if let extra = held.extra {
                json.name("extra")
                extra.encode(to: &json)
            }
            json.memberOrNull("expires", held.expiry?.description)
        }
        head.removeLast()
        head.append(contentsOf: #","expires_in":"#.utf8)
        if held.expiry == nil { head.append(contentsOf: "null".utf8) }
        let tail = Array(#","token_type":"\#(held.tokenType)","token":""#.utf8)
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
