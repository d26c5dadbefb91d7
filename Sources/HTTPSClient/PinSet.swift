import Cryptography

/// Why a list of pins cannot be used. Retrying does not help; an operator must correct the configuration.
package enum PinSetError: Error, Equatable, Sendable {
    /// The list is empty, so no chain would match. Omit the pins to pin nothing.
    case empty
    /// The entry at this index is not `sha256/` followed by the base64 of 32 bytes.
    case malformed(index: Int)
}

/// A set of public keys. A server's verified chain must contain at least one of them.
///
/// A pin is the SHA-256 digest of a certificate's SubjectPublicKeyInfo (RFC 7469 §2.4). Pins are checked in addition to
/// the chain and the host name and never replace those checks. The first pin of the list is that of the key in use; the
/// others are backups, whose use is reported. Two sets with the same pins are equal, in whatever order they were listed.
package struct PinSet: Sendable, Hashable {
    private let digests: Set<[UInt8]>
    /// The first digest of the list.
    private let current: [UInt8]

    /// Reads pins of the form `sha256/<base64 of 32 bytes>`, in canonical base64 with padding.
    package init(parsing texts: [String]) throws(PinSetError) {
        var digests: Set<[UInt8]> = []
        var first: [UInt8]?
        for (index, text) in texts.enumerated() {
            guard let digest = Self.digest(text) else { throw .malformed(index: index) }
            digests.insert(digest)
            first = first ?? digest
        }
        guard let first else { throw .empty }
        self.digests = digests
        current = first
    }

    package static func == (left: PinSet, right: PinSet) -> Bool { left.digests == right.digests }

    package func hash(into hasher: inout Hasher) { hasher.combine(digests) }

    /// How the keys of a chain fit the pins.
    enum Match {
        /// The key in use is among them.
        case current
        /// Only backup keys are among them.
        case backup
        case none
    }

    /// - Parameter digests: those of the keys of a verified chain.
    func match(_ digests: [[UInt8]]) -> Match {
        if digests.contains(current) { return .current }
        return digests.contains(where: contains) ? .backup : .none
    }

    /// Whether the key with this digest is pinned. Digests of public keys are not secret, so the comparison need not
    /// take constant time.
    package func contains(_ digest: [UInt8]) -> Bool { digests.contains(digest) }

    private static func digest(_ text: String) -> [UInt8]? {
        let prefix = "sha256/".utf8
        guard text.utf8.starts(with: prefix),
            // Compares bytes: as characters, a combining mark after the slash would be dropped together with the
            // prefix.
            let digest = Base64.decode(String(decoding: text.utf8.dropFirst(prefix.count), as: UTF8.self)),
            digest.count == SHA256.digestCount
        else { return nil }
        return digest
    }
}
