import Cryptography
package import ExternalText

/// A JWS in the compact serialization (RFC 7515 §7.1) that was read, but not verified.
///
/// It has passed the caller's policy. What it says is not to be believed before one of the `verified` methods has made a
/// `VerifiedJWS` of it.
package struct CompactJWS: Sendable {
    /// The longest token that is read, in bytes.
    package static let longest = 65_536

    package let header: JOSEHeader
    /// The payload, of which nothing is known.
    package let unverifiedPayload: [UInt8]
    private let signature: [UInt8]
    /// What the signature is of: the header and the payload as they were sent, with the dot between them.
    private let signingInput: [UInt8]

    /// - Throws: `.tooLarge`, `.malformed`, `.notBase64URL`, and what the header is refused for: `.malformedHeader`,
    ///   `.malformedParameter`, `.noAlgorithm`, `.unsecured`, `.algorithmNotAllowed`, `.criticalExtension`,
    ///   `.keySource`, `.embeddedKey`, `.type`.
    package init(parsing token: WireText, policy: JWSPolicy) throws(JWSError) {
        guard token.count <= Self.longest else { throw .tooLarge }
        let bytes = Array(token.utf8)
        let parts = bytes.split(separator: UInt8(ascii: "."), maxSplits: 3, omittingEmptySubsequences: false)
        guard parts.count == 3 else { throw .malformed }
        header = try JOSEHeader(parsing: try Self.decode(parts[0], .header), policy: policy)
        unverifiedPayload = try Self.decode(parts[1], .payload)
        signature = try Self.decode(parts[2], .signature)
        signingInput = Array(bytes[..<parts[1].endIndex])
    }

    private static func decode(_ text: ArraySlice<UInt8>, _ part: JWSError.Part) throws(JWSError) -> [UInt8] {
        guard let bytes = Base64URL.decode(text.span) else { throw .notBase64URL(part) }
        return bytes
    }

    /// The same token, when it is signed with one of the keys of the set that its header names.
    /// - Throws: `.unknownKey`, `.ambiguousKey`, `.unsuitableKey`, `.signatureLength`, `.signature`.
    package func verified(with keys: JSONWebKeySet) throws(JWSError) -> VerifiedJWS {
        var failure = JWSError.unknownKey
        for key in try keys.keys(for: header) {
            do throws(JWSError) {
                return try verified(with: key)
            } catch {
                failure = error
            }
        }
        throw failure
    }

    /// The same token, when it is signed with `key`. The header's `kid` does not count.
    /// - Throws: `.unsuitableKey`, `.signatureLength`, `.signature`.
    package func verified(with key: JSONWebKey) throws(JWSError) -> VerifiedJWS {
        if let misfit = key.misfit(for: header.algorithm) { throw .unsuitableKey(misfit) }
        let scheme = header.algorithm.scheme
        guard signature.count == scheme.signatureCount(with: key.publicKey) else { throw .signatureLength }
        guard key.publicKey.verifies(signature, of: signingInput, by: scheme) else { throw .signature }
        return VerifiedJWS(header: header, payload: unverifiedPayload, key: key)
    }
}

/// A JWS whose signature was verified. Only `CompactJWS` makes one.
package struct VerifiedJWS: Sendable {
    package let header: JOSEHeader
    package let payload: [UInt8]
    /// The key that the token is signed with.
    package let key: JSONWebKey

    fileprivate init(header: JOSEHeader, payload: [UInt8], key: JSONWebKey) {
        self.header = header
        self.payload = payload
        self.key = key
    }

    /// The payload as the claims set of a JWT.
    /// - Throws: every case of `ClaimsFault`.
    package func claims() throws(ClaimsFault) -> ClaimsSet { try ClaimsSet(parsing: payload) }
}
