internal import Cryptography

/// Tells the keys of a keyring apart inside sealed records: four octets that depend on the key's id and on the key, so
/// that another key under a known id is noticed.
package struct KeyIdentity: Hashable, Sendable, CustomStringConvertible {
    static let count = 4

    let bytes: [UInt8]

    init(bytes: [UInt8]) {
        precondition(bytes.count == Self.count, "a key identity has four octets")
        self.bytes = bytes
    }

    /// Derived, so that it gives nothing of the key away.
    init(id: String, key: SecretBytes) {
        let info = Array("token-broker key identity ".utf8) + Array(id.utf8)
        bytes = HKDF.sha256(key: key, salt: [], info: info, count: Self.count).revealedBytes
    }

    /// Eight hexadecimal digits.
    package var description: String { Hex.encode(bytes) }
}
