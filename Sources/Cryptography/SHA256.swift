internal import COpenSSL

/// FIPS 180-4 §6.2.
package enum SHA256 {
    /// Octets in a digest.
    package static let digestCount = 32

    package static func digest(_ bytes: [UInt8]) -> [UInt8] {
        digest(bytes.span)
    }

    package static func digest(_ bytes: Span<UInt8>) -> [UInt8] {
        var digest = [UInt8](repeating: 0, count: digestCount)
        let isDone = withCleanErrorQueue {
            unsafe digest.withUnsafeMutableBufferPointer { digest in
                unsafe bytes.withUnsafeBufferPointer { bytes in
                    unsafe EVP_Digest(bytes.baseAddress, bytes.count, digest.baseAddress, nil, algorithm.pointer, nil)
                }
            }
        }
        // Like any want of memory in Swift, this ends the process: no caller could go on without a digest.
        precondition(isDone == 1, "libcrypto computed no SHA-256 digest")
        return digest
    }

    private static let algorithm = Algorithm()

    /// Looked up once: each implicit look-up by the older calls takes a lock that all threads share.
    ///
    /// Sendable: the object is constant, and OpenSSL permits its use by many threads at once. It lives as long as the
    /// process.
    @safe private final class Algorithm: @unchecked Sendable {
        let pointer: OpaquePointer

        init() {
            guard let fetched = unsafe EVP_MD_fetch(nil, "SHA256", nil) else {
                preconditionFailure("this libcrypto offers no SHA-256")
            }
            unsafe pointer = fetched
        }

        deinit { unsafe EVP_MD_free(pointer) }
    }
}
