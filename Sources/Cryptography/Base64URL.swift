/// Base 64 for URLs as in RFC 4648 §5, without padding (RFC 7515 §2).
package enum Base64URL {
    package static func encode(_ bytes: [UInt8]) -> String {
        let text = Base64.characters(of: bytes).filter { $0 != UInt8(ascii: "=") }.map { character in
            switch character {
            case UInt8(ascii: "+"): UInt8(ascii: "-")
            case UInt8(ascii: "/"): UInt8(ascii: "_")
            default: character
            }
        }
        return String(decoding: text, as: UTF8.self)
    }

    /// Nil unless `encode` could have made `text`: padding, white space, and leftover bits that are not zero are
    /// refused.
    package static func decode(_ text: String) -> [UInt8]? { decode(text.utf8.span) }

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
