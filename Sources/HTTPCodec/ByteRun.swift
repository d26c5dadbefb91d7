/// Runs of bytes of one kind, eight bytes at a time. The only file of this module that reads memory unchecked: what it
/// reads is always within the span.
enum ByteRun {
    private static let ones: UInt64 = 0x0101_0101_0101_0101
    private static let tops: UInt64 = 0x8080_8080_8080_8080

    /// The first index from `start` on whose byte is no visible ASCII and no space; `bytes.count` where there is none.
    @inline(__always)
    static func visibleEnd(_ bytes: Span<UInt8>, from start: Int) -> Int {
        var index = start
        while index + 8 <= bytes.count {
            let word = load(bytes, index)
            // The top bit of a byte is set where the byte is below 0x20, is 0x7f, or is above it. A borrow can only
            // mark bytes above one that is rightly marked, and the lowest is what is asked for.
            let low = (word &- ones &* 0x20) & ~word
            let delete = ((word ^ ones &* 0x7f) &- ones) & ~(word ^ ones &* 0x7f)
            let marked = (low | delete | word) & tops
            if marked != 0 { return index + marked.trailingZeroBitCount / 8 }
            index += 8
        }
        while index < bytes.count, bytes[index] >= 0x20, bytes[index] < 0x7f { index += 1 }
        return index
    }

    /// Whether the bytes from `start` on are `word`'s, the first one in its lowest bits, once the bits of `fold` are set
    /// in both. False where fewer than `count` bytes are left.
    @inline(__always)
    static func matches(_ bytes: Span<UInt8>, _ start: Int, _ word: UInt64, fold: UInt64 = 0) -> Bool {
        start + 8 <= bytes.count && load(bytes, start) | fold == word | fold
    }

    @inline(__always)
    private static func load(_ bytes: Span<UInt8>, _ index: Int) -> UInt64 {
        let word = unsafe bytes.bytes.unsafeLoadUnaligned(fromUncheckedByteOffset: index, as: UInt64.self)
        return UInt64(littleEndian: word)
    }
}
