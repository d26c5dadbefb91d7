import COpenSSL

/// The key derivation of RFC 5869: many independent keys from one.
package enum HKDF {
    /// Derives a key by HKDF with SHA-256.
    /// - Parameters:
    ///   - key: the key to derive from, 1 octet or more.
    ///   - salt: may be empty, which RFC 5869 §2.2 makes the same as 32 zero octets.
    ///   - info: names the purpose, so that two purposes get different keys; 0 to 1024 octets.
    ///   - count: length of the derived key in octets, 1 to 8160 (RFC 5869 §2.3: at most 255 digests).
    package static func sha256(key: SecretBytes, salt: [UInt8], info: [UInt8], count: Int) -> SecretBytes {
        precondition(!key.isEmpty, "HKDF needs a key")
        precondition(info.count <= 1024, "HKDF info of \(info.count) octets")
        precondition((1...255 * SHA256.digestCount).contains(count), "HKDF output of \(count) octets")
        return unsafe SecretBytes(count: count) { output in
            let isDone = withCleanErrorQueue {
                key.withRevealed { key in
                    unsafe key.withUnsafeBufferPointer { key in
                        unsafe copenssl_hkdf_sha256(
                            algorithm, key.baseAddress, key.count, salt, salt.count, info, info.count,
                            output.baseAddress, output.count)
                    }
                }
            }
            // Only a lack of memory is left as a cause, which ends the process as it does everywhere in Swift.
            precondition(isDone == 1, "libcrypto derived no key")
        }
    }

    // `nonisolated(unsafe)`: the object is constant, OpenSSL permits its use by many threads at once, and it is never
    // freed. It is fetched once, because each fetch by name takes a lock that all threads share.
    nonisolated(unsafe) private static let algorithm: OpaquePointer = {
        guard let fetched = unsafe EVP_KDF_fetch(nil, OSSL_KDF_NAME_HKDF, nil) else {
            preconditionFailure("this libcrypto offers no HKDF")
        }
        return unsafe fetched
    }()
}
