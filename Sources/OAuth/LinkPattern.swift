import ExternalText

/// A pattern of an app's links: `*` stands for any text, also for none, and `?` for one byte.
///
/// Patterns come from other people's servers. A match takes time in proportion to the length of the text times that of the
/// pattern in words of 64 bytes, whatever they are, and memory in proportion to the pattern.
struct LinkPattern {
    /// The longest pattern that is read, in bytes.
    static let longest = 4096

    /// The bytes that are not `*`; nil for `?`.
    private var units: [UInt8?] = []
    /// Bit `i` is set where a `*` follows the first `i` units.
    private var stars: [UInt64]

    /// Nil for a pattern that is too long.
    /// - Parameter ignoresCase: whether ASCII letters are equal in both cases.
    init?(_ text: WireText, ignoresCase: Bool) {
        guard text.count <= Self.longest else { return nil }
        stars = [UInt64](repeating: 0, count: text.count / 64 + 1)
        for byte in (ignoresCase ? text.lowercased : text).utf8 {
            if byte == UInt8(ascii: "*") {
                stars[units.count / 64] |= 1 << UInt64(units.count % 64)
            } else {
                units.append(byte == UInt8(ascii: "?") ? nil : byte)
            }
        }
        self.ignoresCase = ignoresCase
    }

    private let ignoresCase: Bool

    func matches(_ text: WireText) -> Bool {
        let bytes = ignoresCase ? text.lowercased : text
        guard units.count <= bytes.count else { return false }
        let words = units.count / 64 + 1
        // Bit `i` of a byte's mask is set where the unit before place `i` takes the byte.
        var masks = [[UInt64]](repeating: [], count: 256)
        var anyByte = [UInt64](repeating: 0, count: words)
        for (index, unit) in units.enumerated() {
            let (word, bit) = ((index + 1) / 64, UInt64(1) << UInt64((index + 1) % 64))
            guard let unit else {
                anyByte[word] |= bit
                continue
            }
            if masks[Int(unit)].isEmpty { masks[Int(unit)] = [UInt64](repeating: 0, count: words) }
            masks[Int(unit)][word] |= bit
        }
        // Bit `i` is set where the first `i` units have taken the text so far.
        var places = [UInt64](repeating: 0, count: words)
        places[0] = 1
        for byte in bytes.utf8 {
            let mask = masks[Int(byte)]
            var (carry, isAlive): (UInt64, UInt64) = (0, 0)
            for word in 0..<words {
                let moved = places[word] << 1 | carry
                carry = places[word] >> 63
                let taken = anyByte[word] | (mask.isEmpty ? 0 : mask[word])
                places[word] = moved & taken | places[word] & stars[word]
                isAlive |= places[word]
            }
            if isAlive == 0 { return false }
        }
        return places[units.count / 64] & 1 << UInt64(units.count % 64) != 0
    }
}
