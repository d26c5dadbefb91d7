/// What the two Base 64 encodings of RFC 4648 have in common: three octets are four characters.
struct SixBitAlphabet: Sendable {
    private static let none: UInt8 = 0xFF

    private let characters: [UInt8]
    private let values: [UInt8]

    /// - Parameter lastTwo: the characters of the values 62 and 63, in which the alphabets differ.
    init(lastTwo: String) {
        characters = Array(("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789" + lastTwo).utf8)
        var values = [UInt8](repeating: Self.none, count: 256)
        for (value, character) in characters.enumerated() { values[Int(character)] = UInt8(value) }
        self.values = values
    }

    /// The characters for `bytes`, without padding.
    func encode(_ bytes: [UInt8]) -> [UInt8] {
        var text: [UInt8] = []
        text.reserveCapacity((bytes.count + 2) / 3 * 4)
        var pending: UInt32 = 0
        var bits: UInt32 = 0
        for byte in bytes {
            pending = pending << 8 | UInt32(byte)
            bits += 8
            while bits >= 6 {
                bits -= 6
                text.append(characters[Int(pending >> bits & 0x3F)])
            }
        }
        if bits > 0 { text.append(characters[Int(pending << (6 - bits) & 0x3F)]) }
        return text
    }

    /// The bytes that `text`, from which any padding has been taken, stands for. Nil for a character outside the
    /// alphabet, for a length that no encoder makes, and for left-over bits that are not zero: those would let one
    /// value have many spellings (RFC 4648 §3.5).
    func decode(_ text: some Collection<UInt8>) -> [UInt8]? {
        if text.count % 4 == 1 { return nil }
        var bytes: [UInt8] = []
        bytes.reserveCapacity(text.count / 4 * 3 + 2)
        var pending: UInt32 = 0
        var bits: UInt32 = 0
        for character in text {
            let value = values[Int(character)]
            if value == Self.none { return nil }
            pending = (pending << 6 | UInt32(value)) & 0xFFFF
            bits += 6
            if bits >= 8 {
                bits -= 8
                bytes.append(UInt8(truncatingIfNeeded: pending >> bits))
            }
        }
        return pending & (1 << bits - 1) == 0 ? bytes : nil
    }
}
