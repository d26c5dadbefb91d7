/// Finds runs of bytes of one kind, and short texts among bytes, several bytes at a time. Reads memory without bounds
/// checks; each function stays within its span.
package enum ByteRun {
    private static let ones: UInt64 = 0x0101_0101_0101_0101
    private static let tops: UInt64 = 0x8080_8080_8080_8080

    /// The first index from `start` on whose byte is neither visible ASCII nor a space; `bytes.count` if there is none.
    @inline(__always)
    package static func visibleEnd(_ bytes: Span<UInt8>, from start: Int) -> Int {
        unsafe bytes.withUnsafeBytes { bytes in
            var index = start
            while index &+ 8 <= bytes.count {
                let word = unsafe UInt64(littleEndian: bytes.loadUnaligned(fromByteOffset: index, as: UInt64.self))
                // The top bit of a byte is set if the byte is below 0x20 or at least 0x7f. A borrow or a carry can set
                // further top bits, but only above a byte whose top bit is correct. So the lowest top bit is always
                // correct.
                let marked = ((word &- ones &* 0x20) | (word &+ ones) | word) & tops
                if marked != 0 { return index &+ marked.trailingZeroBitCount / 8 }
                index &+= 8
            }
            while index < bytes.count, unsafe bytes[index] >= 0x20 && bytes[index] < 0x7f { index &+= 1 }
            return index
        }
    }

    /// A set of bytes.
    package enum Kind: UInt8, Sendable {
        /// `tchar` (RFC 9110 §5.6.2): the characters of field names and methods.
        case token = 1
        /// `pchar` without percent escapes, `/` and `?` (RFC 3986 §3.3, §3.4).
        case target = 2
        /// `unreserved` and `sub-delims` (RFC 3986 §2).
        case host = 4
        /// Letters, digits, `-`, `.`, `_`, `~`, `:` and `@`.
        case identifier = 8
    }

    /// The kinds of each byte, as the sum of their raw values.
    private static let kinds: StaticString = """
        \u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\
        \u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\
        \u{0}\u{7}\u{0}\u{1}\u{7}\u{1}\u{7}\u{7}\u{6}\u{6}\u{7}\u{7}\u{6}\u{f}\u{f}\u{2}\
        \u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{a}\u{6}\u{0}\u{6}\u{0}\u{2}\
        \u{a}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\
        \u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{0}\u{0}\u{0}\u{1}\u{f}\
        \u{1}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\
        \u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{f}\u{0}\u{1}\u{0}\u{f}\u{0}\
        \u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\
        \u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\
        \u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\
        \u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\
        \u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\
        \u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\
        \u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\
        \u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}
        """

    @inline(__always)
    static func isByte(_ byte: UInt8, _ kind: Kind) -> Bool {
        unsafe kinds.utf8Start[Int(byte)] & kind.rawValue != 0
    }

    /// The first index from `start` on whose byte is not of this kind; `bytes.count` if there is none.
    @inline(__always)
    package static func end(of kind: Kind, _ bytes: Span<UInt8>, from start: Int) -> Int {
        precondition(start >= 0)
        return unsafe bytes.withUnsafeBytes { bytes in
            let kinds = unsafe Self.kinds.utf8Start
            var index = start
            // Four bytes at a time, because most runs are longer.
            while index &+ 4 <= bytes.count {
                let all =
                    unsafe kinds[Int(bytes[index])] & kinds[Int(bytes[index &+ 1])]
                    & kinds[Int(bytes[index &+ 2])] & kinds[Int(bytes[index &+ 3])]
                if all & kind.rawValue == 0 { break }
                index &+= 4
            }
            while index < bytes.count, unsafe kinds[Int(bytes[index])] & kind.rawValue != 0 { index &+= 1 }
            return index
        }
    }

    /// Whether two texts are the same. Not for secrets, because the comparison ends at the first difference.
    @inline(__always)
    package static func equal(_ one: Span<UInt8>, _ other: Span<UInt8>) -> Bool {
        guard one.count == other.count else { return false }
        return unsafe one.withUnsafeBytes { one in
            unsafe other.withUnsafeBytes { other in
                let count = one.count
                if count < 8 {
                    var index = 0
                    while index < count, unsafe one[index] == other[index] { index &+= 1 }
                    return index == count
                }
                @inline(__always)
                func isSame(_ index: Int) -> Bool {
                    unsafe one.loadUnaligned(fromByteOffset: index, as: UInt64.self)
                        == other.loadUnaligned(fromByteOffset: index, as: UInt64.self)
                }
                // The last 8 bytes first, because numbered texts differ at their end. Some bytes are compared twice.
                guard isSame(count &- 8) else { return false }
                var index = 0
                while index < count &- 8, isSame(index) { index &+= 8 }
                return index >= count &- 8
            }
        }
    }

    /// Whether the bytes begin with a text of at least 8 bytes. The time depends only on the text's length.
    @inline(__always)
    static func begins(_ bytes: Span<UInt8>, withSecret text: Span<UInt8>) -> Bool {
        guard text.count >= 8, text.count <= bytes.count else { return false }
        return unsafe bytes.withUnsafeBytes { bytes in
            unsafe text.withUnsafeBytes { text in
                @inline(__always)
                func difference(_ index: Int) -> UInt64 {
                    unsafe bytes.loadUnaligned(fromByteOffset: index, as: UInt64.self)
                        ^ text.loadUnaligned(fromByteOffset: index, as: UInt64.self)
                }
                // Some of the last bytes are compared twice.
                var found = difference(text.count &- 8)
                var index = 0
                while index &+ 8 <= text.count {
                    found |= difference(index)
                    index &+= 8
                }
                return found == 0
            }
        }
    }

    /// A hash for tables in memory. Without the seed a client cannot choose texts that have the same hash, or the same
    /// bits of it.
    package static func hash(_ bytes: Span<UInt8>, seed: UInt64) -> UInt64 {
        unsafe bytes.withUnsafeBytes { bytes in
            guard let start = bytes.baseAddress else { return seed }
            return unsafe hash(start, bytes.count, seed: seed)
        }
    }

    /// 16 bytes at a time, as two factors. Each half of the product depends on all 16 bytes.
    @unsafe package static func hash(_ start: UnsafeRawPointer, _ count: Int, seed: UInt64) -> UInt64 {
        var position = unsafe start
        var hash = seed ^ UInt64(truncatingIfNeeded: count)
        let other = seed.byteSwapped ^ 0xff51_afd7_ed55_8ccd
        var left = count
        while left > 16 {
            hash = unsafe mix(
                position.loadUnaligned(as: UInt64.self), position.loadUnaligned(fromByteOffset: 8, as: UInt64.self),
                hash, other)
            unsafe position += 16
            left &-= 16
        }
        // The remaining bytes, as two words that may overlap. Reading a byte twice does no harm.
        let (one, two): (UInt64, UInt64)
        if left >= 8 {
            one = unsafe position.loadUnaligned(as: UInt64.self)
            two = unsafe position.loadUnaligned(fromByteOffset: left &- 8, as: UInt64.self)
        } else if left >= 4 {
            one = unsafe UInt64(position.loadUnaligned(as: UInt32.self))
            two = unsafe UInt64(position.loadUnaligned(fromByteOffset: left &- 4, as: UInt32.self))
        } else if left > 0 {
            one =
                unsafe UInt64(position.load(as: UInt8.self)) << 8
                | UInt64(position.load(fromByteOffset: left &>> 1, as: UInt8.self))
            two = unsafe UInt64(position.load(fromByteOffset: left &- 1, as: UInt8.self))
        } else {
            (one, two) = (0, 0)
        }
        return mix(one, two, hash, other)
    }

    @inline(__always)
    private static func mix(_ one: UInt64, _ two: UInt64, _ hash: UInt64, _ other: UInt64) -> UInt64 {
        let (high, low) = (one ^ hash ^ 0x9e37_79b9_7f4a_7c15).multipliedFullWidth(by: two ^ other)
        return hash ^ high ^ low
    }

    /// The first index in a range whose byte is `wanted`; the range's end if there is none.
    @inline(__always)
    package static func first(_ wanted: UInt8, _ bytes: Span<UInt8>, _ range: Range<Int>) -> Int {
        precondition(range.lowerBound >= 0 && range.upperBound <= bytes.count)
        return unsafe bytes.withUnsafeBytes { bytes in
            let pattern = ones &* UInt64(wanted)
            var index = range.lowerBound
            while index &+ 8 <= range.upperBound {
                let word =
                    unsafe UInt64(littleEndian: bytes.loadUnaligned(fromByteOffset: index, as: UInt64.self)) ^ pattern
                // The lowest marked byte is correct, because a borrow can only mark bytes above a zero byte.
                let marked = (word &- ones) & ~word & tops
                if marked != 0 { return index &+ marked.trailingZeroBitCount / 8 }
                index &+= 8
            }
            while index < range.upperBound, unsafe bytes[index] != wanted { index &+= 1 }
            return index
        }
    }

    /// Whether all bytes of a range are visible ASCII, and none is a space.
    @inline(__always)
    static func isVisible(_ bytes: Span<UInt8>, _ range: Range<Int>) -> Bool {
        precondition(range.lowerBound >= 0 && range.upperBound <= bytes.count)
        return unsafe bytes.withUnsafeBytes { bytes in
            var index = range.lowerBound
            while index &+ 8 <= range.upperBound {
                let word = unsafe bytes.loadUnaligned(fromByteOffset: index, as: UInt64.self)
                // As in `visibleEnd`: below a byte that is marked wrongly there is one that is marked correctly.
                if ((word &- ones &* 0x21) | (word &+ ones) | word) & tops != 0 { return false }
                index &+= 8
            }
            while index < range.upperBound {
                if unsafe bytes[index] <= 0x20 || bytes[index] >= 0x7f { return false }
                index &+= 1
            }
            return true
        }
    }

    /// Whether all bytes are ASCII, and none of them is `first` or `second`.
    @inline(__always)
    static func hasNeither(_ one: Unicode.Scalar, _ other: Unicode.Scalar, _ bytes: Span<UInt8>) -> Bool {
        let (one, other) = (UInt8(ascii: one), UInt8(ascii: other))
        return unsafe bytes.withUnsafeBytes { bytes in
            let (first, second) = (ones &* UInt64(one), ones &* UInt64(other))
            var index = 0
            while index &+ 8 <= bytes.count {
                let word = unsafe bytes.loadUnaligned(fromByteOffset: index, as: UInt64.self)
                // Below a byte that is marked wrongly there is one that is marked correctly.
                let marked = ((word ^ first) &- ones) & ~(word ^ first) | ((word ^ second) &- ones) & ~(word ^ second)
                if (marked | word) & tops != 0 { return false }
                index &+= 8
            }
            while index < bytes.count {
                let byte = unsafe bytes[index]
                if byte == one || byte == other || byte >= 0x80 { return false }
                index &+= 1
            }
            return true
        }
    }

    /// Whether the text is at `start`, compared without case.
    ///
    /// - Parameter text: lower-case letters, digits, hyphens, colons and spaces.
    @inline(__always)
    package static func has(_ text: StaticString, _ bytes: Span<UInt8>, at start: Int) -> Bool {
        let count = text.utf8CodeUnitCount
        guard start &+ count <= bytes.count else { return false }
        return unsafe bytes.withUnsafeBytes { bytes in
            let text = unsafe UnsafeRawPointer(text.utf8Start)
            var index = 0
            while index &+ 8 <= count {
                let wanted = unsafe text.loadUnaligned(fromByteOffset: index, as: UInt64.self)
                let word = unsafe bytes.loadUnaligned(fromByteOffset: start &+ index, as: UInt64.self)
                // The bit that distinguishes upper and lower case, in each byte of `wanted` that is a letter. In these
                // texts only letters are above 0x3f.
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

    /// Whether the text is at `start`, compared with case.
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
