/// Makes request identifiers: unique, not secret. One for each worker, without a lock or a system call per request.
struct RequestIDGenerator {
    // Two SplitMix64 sequences (Steele, Lea, Flood 2014) begun at random points: within one worker no 64-bit word of a
    // sequence repeats, and between workers and processes 128 random bits keep them apart.
    private var first: UInt64
    private var second: UInt64

    init(_ random: inout some RandomNumberGenerator) {
        first = random.next()
        second = random.next()
    }

    /// The next identifier: 32 hexadecimal digits.
    mutating func next() -> String {
        let (high, low) = (Self.advance(&first), Self.advance(&second))
        var digits: [32 of UInt8] = .init(repeating: 0)
        for index in 0..<16 {
            let shift = UInt64(60 - 4 * index)
            digits[index] = Self.digit(high >> shift)
            digits[index + 16] = Self.digit(low >> shift)
        }
        guard let text = try? UTF8Span(validating: digits.span) else {
            preconditionFailure("hexadecimal digits are UTF-8")
        }
        return String(copying: text)
    }

    /// Appends the next identifier.
    mutating func append(to output: OutputBuffer) {
        output.append(hexadecimal: Self.advance(&first))
        output.append(hexadecimal: Self.advance(&second))
    }

    private static func digit(_ word: UInt64) -> UInt8 {
        let value = UInt8(word & 15)
        return value < 10 ? UInt8(ascii: "0") + value : UInt8(ascii: "a") + value - 10
    }

    private static func advance(_ state: inout UInt64) -> UInt64 {
        state &+= 0x9e37_79b9_7f4a_7c15
        var word = state
        word = (word ^ word >> 30) &* 0xbf58_476d_1ce4_e5b9
        word = (word ^ word >> 27) &* 0x94d0_49bb_1331_11eb
        return word ^ word >> 31
    }
}
