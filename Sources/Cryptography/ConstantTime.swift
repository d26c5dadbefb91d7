import COpenSSL

/// Comparison whose duration does not depend on where two values differ.
package enum ConstantTime {
    /// Whether both values have the same bytes. Returns at once for different lengths, because lengths are not secret.
    package static func equal(_ left: [UInt8], _ right: [UInt8]) -> Bool {
        equal(left.span, right.span)
    }

    package static func equal(_ left: Span<UInt8>, _ right: Span<UInt8>) -> Bool {
        guard left.count == right.count else { return false }
        return unsafe left.withUnsafeBufferPointer { left in
            unsafe right.withUnsafeBufferPointer { right in
                left.isEmpty ? true : unsafe CRYPTO_memcmp(left.baseAddress, right.baseAddress, left.count) == 0
            }
        }
    }
}
