package import Cryptography

/// The key derivation of ECDH-ES (RFC 7518 §4.6.2): one round of the Concat KDF of NIST SP 800-56A with SHA-256.
package enum ConcatKDF {
    /// Derives a key from the secret that both sides have agreed on.
    /// - Parameters:
    ///   - algorithm: the name of what the key is for, `enc` of the message.
    ///   - partyU: the octets of `apu`; empty for none.
    ///   - partyV: the octets of `apv`; empty for none.
    ///   - bits: the length of the key, a multiple of 8, at most 256.
    package static func key(
        from secret: SecretBytes, algorithm: String, partyU: [UInt8] = [], partyV: [UInt8] = [], bits: Int
    ) -> SecretBytes {
        precondition((8...256).contains(bits) && bits.isMultiple(of: 8), "a key of \(bits) bits")
        let info =
            prefixed(Array(algorithm.utf8)) + prefixed(partyU) + prefixed(partyV) + number(bits)
        let digest = SecretBytes(prefix: number(1), secret: secret, suffix: info).withRevealed { SHA256.digest($0) }
        return SecretBytes(Array(digest.prefix(bits / 8)))
    }

    private static func prefixed(_ bytes: [UInt8]) -> [UInt8] { number(bytes.count) + bytes }

    private static func number(_ value: Int) -> [UInt8] {
        [24, 16, 8, 0].map { UInt8(truncatingIfNeeded: value >> $0) }
    }
}
