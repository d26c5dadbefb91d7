import COpenSSL

/// The curves of FIPS 186-4 on which ECDSA keys may be.
package enum EllipticCurve: Hashable, Sendable, CaseIterable {
    case p256
    case p384

    /// Octets of a coordinate, and of each half of a signature.
    package var coordinateCount: Int {
        switch self {
        case .p256: 32
        case .p384: 48
        }
    }

    /// What OpenSSL calls the curve.
    var libraryName: String {
        switch self {
        case .p256: "prime256v1"
        case .p384: "secp384r1"
        }
    }

    var algorithmIdentifier: [UInt8] {
        switch self {
        case .p256: DER.AlgorithmIdentifier.p256
        case .p384: DER.AlgorithmIdentifier.p384
        }
    }

    /// A number with leading zero octets up to the length of a coordinate.
    func coordinate(_ number: [UInt8]) -> [UInt8] {
        [UInt8](repeating: 0, count: max(0, coordinateCount - number.count)) + number
    }
}

/// What a public key consists of. Numbers are in big-endian order.
package enum PublicKeyMaterial: Hashable, Sendable {
    /// Coordinates of `EllipticCurve.coordinateCount` octets each.
    case elliptic(EllipticCurve, x: [UInt8], y: [UInt8])
    /// Numbers without leading zero octets.
    case rsa(modulus: [UInt8], exponent: [UInt8])
    /// The 32 octets of RFC 8032 §5.1.5.
    case ed25519([UInt8])

    package static let ed25519Count = 32
}

