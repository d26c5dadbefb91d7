package import Cryptography
package import ExternalText
package import JSON

/// A public key in the form of a JWK (RFC 7517), with what its owner says about its use.
package struct JSONWebKey: Sendable {
    /// The longest `kid`, in bytes.
    package static let longestKeyID = 1024

    package let publicKey: PublicKey
    /// `kid`, which names the key within a set.
    package let keyID: WireText?
    /// `alg`. The key is for no other algorithm, and for none at all when this is none of `SignatureAlgorithm`.
    package let algorithm: WireText?
    /// Whether `use` and `key_ops`, where they are given, say that the key is for verifying signatures.
    package let isForSignatures: Bool
    /// The SHA-256 digest of the key's required members (RFC 7638), 32 octets. Two keys are the same key exactly if their
    /// thumbprints are equal, whatever their other members say.
    package let thumbprint: [UInt8]

    /// A key of this process's own.
    package init(_ publicKey: PublicKey, keyID: WireText? = nil, algorithm: SignatureAlgorithm? = nil) {
        self.init(publicKey, KeyDescription(keyID: keyID, algorithm: algorithm.map { WireText($0.rawValue) }))
    }

    init(_ publicKey: PublicKey, _ description: KeyDescription) {
        self.publicKey = publicKey
        keyID = description.keyID
        algorithm = description.algorithm
        isForSignatures = description.isForSignatures
        thumbprint = SHA256.digest(JSONWriter.object { Self.writeRequiredMembers(of: publicKey, to: &$0) })
    }

    /// Reads a JWK. Members that are not known are ignored (RFC 7517 §4).
    /// - Throws: every case of `JSONWebKeyError`.
    package init(parsing bytes: [UInt8]) throws(JSONWebKeyError) {
        let value: JSONValue
        do throws(JSONValue.Fault) {
            value = try JSONValue(parsing: bytes)
        } catch {
            throw .notJSON(error)
        }
        try self.init(value)
    }

    /// Reads a JWK. Members that are not known are ignored (RFC 7517 §4).
    /// - Throws: every case of `JSONWebKeyError` but `.notJSON`.
    package init(_ value: JSONValue) throws(JSONWebKeyError) {
        let members = try KeyMembers(value)
        let description = try KeyDescription(members, operation: "verify")
        let material = try members.publicMaterial()
        // RFC 7518 §6.2.2 and §6.3.2, RFC 8037 §2: with `d`, a key of each type is a private one.
        guard !members.has(.d) else { throw .secretDisclosed }
        do throws(KeyError) {
            self.init(try PublicKey(material), description)
        } catch {
            throw .key(error)
        }
    }

    /// Why a signature by `algorithm` must not be verified with this key; nil when it may.
    package func misfit(for algorithm: SignatureAlgorithm) -> JWSError.Misfit? {
        if !algorithm.scheme.isFor(publicKey) { return .type }
        if !isForSignatures { return .use }
        if let own = self.algorithm, SignatureAlgorithm(named: own) != algorithm { return .algorithm }
        return nil
    }

    /// The key as a JWK: its required members, then `kid`, `use` and `alg` as far as they are known.
    package var json: [UInt8] { JSONWriter.object { write(to: &$0) } }

    /// Writes the members of `json`.
    package func write(to writer: inout JSONWriter) {
        Self.writeRequiredMembers(of: publicKey, to: &writer)
        writer.memberIfPresent("kid", keyID?.text)
        if isForSignatures { writer.member("use", "sig") }
        writer.memberIfPresent("alg", algorithm?.text)
    }

    /// Writes the members that RFC 7638 §3.2 and RFC 8037 §2 name, in the order of their names.
    private static func writeRequiredMembers(of key: PublicKey, to writer: inout JSONWriter) {
        switch key.material {
        case .elliptic(let curve, let x, let y):
            writer.member("crv", KeyMembers.name(of: curve))
            writer.member("kty", "EC")
            writer.member("x", Base64URL.encode(x))
            writer.member("y", Base64URL.encode(y))
        case .rsa(let modulus, let exponent):
            writer.member("e", Base64URL.encode(exponent))
            writer.member("kty", "RSA")
            writer.member("n", Base64URL.encode(modulus))
        case .ed25519(let bytes):
            writer.member("crv", "Ed25519")
            writer.member("kty", "OKP")
            writer.member("x", Base64URL.encode(bytes))
        }
    }
}
