import COpenSSL

/// Owns an OpenSSL key that is complete: nothing changes it any more.
@safe final class KeyHandle: Sendable {
    // `nonisolated(unsafe)`: the key is not changed after `init`. OpenSSL permits that many threads sign and verify with
    // one key at once; its own counter of references and its cache of operations have locks.
    nonisolated(unsafe) private let key: OpaquePointer

    /// Takes over `key`, an EVP_PKEY that no other code frees or changes.
    @unsafe init(adopting key: OpaquePointer) {
        unsafe self.key = key
    }

    deinit { unsafe EVP_PKEY_free(key) }

    /// Lends the EVP_PKEY to `body`, which must not change or keep it.
    @unsafe func withKey<R: ~Copyable, E: Error>(_ body: (OpaquePointer) throws(E) -> R) throws(E) -> R {
        defer { extendLifetime(self) }
        return try unsafe body(key)
    }

    /// A number among the key's parameters, in big-endian order without leading zero octets. Nil when there is none of
    /// this name.
    private func number(_ name: String) -> [UInt8]? {
        unsafe withKey { key in
            var number: OpaquePointer?
            let isThere = withCleanErrorQueue { unsafe EVP_PKEY_get_bn_param(key, name, &number) }
            guard isThere == 1, let number = unsafe number else { return nil }
            defer { unsafe BN_free(number) }
            var bytes = [UInt8](repeating: 0, count: (Int(unsafe BN_num_bits(number)) + 7) / 8)
            let count = unsafe BN_bn2bin(number, &bytes)
            return Int(count) == bytes.count ? bytes : nil
        }
    }

    /// The public part of the key.
    /// - Throws: `.unsupported` for a key of another kind, `.libraryFailure`.
    func publicMaterial() throws(KeyError) -> PublicKeyMaterial {
        if isKind("EC") {
            guard let curve = curve() else { throw .unsupported }
            guard let x = number(OSSL_PKEY_PARAM_EC_PUB_X), let y = number(OSSL_PKEY_PARAM_EC_PUB_Y) else {
                throw .libraryFailure
            }
            return .elliptic(curve, x: curve.coordinate(x), y: curve.coordinate(y))
        }
        if isKind("RSA") {
            guard let modulus = number(OSSL_PKEY_PARAM_RSA_N), let exponent = number(OSSL_PKEY_PARAM_RSA_E) else {
                throw .libraryFailure
            }
            return .rsa(modulus: modulus, exponent: exponent)
        }
        if isKind("ED25519") {
            var bytes = [UInt8](repeating: 0, count: PublicKeyMaterial.ed25519Count)
            var count = bytes.count
            let isThere = withCleanErrorQueue {
                unsafe withKey { unsafe EVP_PKEY_get_raw_public_key($0, &bytes, &count) }
            }
            guard isThere == 1, count == bytes.count else { throw .libraryFailure }
            return .ed25519(bytes)
        }
        throw .unsupported
    }

    private func isKind(_ name: String) -> Bool {
        unsafe withKey { unsafe EVP_PKEY_is_a($0, name) } == 1
    }

    /// Nil for another curve. A key that describes its curve instead of naming it must describe exactly one of ours:
    /// OpenSSL compares every parameter before it gives a name.
    private func curve() -> EllipticCurve? {
        // Names of curves have at most 80 characters.
        var name = [CChar](repeating: 0, count: 81)
        var count = 0
        let isNamed = withCleanErrorQueue {
            unsafe withKey { unsafe EVP_PKEY_get_group_name($0, &name, name.count, &count) }
        }
        guard isNamed == 1, count < name.count else { return nil }
        let bytes = name.prefix(count).map { UInt8(bitPattern: $0) }
        return EllipticCurve.allCases.first { Array($0.libraryName.utf8) == bytes }
    }
}
