import COpenSSL

/// A public key for agreeing on a secret: on P-256 (NIST SP 800-56A) or X25519 (RFC 7748).
package struct AgreementPublicKey: Sendable {
    package enum Material: Hashable, Sendable {
        /// Coordinates of 32 octets each, in big-endian order.
        case p256(x: [UInt8], y: [UInt8])
        /// The 32 octets of RFC 7748 §6.1.
        case x25519([UInt8])
    }

    package static let x25519Count = 32

    package let material: Material
    fileprivate let handle: KeyHandle

    /// - Throws: `.malformed` for another length, `.notOnCurve`, `.libraryFailure`.
    package init(_ material: Material) throws(KeyError) {
        self.material = material
        switch material {
        case .p256(let x, let y): handle = try PublicKey(.elliptic(.p256, x: x, y: y)).handle
        case .x25519(let bytes):
            guard bytes.count == Self.x25519Count else { throw .malformed }
            let key = unsafe withCleanErrorQueue {
                unsafe EVP_PKEY_new_raw_public_key_ex(nil, "X25519", nil, bytes, bytes.count)
            }
            guard let key = unsafe key else { throw .libraryFailure }
            handle = unsafe KeyHandle(adopting: key)
        }
    }
}

/// A private key for agreeing on a secret, with its public part. Printing it shows nothing of the secret.
package struct AgreementPrivateKey: Sendable {
    package let publicKey: AgreementPublicKey
    private let handle: KeyHandle

    /// A new key of the same kind as another one.
    /// - Throws: `.libraryFailure`.
    package static func generate(like other: AgreementPublicKey) throws(KeyError) -> AgreementPrivateKey {
        switch other.material {
        case .p256:
            let key = unsafe withCleanErrorQueue { unsafe copenssl_generate_elliptic(EllipticCurve.p256.libraryName) }
            guard let key = unsafe key else { throw .libraryFailure }
            let handle = unsafe KeyHandle(adopting: key)
            guard case .elliptic(.p256, let x, let y) = try handle.publicMaterial() else { throw .libraryFailure }
            return AgreementPrivateKey(publicKey: try AgreementPublicKey(.p256(x: x, y: y)), handle: handle)
        case .x25519:
            guard let number = try? SecureRandom.secret(AgreementPublicKey.x25519Count) else { throw .libraryFailure }
            return try AgreementPrivateKey(x25519: number)
        }
    }

    private init(publicKey: AgreementPublicKey, handle: KeyHandle) {
        self.publicKey = publicKey
        self.handle = handle
    }

    /// - Parameter number: the number that the point of X25519 is made of, 32 octets (RFC 7748 §5).
    /// - Throws: `.malformed`, `.libraryFailure`.
    package init(x25519 number: SecretBytes) throws(KeyError) {
        guard number.count == AgreementPublicKey.x25519Count else { throw .malformed }
        let key = unsafe withCleanErrorQueue {
            unsafe number.withRevealed { number in
                unsafe number.withUnsafeBufferPointer { number in
                    unsafe EVP_PKEY_new_raw_private_key_ex(nil, "X25519", nil, number.baseAddress, number.count)
                }
            }
        }
        guard let key = unsafe key else { throw .libraryFailure }
        let handle = unsafe KeyHandle(adopting: key)
        var bytes = [UInt8](repeating: 0, count: AgreementPublicKey.x25519Count)
        var count = bytes.count
        let isThere = withCleanErrorQueue {
            unsafe handle.withKey { unsafe EVP_PKEY_get_raw_public_key($0, &bytes, &count) }
        }
        guard isThere == 1, count == bytes.count else { throw .libraryFailure }
        publicKey = try AgreementPublicKey(.x25519(bytes))
        self.handle = handle
    }

    /// - Parameter number: the number that the point of P-256 is a multiple of, 32 octets.
    /// - Throws: `.malformed`, `.notOnCurve`, `.inconsistent`, `.libraryFailure`.
    package init(p256 number: SecretBytes, x: [UInt8], y: [UInt8]) throws(KeyError) {
        publicKey = try AgreementPublicKey(.p256(x: x, y: y))
        handle = try PrivateKey(.elliptic(.p256, x: x, y: y), secret: .elliptic(number)).handle
    }

    /// The secret that both sides compute: the x coordinate of the common point, or the octets of RFC 7748 §6.1, 32 octets.
    /// - Throws: `.unsupported` for a key of another kind; `.inconsistent` where the other key gives a secret that everyone knows
    ///   (RFC 7748 §6.1, RFC 8037 §3.2).
    package func secret(with other: AgreementPublicKey) throws(KeyError) -> SecretBytes {
        switch (publicKey.material, other.material) {
        case (.p256, .p256), (.x25519, .x25519): break
        default: throw .unsupported
        }
        var isDone = false
        let secret = unsafe SecretBytes(count: Self.secretCount) { output in
            isDone = withCleanErrorQueue {
                unsafe self.handle.withKey { own in
                    unsafe other.handle.withKey { other in
                        guard let context = unsafe EVP_PKEY_CTX_new(own, nil) else { return false }
                        defer { unsafe EVP_PKEY_CTX_free(context) }
                        var count = Self.secretCount
                        return unsafe EVP_PKEY_derive_init(context) == 1
                            && EVP_PKEY_derive_set_peer(context, other) == 1
                            && EVP_PKEY_derive(context, output.baseAddress, &count) == 1 && count == Self.secretCount
                    }
                }
            }
        }
        guard isDone else { throw .inconsistent }
        return secret
    }

    private static let secretCount = 32
}

extension AgreementPrivateKey: CustomStringConvertible, CustomDebugStringConvertible, CustomReflectable {
    package var description: String { "<private key>" }
    package var debugDescription: String { description }
    package var customMirror: Mirror { Mirror(self, children: []) }
}
