/// The character classes of RFC 9110 §5.6.2 and RFC 3986 §2, each a 128-bit set held in two constants: no table that
/// would have to be initialized or bounds-checked for every byte of a head.
enum ByteClass {
    /// The bytes below 64 and those below 128, a bit for each.
    typealias Set = (low: UInt64, high: UInt64)

    /// `tchar`: what names and methods are made of.
    static var tokenSet: Set { (0x03ff_6cfa_0000_0000, 0x57ff_ffff_c7ff_fffe) }

    /// `pchar` without percent escapes, `/` and `?`: what a path with its query is made of.
    static var targetSet: Set { (0xafff_ffd2_0000_0000, 0x47ff_fffe_87ff_ffff) }

    /// `unreserved` and `sub-delims`.
    static var hostSet: Set { (0x2bff_7fd2_0000_0000, 0x47ff_fffe_87ff_fffe) }

    static func isToken(_ byte: UInt8) -> Bool {
        contains(byte, tokenSet.low, tokenSet.high)
    }

    /// `unreserved` and `sub-delims`: `reg-name` without percent escapes.
    static func isHostCharacter(_ byte: UInt8) -> Bool {
        contains(byte, hostSet.low, hostSet.high)
    }

    /// A control that no field value may hold (RFC 9110 §5.5). Horizontal tabs may stand inside one.
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

    private static func contains(_ byte: UInt8, _ low: UInt64, _ high: UInt64) -> Bool {
        if byte < 64 { return low >> UInt64(byte) & 1 == 1 }
        return byte < 128 && high >> UInt64(byte - 64) & 1 == 1
    }
}
