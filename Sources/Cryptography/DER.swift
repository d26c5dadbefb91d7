/// Writes the few forms of DER (ITU-T X.690 §10) that keys are made of.
enum DER {
    static func sequence(_ parts: [UInt8]...) -> [UInt8] { element(tag: 0x30, parts.flatMap { $0 }) }

    static func octetString(_ content: [UInt8]) -> [UInt8] { element(tag: 0x04, content) }

    /// A bit string of whole octets.
    static func bitString(_ content: [UInt8]) -> [UInt8] { element(tag: 0x03, [0] + content) }

    /// A number that is not negative.
    /// - Parameter magnitude: the number in big-endian order. Leading zero octets do not count.
    static func integer(_ magnitude: [UInt8]) -> [UInt8] {
        var digits = Array(magnitude.drop { $0 == 0 })
        // The first bit of an integer is its sign.
        if digits.first.map({ $0 >= 0x80 }) ?? true { digits.insert(0, at: 0) }
        return element(tag: 0x02, digits)
    }

    private static func element(tag: UInt8, _ content: [UInt8]) -> [UInt8] {
        var length: [UInt8] = []
        if content.count < 0x80 {
            length = [UInt8(content.count)]
        } else {
            var rest = content.count
            while rest > 0 {
                length.insert(UInt8(truncatingIfNeeded: rest), at: 0)
                rest >>= 8
            }
            length.insert(0x80 | UInt8(length.count), at: 0)
        }
        return [tag] + length + content
    }

    /// The algorithm identifiers of SubjectPublicKeyInfo and PrivateKeyInfo, whole.
    enum AlgorithmIdentifier {
        /// id-ecPublicKey with prime256v1 (RFC 5480 §2.1).
        static let p256: [UInt8] = [
            0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d,
            0x03, 0x01, 0x07,
        ]
        /// id-ecPublicKey with secp384r1 (RFC 5480 §2.1).
        static let p384: [UInt8] = [
            0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22,
        ]
        /// rsaEncryption with its NULL (RFC 3279 §2.3.1).
        static let rsa: [UInt8] = [
            0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
        ]
        /// id-Ed25519 (RFC 8410 §3).
        static let ed25519: [UInt8] = [0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70]
    }
}
