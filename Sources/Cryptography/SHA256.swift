import COpenSSL

/// The hash function of FIPS 180-4 §6.2.
package enum SHA256 {
    /// Octets in a digest.
    package static let digestCount = 32

    /// A digest as four words, so that a copy allocates nothing.
    package struct Words: Hashable, Sendable {
        package private(set) var first: UInt64 = 0
        package private(set) var second: UInt64 = 0
        package private(set) var third: UInt64 = 0
        package private(set) var fourth: UInt64 = 0

        package init() {}

        /// - Parameter vector: that of a digest.
        package init(_ vector: SIMD4<UInt64>) {
            (first, second, third, fourth) = (vector.x, vector.y, vector.z, vector.w)
        }

        /// The four words, for code that does not know what they are of.
        package var vector: SIMD4<UInt64> { SIMD4(first, second, third, fourth) }

        /// Whether the digests are the same, in a time that does not depend on where they differ.
        package func isEqual(_ other: Words) -> Bool {
            (first ^ other.first) | (second ^ other.second) | (third ^ other.third) | (fourth ^ other.fourth) == 0
        }

        /// The octets of the digest in their order.
        package var bytes: [UInt8] { unsafe withUnsafeBytes(of: self) { unsafe Array($0) } }
    }

    package static func digest(_ bytes: [UInt8]) -> [UInt8] {
        digest(bytes.span)
    }

    package static func digest(_ bytes: Span<UInt8>) -> [UInt8] { words(bytes).bytes }

    /// The digest without an allocation, because every request with an API key needs one.
    package static func words(_ bytes: Span<UInt8>) -> Words {
        var words = Words()
        // A call that succeeds adds nothing to OpenSSL's error queue.
        let isDone = unsafe bytes.withUnsafeBufferPointer { bytes in
            unsafe withUnsafeMutableBytes(of: &words) { words in
                unsafe copenssl_sha256(
                    bytes.baseAddress, bytes.count, words.baseAddress?.assumingMemoryBound(to: UInt8.self))
            }
        }
        // Ends the process, as a lack of memory does everywhere in Swift: no caller could go on without a digest.
        precondition(isDone == 1, "libcrypto computed no SHA-256 digest")
        return words
    }
}
