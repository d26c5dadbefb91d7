/// Identifies a request among the requests of all processes: 128 bits, of which the first half identifies the worker.
/// `X-Request-ID` and the log have it as 32 hexadecimal digits.
///
/// Numbers are unique and not secret. They are a SplitMix64 sequence (Steele, Lea, Flood 2014) that begins at a random
/// point. No word of it occurs twice.
package struct RequestNumber: Sendable, Equatable {
    let high: UInt64
    let low: UInt64

    package var text: String {
        let (first, second) = Self.digits(high)
        let (third, fourth) = Self.digits(low)
        var bytes: [UInt8] = []
        bytes.reserveCapacity(32)
        for word in [first, second, third, fourth] {
            for shift in 0..<8 { bytes.append(UInt8(truncatingIfNeeded: word >> UInt64(8 * shift))) }
        }
        return String(decoding: bytes, as: UTF8.self)
    }

    /// Generates numbers.
    struct Sequence {
        let high: UInt64
        private var word: UInt64

        init() {
            var random = SystemRandomNumberGenerator()
            (high, word) = (random.next(), random.next())
        }

        mutating func next() -> RequestNumber {
            word &+= 0x9e37_79b9_7f4a_7c15
            var low = (word ^ word >> 30) &* 0xbf58_476d_1ce4_e5b9
            low = (low ^ low >> 27) &* 0x94d0_49bb_1331_11eb
            return RequestNumber(high: high, low: low ^ low >> 31)
        }
    }

    /// 16 hexadecimal digits in two words. The first digit of a word is in its lowest byte.
    @inline(__always)
    static func digits(_ word: UInt64) -> (UInt64, UInt64) {
        (digits(UInt32(truncatingIfNeeded: word >> 32)), digits(UInt32(truncatingIfNeeded: word)))
    }

    /// Eight digits at once: each half-byte becomes a byte, and values above nine become letters.
    @inline(__always)
    private static func digits(_ word: UInt32) -> UInt64 {
        var spread = UInt64(word)
        spread = (spread << 16 | spread) & 0x0000_ffff_0000_ffff
        spread = (spread << 8 | spread) & 0x00ff_00ff_00ff_00ff
        spread = (spread << 4 | spread) & 0x0f0f_0f0f_0f0f_0f0f
        let letters = (spread &+ 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101
        return (spread &+ 0x3030_3030_3030_3030 &+ letters &* 39).byteSwapped
    }
}
