internal import HTTPCodec

/// What the server adds to every answer: its date, and its name as 32 hexadecimal digits. One worker's, on its thread.
///
/// Names are unique, not secret: 64 random bits that are one worker's, and a SplitMix64 sequence (Steele, Lea, Flood 2014)
/// begun at a random point, of which no word comes twice.
@safe final class ResponseStamp {
    static let dateLength = 29

    /// In memory of its own, which nobody checks at each access.
    private struct Contents {
        var second: Int64
        var word: UInt64
        var prefix: (UInt64, UInt64)
        var dateText: (UInt64, UInt64, UInt64, UInt64)
    }

    private let contents: UnsafeMutablePointer<Contents>
    /// RFC 9110 §6.6.1, as of the last `update`.
    private(set) var date: [UInt8] = []

    init(second: Int64) {
        var random = SystemRandomNumberGenerator()
        unsafe contents = .allocate(capacity: 1)
        unsafe contents.initialize(
            to: Contents(
                second: second - 1, word: random.next(), prefix: Self.digits(random.next()), dateText: (0, 0, 0, 0)))
        update(second)
    }

    deinit { unsafe contents.deallocate() }

    /// The second since 1970 that the date is of.
    var second: Int64 { unsafe contents.pointee.second }

    func update(_ second: Int64) {
        if unsafe contents.pointee.second == second { return }
        date = HTTPDate.format(secondsSince1970: second)
        unsafe contents.pointee.second = second
        unsafe withUnsafeMutableBytes(of: &contents.pointee.dateText) { unsafe $0.copyBytes(from: date) }
    }

    /// Writes the date.
    func writeDate(to target: UnsafeMutableRawPointer) {
        unsafe target.copyMemory(from: UnsafeRawPointer(contents) + Self.dateTextOffset, byteCount: Self.dateLength)
    }

    /// Writes the second half of the next name.
    @inline(__always)
    func writeNextSuffix(to target: UnsafeMutableRawPointer) {
        let (high, low) = Self.digits(next())
        unsafe target.storeBytes(of: high, as: UInt64.self)
        unsafe target.storeBytes(of: low, toByteOffset: 8, as: UInt64.self)
    }

    func appendDate(to output: OutputBuffer) {
        unsafe output.append(UnsafeRawPointer(contents) + Self.dateTextOffset, Self.dateLength)
    }

    func appendPrefix(to output: OutputBuffer) {
        unsafe withUnsafeBytes(of: contents.pointee.prefix) { unsafe output.append($0.baseAddress, $0.count) }
    }

    func appendNextSuffix(to output: OutputBuffer) {
        let suffix = Self.digits(next())
        unsafe withUnsafeBytes(of: suffix) { unsafe output.append($0.baseAddress, $0.count) }
    }

    func nextRequestID() -> String {
        let digits = unsafe (contents.pointee.prefix, Self.digits(next()))
        return unsafe withUnsafeBytes(of: digits) { unsafe String(decoding: $0, as: UTF8.self) }
    }

    private static let dateTextOffset = MemoryLayout<Contents>.offset(of: \.dateText)!

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
