/// The message authentication code of RFC 2104 with SHA-256.
package enum HMAC {
    /// Octets of the blocks that SHA-256 works on (FIPS 180-4 §1).
    private static let blockCount = 64

    /// The code of `message`, 32 octets.
    /// - Parameter key: of any length; one of less than 32 octets is weaker than the code (RFC 2104 §3).
    package static func sha256(key: SecretBytes, _ message: [UInt8]) -> [UInt8] {
        var block = key.count > blockCount ? key.withRevealed { SHA256.digest($0) } : key.revealedBytes
        block += [UInt8](repeating: 0, count: blockCount - block.count)
        let inner = SHA256.digest(block.map { $0 ^ 0x36 } + message)
        return SHA256.digest(block.map { $0 ^ 0x5c } + inner)
    }
}
