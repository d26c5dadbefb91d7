/// RFC 4648 §4: with padding, and nothing else than the alphabet.
package enum Base64 {
    private static let alphabet = SixBitAlphabet(lastTwo: "+/")
    private static let padding = UInt8(ascii: "=")

    package static func encode(_ bytes: [UInt8]) -> String {
        var text = alphabet.encode(bytes)
        while text.count % 4 != 0 { text.append(padding) }
        return String(decoding: text, as: UTF8.self)
    }

    /// Nil unless `encode` could have made `text`: white space, missing or surplus padding and left-over bits that are
    /// not zero are refused.
    package static func decode(_ text: String) -> [UInt8]? {
        let characters = Array(text.utf8)
        guard characters.count % 4 == 0 else { return nil }
        // Padding further forward is met by the decoder, which does not know the character. At most two can be taken
        // off here: three would leave a length that no encoder makes.
        let padded = characters.reversed().prefix(3).prefix(while: { $0 == padding }).count
        return alphabet.decode(characters.dropLast(padded))
    }
}
