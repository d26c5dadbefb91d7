import COpenSSL

/// The secret numbers of a private key, in big-endian order.
package enum PrivateKeyMaterial: Sendable {
    /// The number that the point is a multiple of.
    case elliptic(SecretBytes)
    /// RFC 8017 §3.2: the private exponent, two primes, their exponents and the coefficient.
    case rsa(
        exponent: SecretBytes, prime1: SecretBytes, prime2: SecretBytes, exponent1: SecretBytes, exponent2: SecretBytes,
        coefficient: SecretBytes)
    /// The 32 octets of RFC 8032 §5.1.5.
    case ed25519(SecretBytes)
}

/// A private key for signing, with its public part. Any number of threads may use it at once. Printing it shows nothing
/// of the secret.
package struct PrivateKey: Sendable {
    /// The longest text that is read as a key, in octets: several times that of an RSA key of 4096 bits.
    package static let longestPEM = 16_384

    /// The kinds of keys that can be made.
    package enum Kind: Hashable, Sendable {
        case elliptic(EllipticCurve)
        /// - Parameter bits: in `PublicKey.rsaBits`.
        case rsa(bits: Int)
        case ed25519
    }

    package let publicKey: PublicKey
    let handle: KeyHandle

    /// Makes a new key. An RSA key takes from a tenth of a second to several seconds, so it is not for an event loop.
    /// - Throws: `.rsaSize`, `.libraryFailure`.
    package static func generate(_ kind: Kind) throws(KeyError) -> PrivateKey {
        if case .rsa(let bits) = kind, !PublicKey.rsaBits.contains(bits) { throw .rsaSize(bits: bits) }
        let generated = unsafe withCleanErrorQueue {
            switch kind {
            case .elliptic(let curve): unsafe copenssl_generate_elliptic(curve.libraryName)
            case .rsa(let bits): unsafe copenssl_generate_rsa(bits)
            case .ed25519: unsafe copenssl_generate_ed25519()
            }
        }
        guard let generated = unsafe generated else { throw .libraryFailure }
        return try PrivateKey(unsafe KeyHandle(adopting: generated))
    }

    /// Reads a PEM text without a passphrase: PKCS #8 ("PRIVATE KEY"), and the older forms "EC PRIVATE KEY" (RFC 5915)
    /// and "RSA PRIVATE KEY" (RFC 8017 §A.1.2), in which some providers hand out keys.
    /// - Throws: every case of `KeyError`.
    package init(pem: SecretBytes) throws(KeyError) {
        guard !pem.isEmpty, pem.count <= Self.longestPEM else { throw .malformed }
        if Self.isEncrypted(pem) { throw .encrypted }
        let decoded = unsafe withCleanErrorQueue {
            unsafe pem.withRevealed { text in
                unsafe text.withUnsafeBufferPointer { text -> OpaquePointer? in
                    guard let input = unsafe BIO_new_mem_buf(text.baseAddress, CInt(text.count)) else { return nil }
                    defer { unsafe BIO_free(input) }
                    // Without a function of ours, OpenSSL would ask for a passphrase at the terminal.
                    return unsafe PEM_read_bio_PrivateKey(input, nil, { _, _, _, _ in -1 }, nil)
                }
            }
        }
        guard let decoded = unsafe decoded else { throw .malformed }
        try self.init(unsafe KeyHandle(adopting: decoded))
    }

    /// - Throws: every case of `KeyError` but `.encrypted`; `.inconsistent` when the secret does not belong to `material`.
    package init(_ material: PublicKeyMaterial, secret: PrivateKeyMaterial) throws(KeyError) {
        // PrivateKeyInfo (RFC 5208 §5): a version, the algorithm and the key.
        let version = DER.integer([0])
        let information: [UInt8]
        switch (material, secret) {
        case (.elliptic(let curve, _, _), .elliptic(let number)):
            guard number.count == curve.coordinateCount else { throw .malformed }
            let key = DER.sequence(DER.integer([1]), DER.octetString(number.revealedBytes))
            information = DER.sequence(version, curve.algorithmIdentifier, DER.octetString(key))
        case (
            .rsa(let modulus, let publicExponent),
            .rsa(let exponent, let prime1, let prime2, let exponent1, let exponent2, let coefficient)
        ):
            let secrets = [exponent, prime1, prime2, exponent1, exponent2, coefficient]
            guard secrets.allSatisfy({ (1...modulus.count).contains($0.count) }) else { throw .malformed }
            let key = DER.sequence(
                version, DER.integer(modulus), DER.integer(publicExponent),
                secrets.flatMap { DER.integer($0.revealedBytes) })
            information = DER.sequence(version, DER.AlgorithmIdentifier.rsa, DER.octetString(key))
        case (.ed25519, .ed25519(let seed)):
            guard seed.count == PublicKeyMaterial.ed25519Count else { throw .malformed }
            information = DER.sequence(
                version, DER.AlgorithmIdentifier.ed25519, DER.octetString(DER.octetString(seed.revealedBytes)))
        default: throw .inconsistent
        }
        // Refuses sizes and exponents before OpenSSL computes with them.
        _ = try PublicKey(material)
        let decoded = unsafe withCleanErrorQueue {
            unsafe information.withUnsafeBufferPointer { bytes -> OpaquePointer? in
                var next = bytes.baseAddress
                return unsafe d2i_AutoPrivateKey(nil, &next, bytes.count)
            }
        }
        guard let decoded = unsafe decoded else { throw .malformed }
        try self.init(unsafe KeyHandle(adopting: decoded))
        // Of a secret number OpenSSL computes the point, and of a seed the key.
        guard publicKey.material == material else { throw .inconsistent }
    }

    /// - Throws: `.inconsistent` when the public part does not verify what the private part signs.
    private init(_ handle: KeyHandle) throws(KeyError) {
        publicKey = try PublicKey(try handle.publicMaterial())
        self.handle = handle
        let scheme = SignatureScheme.allCases.first { $0.isFor(publicKey) }
        guard let scheme else { throw .unsupported }
        let probe = Array("a key is used only if its two parts belong together".utf8)
        let signature: [UInt8]
        do throws(KeyError) {
            signature = try self.signature(of: probe, by: scheme)
        } catch {
            // Impossible numbers, of which OpenSSL makes no signature.
            throw .inconsistent
        }
        guard publicKey.verifies(signature, of: probe, by: scheme) else { throw .inconsistent }
    }

    /// A signature of `message`. That of ECDSA is r ‖ s, as in RFC 7518 §3.4.
    /// - Throws: `.unsupported` for a scheme that is not for keys of this kind, `.libraryFailure`.
    package func signature(of message: [UInt8], by scheme: SignatureScheme) throws(KeyError) -> [UInt8] {
        guard scheme.isFor(publicKey) else { throw .unsupported }
        // OpenSSL's DER of an ECDSA signature has at most 9 octets beside r and s.
        var signature = [UInt8](repeating: 0, count: scheme.signatureCount(with: publicKey) + 16)
        var count = signature.count
        let isDone = withCleanErrorQueue {
            guard let context = unsafe EVP_MD_CTX_new() else { return false }
            defer { unsafe EVP_MD_CTX_free(context) }
            return unsafe handle.withKey { key in
                var keyContext: OpaquePointer?
                return unsafe EVP_DigestSignInit(context, &keyContext, scheme.digest, nil, key) == 1
                    && scheme.configure(keyContext)
                    && EVP_DigestSign(context, &signature, &count, message, message.count) == 1
            }
        }
        guard isDone, count <= signature.count else { throw .libraryFailure }
        signature.removeLast(signature.count - count)
        guard case .elliptic(let curve, _, _) = publicKey.material else { return signature }
        guard let fixed = ECDSASignature.fixedLength(signature, on: curve) else { throw .libraryFailure }
        return fixed
    }

    /// The key as a PEM text in the form of PKCS #8, without a passphrase.
    /// - Throws: `.libraryFailure`.
    package func pem() throws(KeyError) -> SecretBytes {
        let text = withCleanErrorQueue { () -> SecretBytes? in
            guard let output = unsafe BIO_new(BIO_s_mem()) else { return nil }
            // Overwrites the text as well.
            defer { unsafe BIO_free(output) }
            let isWritten = unsafe handle.withKey {
                unsafe PEM_write_bio_PKCS8PrivateKey(output, $0, nil, nil, 0, nil, nil)
            }
            var start: UnsafeMutablePointer<UInt8>?
            let count = unsafe BIO_ctrl(output, BIO_CTRL_INFO, 0, &start)
            guard isWritten == 1, count > 0, let start = unsafe start else { return nil }
            return unsafe SecretBytes(count: count) {
                unsafe $0.baseAddress?.update(from: start, count: count)
            }
        }
        guard let text else { throw .libraryFailure }
        return text
    }

    /// Whether a PEM text says that it needs a passphrase, in the form of PKCS #8 or of OpenSSL before it.
    private static func isEncrypted(_ pem: SecretBytes) -> Bool {
        pem.withRevealed { text in
            ["BEGIN ENCRYPTED PRIVATE KEY", "Proc-Type: 4,ENCRYPTED"].contains { mark in
                let mark = Array(mark.utf8)
                return text.indices.dropLast(mark.count - 1).contains { start in
                    mark.indices.allSatisfy { text[start + $0] == mark[$0] }
                }
            }
        }
    }
}

extension PrivateKey: CustomStringConvertible, CustomDebugStringConvertible, CustomReflectable {
    package var description: String { "<private key>" }
    package var debugDescription: String { description }
    package var customMirror: Mirror { Mirror(self, children: []) }
}
