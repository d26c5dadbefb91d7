package import Cryptography
package import ExternalText
import JSON

/// Signs tokens with a secret that the verifier has as well: HS256 (RFC 7518 §3.2). There is no verifier for such tokens here,
/// so that a public key can never be taken for a secret.
package struct SharedSecretSigner: Sendable {
    /// RFC 7518 §3.2: a secret has at least as many octets as the code.
    package static let shortestSecret = 32

    private let secret: SecretBytes

    /// - Returns: nil for a secret of less than `shortestSecret` octets.
    package init?(_ secret: SecretBytes) {
        if secret.count < Self.shortestSecret { return nil }
        self.secret = secret
    }

    /// The compact serialization (RFC 7515 §7.1) of a JWS.
    /// - Parameters:
    ///   - payload: for a JWT, the JSON text of its claims.
    ///   - type: `typ`.
    package func sign(_ payload: [UInt8], type: WireText) -> WireText {
        let header = JSONWriter.object { writer in
            writer.member("alg", "HS256")
            writer.member("typ", type.text)
        }
        let text = Base64URL.encode(header) + "." + Base64URL.encode(payload)
        return WireText(text + "." + Base64URL.encode(HMAC.sha256(key: secret, Array(text.utf8))))
    }
}
