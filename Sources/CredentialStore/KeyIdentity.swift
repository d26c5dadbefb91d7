import Cryptography

/// Identifies a key of the keyring in sealed records: four octets that depend on the key's id and on the key, so that a
/// different key with a known id is noticed.
package struct KeyIdentity: Hashable, Sendable, CustomStringConvertible {
    static let count = 4

    let bytes: [UInt8]

    init(bytes: [UInt8]) {
        precondition(bytes.count == Self.count, "a key identity has four octets")
        self.bytes = bytes
    }

    /// Derived by HKDF, so that the identity reveals nothing of the key.
    init(id: String, key: SecretBytes) {
        let info = Array("token-broker key identity ".utf8) + Array(id.utf8)
        bytes = HKDF.sha256(key: key, salt: [], info: info, count: Self.count).revealedBytes
    }

    /// Eight hexadecimal digits.
    package var description: String { Hex.encode(bytes) }
}
