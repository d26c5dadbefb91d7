internal import Cryptography

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
        let prefix = "sha256/".utf8
        guard text.utf8.starts(with: prefix),
            // By octets: as characters, a combining mark after the slash would go with it unseen.
            let digest = Base64.decode(String(decoding: text.utf8.dropFirst(prefix.count), as: UTF8.self)),
            digest.count == SHA256.digestCount
        else { return nil }
        return digest
    }
}
