/// Reads a bearer token (RFC 6750 §2.1).
package enum BearerToken {
    /// The longest token, in bytes, unless the caller says otherwise.
    package static let longest = 512

    /// The token in the value of an Authorization field: one word after the scheme `Bearer`, which is compared without
    /// case. Nil for any other value.
    /// - Parameter longest: the longest token, in bytes.
    package static func find(
        _ bytes: Span<UInt8>, _ value: Range<Int>, longest: Int = BearerToken.longest
    ) -> Range<Int>? {
        guard value.count > 7, ByteRun.has("bearer ", bytes, at: value.lowerBound) else { return nil }
        var start = value.lowerBound + 7
        while start < value.upperBound, bytes[start] == UInt8(ascii: " ") { start += 1 }
        guard (1...longest).contains(value.upperBound - start), ByteRun.isVisible(bytes, start..<value.upperBound)
        else { return nil }
        return start..<value.upperBound
    }
}
