package import Cryptography
package import ExternalText
internal import JSON

/// Signs tokens with one key by one algorithm.
package struct TokenSigner: Sendable {
    package let key: PrivateJSONWebKey
    package let algorithm: SignatureAlgorithm

    /// - Throws: the reason why the key must not sign by `algorithm`.
    package init(_ key: PrivateJSONWebKey, algorithm: SignatureAlgorithm) throws(JWSError.Misfit) {
        if let misfit = key.publicJWK.misfit(for: algorithm) { throw misfit }
        self.key = key
        self.algorithm = algorithm
    }

    /// The compact serialization (RFC 7515 §7.1) of a JWS. Its header has `alg`, and `kid` where the key has a name.
    /// - Parameters:
    ///   - payload: for a JWT, the JSON text of its claims.
    ///   - type: `typ`.
    ///   - embedsKey: whether the header has the public key as `jwk`, for a proof that this process has the private one.
    /// - Throws: `.libraryFailure`.
    package func sign(
        _ payload: [UInt8], type: WireText? = nil, embedsKey: Bool = false
    ) throws(KeyError) -> WireText {
        let header = JSONWriter.object { writer in
            writer.member("alg", algorithm.rawValue)
            writer.memberIfPresent("kid", key.keyID?.text)
            writer.memberIfPresent("typ", type?.text)
            if embedsKey {
                writer.name("jwk")
                writer.object { key.publicJWK.write(to: &$0) }
            }
        }
        let signingInput = Base64URL.encode(header) + "." + Base64URL.encode(payload)
        let signature = try key.privateKey.signature(of: Array(signingInput.utf8), by: algorithm.scheme)
        return WireText(signingInput + "." + Base64URL.encode(signature))
    }
}
