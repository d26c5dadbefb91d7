/// Why a list of pins cannot be used. Retrying does not help; whoever wrote the configuration must mend it.
package enum PinSetError: Error, Equatable, Sendable {
    /// An empty list would match nothing; leave the pins out to pin nothing.
    case empty
    /// The entry at this index is not `sha256/` and the base64 of 32 bytes.
    case malformed(index: Int)
}

/// The public keys of which at least one must occur in a server's verified chain.
///
/// A pin is the SHA-256 digest of a certificate's SubjectPublicKeyInfo (RFC 7469 §2.4). Pins add to the verification
/// of chain and host name and never replace it. A set holds the current keys and their backups.
package struct PinSet: Sendable, Hashable {
    private let digests: Set<[UInt8]>

    /// Reads pins of the form `sha256/<base64 of 32 bytes>`, in canonical base64 with padding.
    package init(parsing texts: [String]) throws(PinSetError) {
        if texts.isEmpty { throw .empty }
        var digests: Set<[UInt8]> = []
        for (index, text) in texts.enumerated() {
            guard let digest = Self.digest(text) else { throw .malformed(index: index) }
            digests.insert(digest)
        }
        self.digests = digests
    }

    /// Whether the key with this digest is pinned. Digests of public keys are no secrets, so time may depend on them.
    package func contains(_ digest: [UInt8]) -> Bool { digests.contains(digest) }

    private static func digest(_ text: String) -> [UInt8]? {
        let prefix = "sha256/"
        guard text.utf8.starts(with: prefix.utf8) else { return nil }
        let encoded = Array(text.utf8.dropFirst(prefix.utf8.count))
        guard encoded.count == 44, encoded[43] == UInt8(ascii: "=") else { return nil }
        var digest: [UInt8] = []
        digest.reserveCapacity(32)
        var buffer: UInt32 = 0
        var bits = 0
        for character in encoded.dropLast() {
            guard let value = sextet(character) else { return nil }
            buffer = buffer << 6 | value
            bits += 6
            if bits >= 8 {
                bits -= 8
                digest.append(UInt8(truncatingIfNeeded: buffer >> UInt32(bits)))
                buffer &= (1 << UInt32(bits)) - 1
            }
        }
        // 43 characters carry 258 bits; a canonical encoder leaves the last two at zero (RFC 4648 §3.5).
        return buffer == 0 ? digest : nil
    }

    private static func sextet(_ character: UInt8) -> UInt32? {
        switch character {
        case UInt8(ascii: "A")...UInt8(ascii: "Z"): UInt32(character - UInt8(ascii: "A"))
        case UInt8(ascii: "a")...UInt8(ascii: "z"): UInt32(character - UInt8(ascii: "a")) + 26
        case UInt8(ascii: "0")...UInt8(ascii: "9"): UInt32(character - UInt8(ascii: "0")) + 52
        case UInt8(ascii: "+"): 62
        case UInt8(ascii: "/"): 63
        default: nil
        }
    }
}
