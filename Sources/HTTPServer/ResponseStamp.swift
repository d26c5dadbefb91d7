internal import HTTPCodec

/// What the server adds to every answer: its date, and its name as 32 hexadecimal digits. One worker's, on its thread.
///
/// Names are unique, not secret: 64 random bits that are one worker's, and a SplitMix64 sequence (Steele, Lea, Flood 2014)
/// begun at a random point, of which no word comes twice.
@safe final class ResponseStamp {
    static let dateLength = 29

    /// The status line and the fields up to a name's second half, of every answer that the fast lane gives: its date and
    /// the first half are the same for a second, and one copy brings them all.
    private enum Opening {
        static let dateName: StaticString = "\r\nDate: "
        static let requestIDName: StaticString = "\r\nX-Request-ID: "
        static let prefixLength = 16
        /// Of each, with what follows it. A multiple of 16.
        static let room = 128
        static let lineEnd = UInt16(littleEndian: 0x0a0d)
    }

    /// In memory of its own, which nobody checks at each access.
    private struct Contents {
        var second: Int64
        var word: UInt64
        var ok = 0..<0
        var notModified = 0..<0
    }

    private let contents: UnsafeMutablePointer<Contents>
    private let openings: UnsafeMutableRawPointer
    private let prefix: (UInt64, UInt64)
    /// RFC 9110 §6.6.1, as of the last `update`.
    private(set) var date: [UInt8]

    init(second: Int64) {
        var random = SystemRandomNumberGenerator()
        unsafe contents = .allocate(capacity: 1)
        unsafe contents.initialize(to: Contents(second: second, word: random.next()))
        prefix = Self.digits(random.next())
        unsafe openings = .allocate(byteCount: 2 * Opening.room, alignment: 16)
        unsafe openings.initializeMemory(as: UInt8.self, repeating: 0, count: 2 * Opening.room)
        date = HTTPDate.format(secondsSince1970: second)
        let ok = makeOpening("HTTP/1.1 200 OK", at: 0)
        unsafe contents.pointee.ok = ok
        unsafe contents.pointee.notModified = makeOpening("HTTP/1.1 304 Not Modified", at: Opening.room)
    }

    deinit {
        unsafe contents.deallocate()
        unsafe openings.deallocate()
    }

    private func makeOpening(_ statusLine: StaticString, at start: Int) -> Range<Int> {
        var text = Array("\(statusLine)\(Opening.dateName)".utf8) + date + Array("\(Opening.requestIDName)".utf8)
        unsafe withUnsafeBytes(of: prefix) { unsafe text.append(contentsOf: $0) }
        precondition(text.count + Opening.prefixLength + 2 <= Opening.room)
        unsafe UnsafeMutableRawBufferPointer(start: openings + start, count: text.count).copyBytes(from: text)
        return start..<start + text.count
    }

    /// The second since 1970 that the date is of.
    var second: Int64 { unsafe contents.pointee.second }

    func update(_ second: Int64) {
        if unsafe contents.pointee.second == second { return }
        unsafe contents.pointee.second = second
        date = HTTPDate.format(secondsSince1970: second)
        let ends = unsafe [contents.pointee.ok.upperBound, contents.pointee.notModified.upperBound]
        for end in ends {
            unsafe writeDate(to: openings + end - Self.dateFromEnd)
        }
    }

    /// How far in front of an opening's end its date begins.
    private static let dateFromEnd = dateLength + Opening.requestIDName.utf8CodeUnitCount + Opening.prefixLength

    /// Writes the date.
    func writeDate(to target: UnsafeMutableRawPointer) {
        unsafe date.withUnsafeBytes { date in
            if let text = date.baseAddress { unsafe target.copyMemory(from: text, byteCount: Self.dateLength) }
        }
    }

    /// Writes the second half of the next name.
    @inline(__always)
    func writeNextSuffix(to target: UnsafeMutableRawPointer) {
        let (high, low) = Self.digits(next())
        unsafe target.storeBytes(of: high, as: UInt64.self)
        unsafe target.storeBytes(of: low, toByteOffset: 8, as: UInt64.self)
    }

    /// Appends an answer's status line, date and name, with the line's end. Returns where the date begins in that, and the
    /// second half of the name.
    @inline(__always)
    func appendOpening(isNotModified: Bool, to output: OutputBuffer) -> (date: Int, suffix: Int) {
        let opening = unsafe isNotModified ? contents.pointee.notModified : contents.pointee.ok
        let count = opening.count
        let target = unsafe output.extend(by: Opening.room)
        // Of a length that the compiler knows: no call, and what is too much is written over.
        unsafe target.copyMemory(from: openings + opening.lowerBound, byteCount: Opening.room)
        unsafe writeNextSuffix(to: target + count)
        unsafe target.storeBytes(of: Opening.lineEnd, toByteOffset: count + Opening.prefixLength, as: UInt16.self)
        output.drop(Opening.room - count - Opening.prefixLength - 2)
        return (count - Self.dateFromEnd, count)
    }

    func nextRequestID() -> String {
        let digits = (prefix, Self.digits(next()))
        return unsafe withUnsafeBytes(of: digits) { unsafe String(decoding: $0, as: UTF8.self) }
    }

    @inline(__always)
    private func next() -> UInt64 {
        var word = unsafe contents.pointee.word &+ 0x9e37_79b9_7f4a_7c15
        unsafe contents.pointee.word = word
        word = (word ^ word >> 30) &* 0xbf58_476d_1ce4_e5b9
        word = (word ^ word >> 27) &* 0x94d0_49bb_1331_11eb
        return word ^ word >> 31
    }

    /// 16 digits, in the order in which they are stored.
    @inline(__always)
    private static func digits(_ word: UInt64) -> (UInt64, UInt64) {
        (digits(UInt32(truncatingIfNeeded: word >> 32)), digits(UInt32(truncatingIfNeeded: word)))
    }

    /// Eight digits at once: each half-byte gets a byte of its own, and those above nine move on to the letters.
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
