import Cryptography
import ExternalText
import GroundTesting
import JOSE
import JSON

/// Keys that the tests sign with, one for each algorithm.
enum SampleKeys {
    static let p256 = make(.elliptic(.p256), "p256")
    static let p384 = make(.elliptic(.p384), "p384")
    static let ed25519 = make(.ed25519, "ed25519")
    /// That of RFC 7515 §A.2: making one takes long.
    static let rsa: PrivateJSONWebKey = {
        guard let jwk = try? VectorFile.read("rfc.json")["rfc7515"]?["A2"]?["jwk"],
            let key = try? PrivateJSONWebKey(jwk)
        else { fatalError("rfc.json has no RSA key") }
        return PrivateJSONWebKey(key.privateKey, keyID: "rsa")
    }()

    static func key(for algorithm: SignatureAlgorithm) -> PrivateJSONWebKey {
        switch algorithm {
        case .es256: p256
        case .es384: p384
        case .rs256, .ps256: rsa
        case .edDSA: ed25519
        }
    }

    static func make(_ kind: PrivateKey.Kind, _ keyID: WireText) -> PrivateJSONWebKey {
        guard let key = try? PrivateKey.generate(kind) else { fatalError("no key was made") }
        return PrivateJSONWebKey(key, keyID: keyID)
    }

    /// A token with exactly this header and payload, and a signature of them.
    static func token(
        header: String, payload: [UInt8] = Array("{}".utf8), _ algorithm: SignatureAlgorithm = .es256,
        key: PrivateJSONWebKey? = nil
    ) -> WireText {
        let input = Base64URL.encode(Array(header.utf8)) + "." + Base64URL.encode(payload)
        guard
            let signature = try? (key ?? self.key(for: algorithm)).privateKey.signature(
                of: Array(input.utf8), by: algorithm.scheme)
        else { fatalError("no signature was made") }
        return WireText(input + "." + Base64URL.encode(signature))
    }
}
