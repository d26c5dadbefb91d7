/// The character classes of RFC 9110 §5.6.2 and RFC 3986 §2.
enum ByteClass {
    /// `tchar`: the characters of field names and methods.
    static func isToken(_ byte: UInt8) -> Bool { ByteRun.isByte(byte, .token) }

    /// `unreserved` and `sub-delims`: `reg-name` without percent escapes.
    static func isHostCharacter(_ byte: UInt8) -> Bool { ByteRun.isByte(byte, .host) }

    /// A control character that a field value must not contain (RFC 9110 §5.5). Horizontal tabs are allowed inside a
    /// value.
    static func isForbiddenControl(_ byte: UInt8) -> Bool {
        byte < 0x20 ? byte != UInt8(ascii: "\t") : byte == 0x7f
    }

    static func isDigit(_ byte: UInt8) -> Bool { byte >= 0x30 && byte <= 0x39 }

    /// `SP` and `HTAB`, the only members of `OWS` (RFC 9110 §5.6.3).
    static func isWhitespace(_ byte: UInt8) -> Bool { byte == 0x20 || byte == 0x09 }

    static func hexValue(_ byte: UInt8) -> UInt8? {
        switch byte {
        case 0x30...0x39: byte - 0x30
        case 0x41...0x46: byte - 0x41 + 10
        case 0x61...0x66: byte - 0x61 + 10
        default: nil
        }
    }

    static func lowercased(_ byte: UInt8) -> UInt8 {
        byte >= 0x41 && byte <= 0x5a ? byte | 0x20 : byte
    }
}
