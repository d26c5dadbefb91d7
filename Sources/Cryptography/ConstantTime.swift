internal import COpenSSL

/// Comparison whose duration tells nothing about where two values differ.
package enum ConstantTime {
    /// Whether both are the same bytes. Values of different lengths are told apart at once: lengths are not secret.
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
