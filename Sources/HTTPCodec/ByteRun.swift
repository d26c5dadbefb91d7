/// Runs of bytes of one kind, and short texts among bytes, several bytes at a time. The only file of this module that
/// reads memory unchecked: what it reads is always within the span.
package enum ByteRun {
    private static let ones: UInt64 = 0x0101_0101_0101_0101
    private static let tops: UInt64 = 0x8080_8080_8080_8080

    /// The first index from `start` on whose byte is no visible ASCII and no space; `bytes.count` where there is none.
    @inline(__always)
    static func visibleEnd(_ bytes: Span<UInt8>, from start: Int) -> Int {
        unsafe bytes.withUnsafeBytes { bytes in
            var index = start
            while index &+ 8 <= bytes.count {
                let word = unsafe UInt64(littleEndian: bytes.loadUnaligned(fromByteOffset: index, as: UInt64.self))
                // The top bit of a byte is set where the byte is below 0x20, is 0x7f, or is above it. A borrow can only
                // mark bytes above one that is rightly marked, and the lowest is what is asked for.
                let low = (word &- ones &* 0x20) & ~word
                let delete = ((word ^ ones &* 0x7f) &- ones) & ~(word ^ ones &* 0x7f)
                let marked = (low | delete | word) & tops
                if marked != 0 { return index &+ marked.trailingZeroBitCount / 8 }
                index &+= 8
            }
            while index < bytes.count, unsafe bytes[index] >= 0x20 && bytes[index] < 0x7f { index &+= 1 }
            return index
        }
    }

    /// The first index from `start` on whose byte is not in the set; `bytes.count` where there is none.
    ///
    /// - Parameter set: a bit for each byte below 64 and for each below 128.
    package static func end(of set: (low: UInt64, high: UInt64), _ bytes: Span<UInt8>, from start: Int) -> Int {
        unsafe bytes.withUnsafeBytes { bytes in
            var index = start
            while index < bytes.count {
                let byte = unsafe UInt64(bytes[index])
                let half = byte & 64 == 0 ? set.low : set.high
                if byte & 128 != 0 || half &>> (byte & 63) & 1 == 0 { break }
                index &+= 1
            }
            return index
        }
    }

    /// Whether two texts are the same. No comparison for secrets: it ends at the first difference.
    @inline(__always)
    package static func equal(_ one: Span<UInt8>, _ other: Span<UInt8>) -> Bool {
        guard one.count == other.count else { return false }
        return unsafe one.withUnsafeBytes { one in
            unsafe other.withUnsafeBytes { other in
                let count = one.count
                var index = 0
                while index &+ 8 <= count {
                    if unsafe one.loadUnaligned(fromByteOffset: index, as: UInt64.self)
                        != other.loadUnaligned(fromByteOffset: index, as: UInt64.self)
                    {
                        return false
                    }
                    index &+= 8
                }
                while index < count {
                    if unsafe one[index] != other[index] { return false }
                    index &+= 1
                }
                return true
            }
        }
    }

    /// Feeds the bytes to a hasher, with their count: by words, since it takes each in one step, and single bytes would
    /// cost it one each.
    package static func hash(_ bytes: Span<UInt8>, into hasher: inout Hasher) {
        unsafe bytes.withUnsafeBytes { bytes in
            let count = bytes.count
            var index = 0
            while index &+ 8 <= count {
                hasher.combine(unsafe bytes.loadUnaligned(fromByteOffset: index, as: UInt64.self))
                index &+= 8
            }
            // Seven bytes at most, and above them the count of all, so that no two texts are the same words.
            var last = UInt64(truncatingIfNeeded: count) << 56
            if index < count, count >= 8 {
                let word = unsafe bytes.loadUnaligned(fromByteOffset: count &- 8, as: UInt64.self)
                last |= word &>> UInt64(truncatingIfNeeded: 8 &* (8 &- (count &- index)))
            } else {
                var shift: UInt64 = 0
                while index < count {
                    last |= unsafe UInt64(bytes[index]) &<< shift
                    shift &+= 8
                    index &+= 1
                }
            }
            hasher.combine(last)
        }
    }

    /// Whether a space is among the bytes of a range.
    @inline(__always)
    static func hasSpace(_ bytes: Span<UInt8>, _ range: Range<Int>) -> Bool {
        precondition(range.lowerBound >= 0 && range.upperBound <= bytes.count)
        return unsafe bytes.withUnsafeBytes { bytes in
            var index = range.lowerBound
            while index &+ 8 <= range.upperBound {
                let word = unsafe bytes.loadUnaligned(fromByteOffset: index, as: UInt64.self) ^ (ones &* 0x20)
                if (word &- ones) & ~word & tops != 0 { return true }
                index &+= 8
            }
            while index < range.upperBound {
                if unsafe bytes[index] == UInt8(ascii: " ") { return true }
                index &+= 1
            }
            return false
        }
    }

    /// Whether a text stands at `start`, its letters in whatever case.
    ///
    /// - Parameter text: small letters, digits, hyphens, colons and spaces.
    @inline(__always)
    static func has(_ text: StaticString, _ bytes: Span<UInt8>, at start: Int) -> Bool {
        let count = text.utf8CodeUnitCount
        guard start &+ count <= bytes.count else { return false }
        return unsafe bytes.withUnsafeBytes { bytes in
            let text = unsafe UnsafeRawPointer(text.utf8Start)
            var index = 0
            while index &+ 8 <= count {
                let wanted = unsafe text.loadUnaligned(fromByteOffset: index, as: UInt64.self)
                let word = unsafe bytes.loadUnaligned(fromByteOffset: start &+ index, as: UInt64.self)
                // What tells capitals from other letters, where the wanted byte is a letter: nothing else in these texts
                // is above 0x3f.
                let letters = (wanted & (ones &* 0x40)) &>> 1
                if word | letters != wanted { return false }
                index &+= 8
            }
            while index < count {
                let wanted = unsafe text.load(fromByteOffset: index, as: UInt8.self)
                let byte = unsafe bytes[start &+ index]
                if (wanted > 0x3f ? byte | 0x20 : byte) != wanted { return false }
                index &+= 1
            }
            return true
        }
    }

    /// Whether a text stands at `start`, letter for letter.
    @inline(__always)
    package static func hasExactly(_ text: StaticString, _ bytes: Span<UInt8>, at start: Int) -> Bool {
        let count = text.utf8CodeUnitCount
        guard start >= 0, start &+ count <= bytes.count else { return false }
        return unsafe bytes.withUnsafeBytes { bytes in
            let text = unsafe UnsafeRawPointer(text.utf8Start)
            var index = 0
            while index &+ 8 <= count {
                if unsafe bytes.loadUnaligned(fromByteOffset: start &+ index, as: UInt64.self)
                    != text.loadUnaligned(fromByteOffset: index, as: UInt64.self)
                {
                    return false
                }
                index &+= 8
            }
            while index < count {
                if unsafe bytes[start &+ index] != text.load(fromByteOffset: index, as: UInt8.self) { return false }
                index &+= 1
            }
            return true
        }
    }
}
