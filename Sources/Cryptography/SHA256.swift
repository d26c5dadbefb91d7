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

    /// A digest as four words, which need no memory of their own.
    package struct Words: Hashable, Sendable {
        package fileprivate(set) var first: UInt64 = 0
        package fileprivate(set) var second: UInt64 = 0
        package fileprivate(set) var third: UInt64 = 0
        package fileprivate(set) var fourth: UInt64 = 0

        /// As `digest` gives it.
        package var bytes: [UInt8] {
            [first, second, third, fourth].flatMap { word in
                (0..<8).map { UInt8(truncatingIfNeeded: word >> UInt64(8 * $0)) }
            }
        }
    }

    /// Computes one digest after the other, without allocating for each. For one thread at a time.
    @safe package final class Engine {
        private let context: OpaquePointer

        package init() {
            guard let context = unsafe EVP_MD_CTX_new() else { preconditionFailure("no memory for a digest") }
            unsafe self.context = context
        }

        deinit { unsafe EVP_MD_CTX_free(context) }

        package func digest(_ bytes: Span<UInt8>) -> Words {
            var words = Words()
            // Nothing is put into the queue of errors by calls that succeed, and a failure ends the process.
            let isDone = unsafe bytes.withUnsafeBufferPointer { bytes in
                unsafe withUnsafeMutableBytes(of: &words) { words in
                    let output = unsafe words.baseAddress?.assumingMemoryBound(to: UInt8.self)
                    return unsafe EVP_DigestInit_ex(context, algorithm.pointer, nil) == 1
                        && EVP_DigestUpdate(context, bytes.baseAddress, bytes.count) == 1
                        && EVP_DigestFinal_ex(context, output, nil) == 1
                }
            }
            precondition(isDone, "libcrypto computed no SHA-256 digest")
            return words
        }
    }

    fileprivate static let algorithm = Algorithm()

    /// Looked up once: each implicit look-up by the older calls takes a lock that all threads share.
    ///
    /// Sendable: the object is constant, and OpenSSL permits its use by many threads at once. It lives as long as the
    /// process.
    @safe fileprivate final class Algorithm: @unchecked Sendable {
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
