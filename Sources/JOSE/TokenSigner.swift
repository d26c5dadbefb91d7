package import Cryptography
package import ExternalText
import JSON

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
        let unsigned = UnsignedJWS(payload, of: key.publicJWK, by: algorithm, type: type, embedsKey: embedsKey)
        return unsigned.signed(by: try key.privateKey.signature(of: unsigned.signingInput, by: algorithm.scheme))
    }
}

/// A JWS whose signature is still to be made, by a key that need not be in this process.
package struct UnsignedJWS: Sendable {
    private let text: String

    /// - Parameters:
    ///   - payload: for a JWT, the JSON text of its claims.
    ///   - key: the public key of the signature. The header has its `kid`.
    ///   - type: `typ`.
    ///   - embedsKey: whether the header has the key as `jwk`.
    package init(
        _ payload: [UInt8], of key: JSONWebKey, by algorithm: SignatureAlgorithm, type: WireText?, embedsKey: Bool
    ) {
        let header = JSONWriter.object { writer in
            writer.member("alg", algorithm.rawValue)
            writer.memberIfPresent("kid", key.keyID?.text)
            writer.memberIfPresent("typ", type?.text)
            if embedsKey {
                writer.name("jwk")
                writer.object { key.write(to: &$0) }
            }
        }
        text = Base64URL.encode(header) + "." + Base64URL.encode(payload)
    }

    /// What is signed (RFC 7515 §5.1).
    package var signingInput: [UInt8] { Array(text.utf8) }

    /// The compact serialization (RFC 7515 §7.1).
    /// - Parameter signature: that of ECDSA is r ‖ s, as in RFC 7518 §3.4.
    package func signed(by signature: [UInt8]) -> WireText { WireText(text + "." + Base64URL.encode(signature)) }
}