/// A public key for verifying signatures, which was checked when it was made. Any number of threads may use it at once.
package struct PublicKey: Sendable {
    /// The lengths of RSA moduli in bits. NIST SP 800-131A forbids shorter ones; a longer one would let the sender of
    /// a key choose what its verification costs.
    package static let rsaBits = 2048...4096

    package let material: PublicKeyMaterial
    let handle: KeyHandle

    /// - Throws: `.malformed` for a coordinate or key of the wrong length and for numbers with leading zero octets,
    ///   `.notOnCurve`, `.rsaSize`, `.rsaExponent`, `.weakModulus`, `.libraryFailure`.
    package init(_ material: PublicKeyMaterial) throws(KeyError) {
        switch material {
        case .elliptic(let curve, let x, let y):
            guard x.count == curve.coordinateCount, y.count == curve.coordinateCount else { throw .malformed }
        case .rsa(let modulus, let exponent): try Self.check(modulus: modulus, exponent: exponent)
        case .ed25519(let key): guard key.count == PublicKeyMaterial.ed25519Count else { throw .malformed }
        }
        guard let decoded = unsafe Self.decode(Self.information(of: material)) else {
            // The form is right, so what is left as a cause with a curve is a point beside it.
            if case .elliptic = material { throw .notOnCurve }
            throw .libraryFailure
        }
        self.material = material
        handle = unsafe KeyHandle(adopting: decoded)
    }

    /// Reads a key in the form that key stores of devices hand out: the DER of a SubjectPublicKeyInfo (RFC 5280 §4.1), with
    /// nothing behind it.
    /// - Throws: `.malformed` for other bytes, `.unsupported` for a key of another kind, and what `init(_:)` throws.
    package init(subjectPublicKeyInfo bytes: [UInt8]) throws(KeyError) {
        guard bytes.count <= Self.longestInformation, let decoded = unsafe Self.decode(bytes) else { throw .malformed }
        try self.init(try unsafe KeyHandle(adopting: decoded).publicMaterial())
    }

    /// The DER of the key's SubjectPublicKeyInfo. The point of an elliptic curve is uncompressed.
    package var subjectPublicKeyInfo: [UInt8] { Self.information(of: material) }

    /// The longest SubjectPublicKeyInfo that is read, in octets: more than that of an RSA key of 4096 bits.
    private static let longestInformation = 1024

    private static func information(of material: PublicKeyMaterial) -> [UInt8] {
        switch material {
        case .elliptic(let curve, let x, let y):
            // RFC 5480 §2.2: an uncompressed point begins with 4.
            DER.sequence(curve.algorithmIdentifier, DER.bitString([4] + x + y))
        case .rsa(let modulus, let exponent):
            DER.sequence(
                DER.AlgorithmIdentifier.rsa,
                DER.bitString(DER.sequence(DER.integer(modulus), DER.integer(exponent))))
        case .ed25519(let key): DER.sequence(DER.AlgorithmIdentifier.ed25519, DER.bitString(key))
        }
    }

    /// An EVP_PKEY that the caller must free; nil where the bytes are not exactly one key.
    @unsafe private static func decode(_ information: [UInt8]) -> OpaquePointer? {
        unsafe withCleanErrorQueue {
            unsafe information.withUnsafeBufferPointer { bytes -> OpaquePointer? in
                var next = bytes.baseAddress
                guard let key = unsafe d2i_PUBKEY(nil, &next, bytes.count) else { return nil }
                guard unsafe next == bytes.baseAddress?.advanced(by: bytes.count) else {
                    unsafe EVP_PKEY_free(key)
                    return nil
                }
                return unsafe key
            }
        }
    }

    private static func check(modulus: [UInt8], exponent: [UInt8]) throws(KeyError) {
        guard let first = modulus.first, first != 0, exponent.first != 0 else { throw .malformed }
        let bits = modulus.count * 8 - first.leadingZeroBitCount
        guard rsaBits.contains(bits) else { throw .rsaSize(bits: bits) }
        guard exponent.count <= 4 else { throw .rsaExponent }
        let exponent = exponent.reduce(UInt32(0)) { $0 << 8 | UInt32($1) }
        guard exponent >= 3, !exponent.isMultiple(of: 2) else { throw .rsaExponent }
        guard !RSAWeakness.isWeak(modulus: modulus) else { throw .weakModulus }
    }

    /// Whether `signature` was made of `message` with the private part of this key.
    ///
    /// False for a scheme that is not for keys of this kind, and for a signature of another length than the scheme's.
    /// An ECDSA signature is r ‖ s, as in RFC 7518 §3.4.
    package func verifies(_ signature: [UInt8], of message: [UInt8], by scheme: SignatureScheme) -> Bool {
        guard scheme.isFor(self), signature.count == scheme.signatureCount(with: self) else { return false }
        var signature = signature
        if case .elliptic(let curve, _, _) = material {
            signature = ECDSASignature.encoded(signature, on: curve)
        }
        return withCleanErrorQueue {
            guard let context = unsafe EVP_MD_CTX_new() else { return false }
            defer { unsafe EVP_MD_CTX_free(context) }
            return unsafe handle.withKey { key in
                var keyContext: OpaquePointer?
                // The context of the key belongs to that of the digest.
                return unsafe EVP_DigestVerifyInit(context, &keyContext, scheme.digest, nil, key) == 1
                    && scheme.configure(keyContext)
                    && EVP_DigestVerify(context, signature, signature.count, message, message.count) == 1
            }
        }
    }
}

extension PublicKey {
    /// The form of RFC 7518 §3.4 of a signature that a key store of a device has made: of that form already, or, by ECDSA,
    /// the DER of X9.62. Nil where it is no signature of `message` by this key.
    package func fixedLength(
        _ signature: [UInt8], of message: [UInt8], by scheme: SignatureScheme
    ) -> [UInt8]? {
        if verifies(signature, of: message, by: scheme) { return signature }
        guard case .elliptic(let curve, _, _) = material,
            let fixed = ECDSASignature.fixedLength(signature, on: curve), verifies(fixed, of: message, by: scheme)
        else { return nil }
        return fixed
    }
}

extension PublicKey: Hashable {
    package static func == (left: PublicKey, right: PublicKey) -> Bool { left.material == right.material }

    package func hash(into hasher: inout Hasher) { hasher.combine(material) }
}
