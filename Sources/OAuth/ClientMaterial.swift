package import Cryptography
package import ExternalText
import JOSE
package import JSON

/// What a client shows a provider of itself where one secret in its configuration is not all: other secrets, files, keys.
///
/// Immutable; an object, so that clients without it carry one word.
package final class ClientMaterial: Sendable {
    /// The client's secrets while they are changed: the one that is tried first, and the next one. Empty, or 1 or 2.
    package let secrets: [SecretBytes]
    /// The path of a file with the secret. It is read at each use.
    package let secretFile: WireText?
    /// The path of a file with a JWT that the platform writes (RFC 7523 §2.2). It is read at each use.
    package let assertionFile: WireText?
    /// Signs a JWT for each request.
    package let privateKey: ClientPrivateKey?
    /// PEM: the certificate that the client shows in TLS (RFC 8705), those that lead to its root, and its private key.
    package let certificate: SecretBytes?
    /// The JWT for one request; nil but in a client that `showing` has made.
    let assertion: WireText?

    /// - Returns: nil where there is nothing.
    package convenience init?(
        secrets: [SecretBytes] = [], secretFile: WireText? = nil, assertionFile: WireText? = nil,
        privateKey: ClientPrivateKey? = nil, certificate: SecretBytes? = nil
    ) {
        if secrets.isEmpty, secretFile == nil, assertionFile == nil, privateKey == nil, certificate == nil {
            return nil
        }
        self.init(
            all: secrets, secretFile: secretFile, assertionFile: assertionFile, privateKey: privateKey,
            certificate: certificate, assertion: nil)
    }

    private init(
        all secrets: [SecretBytes], secretFile: WireText?, assertionFile: WireText?, privateKey: ClientPrivateKey?,
        certificate: SecretBytes?, assertion: WireText?
    ) {
        self.secrets = secrets
        self.secretFile = secretFile
        self.assertionFile = assertionFile
        self.privateKey = privateKey
        self.certificate = certificate
        self.assertion = assertion
    }

    /// The material of a client, which may have none, with a JWT.
    static func asserting(_ assertion: WireText, beside material: ClientMaterial?) -> ClientMaterial {
        ClientMaterial(
            all: material?.secrets ?? [], secretFile: material?.secretFile, assertionFile: material?.assertionFile,
            privateKey: material?.privateKey, certificate: material?.certificate, assertion: assertion)
    }

    /// SHA-256 of what the provider tells the client by, beside `secret`. A file counts by its path, so that what a platform
    /// writes anew is the same client's.
    func digest(with secret: SecretBytes?) -> [UInt8] {
        var parts: [[UInt8]] = []
        func add(_ label: String, _ bytes: [UInt8]?) {
            if let bytes { parts.append(Array("\(label):\(bytes.count):".utf8) + bytes) }
        }
        add("client_secret_file", secretFile.map { Array($0.utf8) })
        add("client_assertion_file", assertionFile.map { Array($0.utf8) })
        add("private_key", privateKey?.text.revealedBytes)
        add("client_certificate", certificate?.revealedBytes)
        // A client whose secrets are changed is the client of the first one.
        if parts.isEmpty, let secret { return secret.withRevealed { SHA256.digest($0) } }
        add("client_secret", secret?.revealedBytes)
        return SHA256.digest(Array(parts.joined()))
    }
}

extension ClientMaterial: Equatable {
    package static func == (left: ClientMaterial, right: ClientMaterial) -> Bool {
        left === right
            || left.secrets == right.secrets && left.secretFile == right.secretFile
                && left.assertionFile == right.assertionFile && left.privateKey == right.privateKey
                && left.certificate == right.certificate && left.assertion == right.assertion
    }
}

/// The key with which a client signs the JWTs that show who it is (`private_key_jwt`, OpenID Connect Core §9).
package struct ClientPrivateKey: Sendable, Equatable {
    /// The JSON text of a JWK, or PEM.
    package let text: SecretBytes
    let signer: TokenSigner

    /// The longest JSON text of a JWK, in bytes; PEM has `PrivateKey.longestPEM`.
    private static let longestJWK = 16_384

    /// Why a value is no such key, as the end of a sentence.
    package struct Fault: Error {
        package let detail: String
    }

    /// Reads a JWK, or a text in the form of PEM.
    package init(_ value: JSONValue) throws(Fault) {
        let key: PrivateJSONWebKey
        switch value {
        case .object:
            var writer = JSONWriter()
            writer.value(value)
            guard writer.bytes.count <= Self.longestJWK else {
                throw Fault(detail: "must not be longer than \(Self.longestJWK) bytes")
            }
            text = SecretBytes(writer.bytes)
            do throws(JSONWebKeyError) {
                key = try PrivateJSONWebKey(value)
            } catch {
                throw Fault(detail: "is not a private key that can be used: \(error.description)")
            }
        case .string(let pem):
            text = SecretBytes(utf8: pem.text)
            do throws(KeyError) {
                key = PrivateJSONWebKey(try PrivateKey(pem: text))
            } catch {
                throw Fault(detail: "is not a private key that can be used: \(error.description)")
            }
        default: throw Fault(detail: "must be a JWK, or a text in the form of PEM")
        }
        // The JWK's own algorithm, else the first one that a key of its kind signs by.
        let signers = SignatureAlgorithm.allCases.lazy.compactMap { try? TokenSigner(key, algorithm: $0) }
        guard let signer = signers.first else {
            throw Fault(
                detail: "has an alg that is not one of "
                    + SignatureAlgorithm.allCases.map(\.rawValue).joined(separator: ", ") + ", or not of its kty")
        }
        self.signer = signer
    }

    /// The JWK, or the text.
    package var json: JSONValue {
        let bytes = text.revealedBytes
        if bytes.first == UInt8(ascii: "{"), let jwk = try? JSONValue(parsing: bytes) { return jwk }
        return .string(WireText(text.revealedText))
    }

    package static func == (left: ClientPrivateKey, right: ClientPrivateKey) -> Bool { left.text == right.text }
}
