/// RFC 4648 §5, without padding (RFC 7515 §2).
package enum Base64URL {
    private static let alphabet = SixBitAlphabet(lastTwo: "-_")

    package static func encode(_ bytes: [UInt8]) -> String {
        String(decoding: alphabet.encode(bytes), as: UTF8.self)
    }

    /// Nil unless `encode` could have made `text`: padding, white space and left-over bits that are not zero are
    /// refused.
    package static func decode(_ text: String) -> [UInt8]? {
        alphabet.decode(text.utf8)
    }
}
