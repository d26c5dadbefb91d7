package import Cryptography
package import ExternalText
package import JSON

/// The public key of a receiver of JWEs (RFC 7516): EC on P-256, or X25519 (RFC 8037), for ECDH-ES with A256GCM.
package struct EncryptionKey: Sendable {
    /// `kid` of the JWK, which each message names; nil where it has none.
    package let keyID: WireText?
    private let publicKey: AgreementPublicKey

    private static let algorithm: WireText = "ECDH-ES"
    private static let content = "A256GCM"
    private static let use: WireText = "enc"
    private static let octetKeyPair: WireText = "OKP"
    private static let curve: WireText = "X25519"

    /// Reads a JWK. Members that are not known are ignored (RFC 7517 §4).
    /// - Throws: every case of `JSONWebKeyError` but `.notJSON`; `.secretDisclosed` for a private key.
    package init(_ value: JSONValue) throws(JSONWebKeyError) {
        let members = try KeyMembers(value)
        guard !members.has(.d) else { throw .secretDisclosed }
        keyID = try members.text(.kid)
        guard keyID.map({ $0.count <= JSONWebKey.longestKeyID }) ?? true else { throw .malformed(.kid) }
        if let use = try members.text(.use), use != Self.use { throw .unsupported(.use) }
        if let algorithm = try members.text(.alg), algorithm != Self.algorithm { throw .unsupported(.alg) }
        let material: AgreementPublicKey.Material
        if try members.text(.kty) == Self.octetKeyPair {
            guard let curve = try members.text(.crv) else { throw .missing(.crv) }
            guard curve == Self.curve else { throw .unsupported(.crv) }
            material = .x25519(try members.bytes(.x, count: AgreementPublicKey.x25519Count))
        } else {
            switch try members.publicMaterial() {
            case .elliptic(.p256, let x, let y): material = .p256(x: x, y: y)
            case .elliptic: throw .unsupported(.crv)
            case .rsa, .ed25519: throw .unsupported(.kty)
            }
        }
        do throws(KeyError) {
            publicKey = try AgreementPublicKey(material)
            // Refuses the points of small order, with which there is no secret.
            _ = try AgreementPrivateKey.generate(like: publicKey).secret(with: publicKey)
        } catch .inconsistent {
            throw .malformed(.x)
        } catch {
            throw .key(error)
        }
    }

    /// A message that only the owner of the private key can read, in the compact form (RFC 7516 §7.1), with a key of its own.
    /// - Throws: `.libraryFailure`.
    package func seal(_ content: [UInt8]) throws(KeyError) -> [UInt8] {
        let ephemeral = try AgreementPrivateKey.generate(like: publicKey)
        let key = ConcatKDF.key(
            from: try ephemeral.secret(with: publicKey), algorithm: Self.content, bits: AES256GCM.keyCount * 8)
        let header = Base64URL.encode(self.header(ephemeral.publicKey))
        let nonce: [UInt8]
        let sealed: [UInt8]
        do throws(CryptographyError) {
            nonce = try SecureRandom.bytes(AES256GCM.nonceCount)
            sealed = try AES256GCM.seal(content, key: key, nonce: nonce, associatedData: Array(header.utf8))
        } catch {
            throw .libraryFailure
        }
        let text = Base64URL.encode(Array(sealed.dropLast(AES256GCM.tagCount)))
        let tag = Base64URL.encode(Array(sealed.suffix(AES256GCM.tagCount)))
        // RFC 7518 §4.6: the agreed key is the content's, so there is no encrypted key between the first two points.
        return Array("\(header)..\(Base64URL.encode(nonce)).\(text).\(tag)".utf8)
    }

    private func header(_ ephemeral: AgreementPublicKey) -> [UInt8] {
        JSONWriter.object { json in
            json.member("alg", Self.algorithm.text)
            json.member("enc", Self.content)
            json.memberIfPresent("kid", keyID?.text)
            json.name("epk")
            json.object { json in
                switch ephemeral.material {
                case .p256(let x, let y):
                    json.member("kty", "EC")
                    json.member("crv", "P-256")
                    json.member("x", Base64URL.encode(x))
                    json.member("y", Base64URL.encode(y))
                case .x25519(let bytes):
                    json.member("kty", "OKP")
                    json.member("crv", "X25519")
                    json.member("x", Base64URL.encode(bytes))
                }
            }
        }
    }
}
