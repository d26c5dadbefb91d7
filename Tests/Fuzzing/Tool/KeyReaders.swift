import Cryptography
import ExternalText
import JOSE
import JSON

/// What is read of tokens and keys.
enum KeyReaders {
    /// Keys that have signed none of the inputs.
    private static let keys: [PrivateJSONWebKey] = {
        do {
            return [
                PrivateJSONWebKey(try .generate(.elliptic(.p256)), keyID: "k1", algorithm: .es256),
                PrivateJSONWebKey(try .generate(.ed25519), keyID: "k2", algorithm: .edDSA),
            ]
        } catch {
            fail("no key can be made: \(error)")
        }
    }()

    static func readToken(_ bytes: [UInt8]) {
        guard let text = WireText(validating: bytes.span) else { return }
        for allowsEmbeddedKey in [true, false] {
            let policy = JWSPolicy(
                algorithms: Set(SignatureAlgorithm.allCases), allowsEmbeddedKey: allowsEmbeddedKey)
            guard let token = try? CompactJWS(parsing: text, policy: policy) else { continue }
            require(allowsEmbeddedKey || token.header.embeddedKey == nil, "an embedded key was not refused")
            let set = JSONWebKeySet(keys.map(\.publicJWK))
            require((try? token.verified(with: set)) == nil, "a key has verified what it did not sign")
            if let key = token.header.embeddedKey { _ = try? token.verified(with: key) }
            _ = try? ClaimsSet(parsing: token.unverifiedPayload)
        }
    }

    /// What a provider signs is verified, but nothing of it is believed that is not expected.
    static func readClaims(_ bytes: [UInt8]) {
        let key = keys[0]
        guard let signer = try? TokenSigner(key, algorithm: .es256), let text = try? signer.sign(bytes),
            let token = try? CompactJWS(parsing: text, policy: JWSPolicy(algorithms: [.es256])),
            let verified = try? token.verified(with: key.publicJWK)
        else {
            // Only a token that is too long is refused.
            require(bytes.count * 4 / 3 + 200 > CompactJWS.longest, "a signed token is not verified")
            return
        }
        require(verified.payload == bytes, "the payload is not what was signed")
        let now = NumericDate(seconds: 1_700_000_000)
        var identity = IDTokenExpectations(
            issuer: "https://i.example", clientID: "c", algorithms: [.es256], nonce: .sameIfPresent("n"))
        identity.maximumTokenAge = .seconds(600)
        identity.accessToken = .init("a", requiresHash: false)
        if let claims = try? identity.check(verified, now: now) {
            require((try? claims.text(.iss)) == "https://i.example", "the issuer of an ID token is another")
            require((try? claims.text(.sub))?.isEmpty == false, "an ID token is about no user")
        }
        let access = TokenExpectations(issuer: "https://i.example", audience: "c", leeway: .seconds(300))
        if let claims = try? access.check(verified, now: now) {
            require((try? claims.text(.iss)) == "https://i.example", "the issuer of an access token is another")
        }
    }

    /// The keys of a set are the same after they were written and read again.
    static func readKeys(_ bytes: [UInt8]) {
        if let value = try? JSONValue(parsing: bytes) { _ = try? PrivateJSONWebKey(value) }
        guard let set = try? JSONWebKeySet(parsing: bytes) else { return }
        let again = try? JSONWebKeySet(parsing: set.json)
        require(
            again?.keys.map(\.thumbprint) == set.keys.map(\.thumbprint) && again?.skipped == 0,
            "the keys are not read again: \(WireText(set.json).text)")
    }

    static func readKey(_ bytes: [UInt8]) {
        if let key = try? PrivateKey(pem: SecretBytes(bytes)) {
            guard let pem = try? key.pem(), let again = try? PrivateKey(pem: pem) else {
                fail("a key is not read again")
            }
            require(again.publicKey == key.publicKey, "a key became another one")
        }
        if let key = try? PublicKey(subjectPublicKeyInfo: bytes) {
            let again = try? PublicKey(subjectPublicKeyInfo: key.subjectPublicKeyInfo)
            require(again == key, "a public key became \(String(describing: again))")
        }
    }
}
