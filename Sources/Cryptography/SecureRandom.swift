import COpenSSL

/// Unpredictable bytes from OpenSSL's generator (NIST SP 800-90A, seeded by getrandom(2)).
package enum SecureRandom {
    /// - Throws: `.randomnessUnavailable`. There is no second source, because the use of a weaker one would go
    ///   unnoticed.
    package static func bytes(_ count: Int) throws(CryptographyError) -> [UInt8] {
        guard count >= 0, let length = CInt(exactly: count) else { throw .invalidLength }
        var bytes = [UInt8](repeating: 0, count: count)
        let isFilled = withCleanErrorQueue {
            unsafe bytes.withUnsafeMutableBufferPointer { buffer in
                length == 0 ? true : unsafe RAND_bytes(buffer.baseAddress, length) == 1
            }
        }
        guard isFilled else { throw .randomnessUnavailable }
        return bytes
    }

    /// Like `bytes`, for a value that must stay secret.
    /// - Throws: `.randomnessUnavailable`.
    package static func secret(_ count: Int) throws(CryptographyError) -> SecretBytes {
        guard count >= 0, let length = CInt(exactly: count) else { throw .invalidLength }
        return unsafe try SecretBytes(count: count) { buffer throws(CryptographyError) in
            let isFilled = withCleanErrorQueue {
                length == 0 ? true : unsafe RAND_priv_bytes(buffer.baseAddress, length) == 1
            }
            guard isFilled else { throw .randomnessUnavailable }
        }
    }
}
