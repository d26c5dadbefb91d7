/// Base 64 for URLs as in RFC 4648 §5, without padding (RFC 7515 §2).
package enum Base64URL {
    package static func encode(_ bytes: [UInt8]) -> String {
        var text = Base64.characters(of: bytes)
        while text.last == UInt8(ascii: "=") { text.removeLast() }
        for index in text.indices {
            switch text[index] {
            case UInt8(ascii: "+"): text[index] = UInt8(ascii: "-")
            case UInt8(ascii: "/"): text[index] = UInt8(ascii: "_")
            default: break
            }
        }
        return String(decoding: text, as: UTF8.self)
    }

    /// Nil unless `encode` could have made `text`: padding, white space, and leftover bits that are not zero are
    /// refused.
    package static func decode(_ text: String) -> [UInt8]? { decode(text.utf8.span) }

    /// Decodes also what some libraries write in place of base64url: with padding, with the alphabet of Base 64, or with
    /// leftover bits that are not zero. For values that are compared after they were decoded only, since each has several
    /// such spellings. Nil for everything else that `encode` could not have made.
    package static func decodeLoosely(_ text: String) -> [UInt8]? {
        if let bytes = decode(text) { return bytes }
        var characters = text.utf8.map { character in
            switch character {
            case UInt8(ascii: "+"): UInt8(ascii: "-")
            case UInt8(ascii: "/"): UInt8(ascii: "_")
            default: character
            }
        }
        for _ in 0..<2 where characters.last == UInt8(ascii: "=") { characters.removeLast() }
        if let last = characters.last, let value = alphabet.firstIndex(of: last) {
            let leftover = [2: 0x0f, 3: 0x03][characters.count % 4] ?? 0
            characters[characters.count - 1] = alphabet[value & ~leftover]
        }
        return decode(characters.span)
    }

    private static let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".utf8)

    /// Nil unless `encode` could have made `text`, of which these are the characters in ASCII.
    package static func decode(_ text: Span<UInt8>) -> [UInt8]? {
        var padded: [UInt8] = []
        padded.reserveCapacity(text.count + 2)
        for index in text.indices {
            let character = text[index]
            switch character {
            case UInt8(ascii: "-"): padded.append(UInt8(ascii: "+"))
            case UInt8(ascii: "_"): padded.append(UInt8(ascii: "/"))
            case UInt8(ascii: "+"), UInt8(ascii: "/"), UInt8(ascii: "="): return nil
            default: padded.append(character)
            }
        }
        while padded.count % 4 != 0 { padded.append(UInt8(ascii: "=")) }
        return Base64.decode(padded)
    }
}
