package import Cryptography
package import ExternalText
import JOSE
import JSON

/// The key pair of one session, on P-256. The provider has its public part, and lets the session get codes for other
/// apps only with proof of the private one. Immutable. An object, so that credentials without a key stay small.
package final class DeviceKey: Sendable, Equatable {
    /// The private key (PKCS #8).
    package let pem: SecretBytes
    /// Whether the provider is known to have bound the key to the session. A candidate is stored before it is sent for the
    /// first time, so that it is not lost if the provider binds it and the process ends.
    package let isBound: Bool

    /// For how long a proof is valid.
    private static let proofSeconds: Int64 = 60

    package init(pem: SecretBytes, isBound: Bool) {
        self.pem = pem
        self.isBound = isBound
    }

    /// Makes a new key.
    /// - Throws: `.libraryFailure`.
    package static func generate(isBound: Bool) throws(KeyError) -> DeviceKey {
        DeviceKey(pem: try PrivateKey.generate(.elliptic(.p256)).pem(), isBound: isBound)
    }

    /// The same key after the provider has bound it.
    package var bound: DeviceKey { DeviceKey(pem: pem, isBound: true) }

    package static func == (left: DeviceKey, right: DeviceKey) -> Bool {
        left.pem == right.pem && left.isBound == right.isBound
    }

    /// The signed token that proves that its sender has the private key. Its header has the public key, whose name is its
    /// thumbprint, so that the key is the same text in each proof.
    /// - Throws: a reason why the stored key cannot be used.
    package func proof(
        of challenge: WireText, by rules: ProviderPreset.AppToAppRules, at now: Timestamp
    ) throws(KeyError) -> WireText {
        let key = try PrivateKey(pem: pem)
        let name = Base64URL.encode(JSONWebKey(key.publicKey).thumbprint)
        let signer: TokenSigner
        do throws(JWSError.Misfit) {
            signer = try TokenSigner(
                PrivateJSONWebKey(key, keyID: WireText(name), algorithm: .es256), algorithm: .es256)
        } catch {
            throw .unsupported
        }
        let claims = JSONWriter.object { json in
            json.member("iat", now.seconds)
            json.member("exp", now.seconds + Self.proofSeconds)
            json.member("challenge", challenge.text)
            json.member("action", "setup")
        }
        return try signer.sign(claims, type: rules.proofType, embedsKey: true)
    }
}

/// Printing a key shows nothing of the secret.
extension DeviceKey: CustomStringConvertible {
    package var description: String { isBound ? "<device key>" : "<candidate for a device key>" }
}
