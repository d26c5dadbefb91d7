import COpenSSL

/// How a signature is made of a message: the algorithms of RFC 7518 §3 and RFC 8037 §3.1 that this service uses.
package enum SignatureScheme: Hashable, Sendable, CaseIterable {
    /// ECDSA on P-256 with SHA-256 (FIPS 186-4 §6).
    case ecdsaP256
    /// ECDSA on P-384 with SHA-384.
    case ecdsaP384
    /// RSASSA-PKCS1-v1_5 with SHA-256 (RFC 8017 §8.2).
    case rsaPKCS1
    /// RSASSA-PSS with SHA-256, MGF1 with SHA-256 and a salt of 32 octets (RFC 8017 §8.1).
    case rsaPSS
    /// Ed25519 (RFC 8032 §5.1).
    case ed25519

    /// Whether the scheme is one for keys of this kind and curve.
    package func isFor(_ key: PublicKey) -> Bool {
        switch (self, key.material) {
        case (.ecdsaP256, .elliptic(.p256, _, _)), (.ecdsaP384, .elliptic(.p384, _, _)), (.rsaPKCS1, .rsa),
            (.rsaPSS, .rsa), (.ed25519, .ed25519):
            true
        default: false
        }
    }

    /// Octets of each signature with this key.
    package func signatureCount(with key: PublicKey) -> Int {
        switch key.material {
        case .elliptic(let curve, _, _): 2 * curve.coordinateCount
        case .rsa(let modulus, _): modulus.count
        case .ed25519: 64
        }
    }

    /// The hash function of the message; nil for Ed25519, which has its own within.
    @unsafe var digest: OpaquePointer? {
        switch self {
        case .ecdsaP256, .rsaPKCS1, .rsaPSS: unsafe EVP_sha256()
        case .ecdsaP384: unsafe EVP_sha384()
        case .ed25519: nil
        }
    }

    /// Sets what a context for signing or verifying does not know from the key alone. Returns false on a failure.
    @unsafe func configure(_ context: OpaquePointer?) -> Bool {
        switch self {
        case .rsaPKCS1: unsafe EVP_PKEY_CTX_set_rsa_padding(context, RSA_PKCS1_PADDING) == 1
        case .rsaPSS:
            // MGF1's hash function is that of the message unless it is set.
            unsafe EVP_PKEY_CTX_set_rsa_padding(context, RSA_PKCS1_PSS_PADDING) == 1
                && EVP_PKEY_CTX_set_rsa_pss_saltlen(context, RSA_PSS_SALTLEN_DIGEST) == 1
        case .ecdsaP256, .ecdsaP384, .ed25519: true
        }
    }
}
