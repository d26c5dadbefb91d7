package import Cryptography
package import ExternalText
package import JSON

/// A private key for signing tokens, with the name that its public part has at the verifier.
package struct PrivateJSONWebKey: Sendable {
    package let privateKey: PrivateKey
    /// The public part, to publish or to register.
    package let publicJWK: JSONWebKey

    package var keyID: WireText? { publicJWK.keyID }

    /// A key from a PEM text, or a new one.
    package init(_ privateKey: PrivateKey, keyID: WireText? = nil, algorithm: SignatureAlgorithm? = nil) {
        self.privateKey = privateKey
        publicJWK = JSONWebKey(privateKey.publicKey, keyID: keyID, algorithm: algorithm)
    }

    /// Reads a private JWK (RFC 7518 §6.2.2 and §6.3.2, RFC 8037 §2). That of an RSA key must have its two primes and
    /// what is computed of them.
    /// - Throws: every case of `JSONWebKeyError` but `.notJSON` and `.secretDisclosed`; `.malformed(.use)` for a key that is
    ///   not for signing.
    package init(_ value: JSONValue) throws(JSONWebKeyError) {
        let members = try KeyMembers(value)
        let description = try KeyDescription(members, operation: "sign")
        guard description.isForSignatures else { throw .malformed(.use) }
        let material = try members.publicMaterial()
        let secret = try members.secretMaterial(of: material)
        do throws(KeyError) {
            privateKey = try PrivateKey(material, secret: secret)
        } catch {
            throw .key(error)
        }
        publicJWK = JSONWebKey(privateKey.publicKey, description)
    }
}
