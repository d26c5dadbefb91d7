/// RFC 5869: many independent keys from one.
package enum HKDF {
    /// With SHA-256.
    /// - Parameters:
    ///   - salt: may be empty, which §2.2 makes the same as 32 zero octets.
    ///   - info: sets apart keys for different purposes.
    ///   - count: octets to make, 1 to 8160 (§2.3: at most 255 digests).
    package static func sha256(key: SecretBytes, salt: [UInt8], info: [UInt8], count: Int) -> SecretBytes {
        precondition((1...255 * SHA256.digestCount).contains(count), "HKDF output of \(count) octets")

        // §2.2. HMAC pads its key with zeros, so an empty salt needs no case of its own.
        var extraction = HMACSHA256.Computation(key: salt.span)
        key.withRevealed { extraction.update($0) }
        let pseudorandomKey = extraction.finish()

        // §2.3: T(n) = HMAC(PRK, T(n-1) | info | n)
        return unsafe SecretBytes(count: count) { output in
            var block = SecretBytes([])
            var filled = 0
            var counter: UInt8 = 1
            while filled < output.count {
                var expansion = pseudorandomKey.withRevealed { HMACSHA256.Computation(key: $0) }
                block.withRevealed { expansion.update($0) }
                expansion.update(info.span)
                expansion.update([counter].span)
                block = expansion.finish()
                let taken = min(block.count, output.count - filled)
                block.withRevealed { block in
                    for index in 0..<taken { unsafe output[filled + index] = block[index] }
                }
                filled += taken
                // The last block may be number 255.
                counter &+= 1
            }
        }
    }
}
