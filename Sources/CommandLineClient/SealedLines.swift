/// Sees, in whatever pieces they come, whether lines are sealed: each a JWE in compact form (RFC 7516), which is five parts of
/// base64url with dots between them. The second one may be empty, where the key that encrypts is agreed on.
struct SealedLines: Sendable {
    /// How many lines are complete.
    private(set) var count = 0
    private var dots = 0
    private var isPartEmpty = true

    /// Whether the last line has its end.
    var isComplete: Bool { dots == 0 && isPartEmpty }

    /// Takes the bytes that follow those before.
    /// - Returns: false where they are no sealed lines. Must not be called after that.
    mutating func take(_ piece: [UInt8]) -> Bool {
        for byte in piece {
            switch byte {
            case 0x30...0x39, 0x41...0x5a, 0x61...0x7a, UInt8(ascii: "-"), UInt8(ascii: "_"): isPartEmpty = false
            case UInt8(ascii: "."):
                guard dots < 4, !isPartEmpty || dots == 1 else { return false }
                (dots, isPartEmpty) = (dots + 1, true)
            case 0x0a:
                guard dots == 4, !isPartEmpty else { return false }
                count += 1
                (dots, isPartEmpty) = (0, true)
            default: return false
            }
        }
        return true
    }
}
