/// Where answers are put together before they leave: memory of a fixed size that all connections of a worker use in
/// turn, so that an answer costs no allocation.
///
/// One worker's, on its thread. Whoever appends has asked for `room` first; too much ends the process.
@safe package final class OutputBuffer {
    let base: UnsafeMutableRawPointer
    let capacity: Int
    // In memory of its own: Swift would check at each access to a property that nobody else is in the middle of one.
    private let length: UnsafeMutablePointer<Int>

    init(capacity: Int) {
        unsafe base = .allocate(byteCount: capacity, alignment: 16)
        unsafe length = .allocate(capacity: 1)
        unsafe length.initialize(to: 0)
        self.capacity = capacity
    }

    deinit {
        unsafe base.deallocate()
        unsafe length.deallocate()
    }

    package var count: Int { unsafe length.pointee }

    /// Bytes that can be appended.
    package var room: Int { capacity - count }

    func removeAll() { unsafe length.pointee = 0 }

    package func append(_ bytes: [UInt8]) {
        unsafe bytes.withUnsafeBytes { unsafe append($0.baseAddress, $0.count) }
    }

    package func append(_ bytes: Span<UInt8>) {
        unsafe bytes.withUnsafeBytes { unsafe append($0.baseAddress, $0.count) }
    }

    package func append(_ text: StaticString) {
        unsafe append(text.utf8Start, text.utf8CodeUnitCount)
    }

    /// The digits of a number that is not negative, with spaces before them up to `width`, 24 at most; more digits than
    /// that are written all the same.
    package func append(decimal number: Int64, width: Int = 1) {
        var digits: (UInt64, UInt64, UInt64) = (0, 0, 0)
        unsafe withUnsafeMutableBytes(of: &digits) { digits in
            let start = unsafe Self.write(decimal: number, width: width, into: digits)
            unsafe append(digits.baseAddress.map { unsafe UnsafeRawPointer($0 + start) }, digits.count - start)
        }
    }

    /// Writes the digits to the end of `digits` and returns where they begin.
    static func write(decimal number: Int64, width: Int, into digits: UnsafeMutableRawBufferPointer) -> Int {
        var rest = UInt64(max(0, number))
        var start = digits.count
        // Two digits for each division.
        while rest >= 100 {
            let pair = unsafe pairs.utf8Start + Int(truncatingIfNeeded: rest % 100) * 2
            rest /= 100
            start -= 2
            unsafe digits[start] = pair[0]
            unsafe digits[start + 1] = pair[1]
        }
        repeat {
            start -= 1
            unsafe digits[start] = UInt8(ascii: "0") + UInt8(truncatingIfNeeded: rest % 10)
            rest /= 10
        } while rest != 0
        while digits.count - start < width {
            start -= 1
            unsafe digits[start] = UInt8(ascii: " ")
        }
        return start
    }

    private static let pairs: StaticString = """
        00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748495051525354\
        555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899
        """

    /// What was appended from `start` on.
    func withBytes<R>(from start: Int = 0, _ body: (UnsafeRawBufferPointer) -> R) -> R {
        precondition(start <= count)
        return unsafe body(UnsafeRawBufferPointer(start: base + start, count: count - start))
    }

    @inline(__always)
    func append(_ source: UnsafeRawPointer?, _ added: Int) {
        let count = unsafe length.pointee
        precondition(added <= capacity - count)
        guard added > 0, let source = unsafe source else { return }
        unsafe (base + count).copyMemory(from: source, byteCount: added)
        unsafe length.pointee = count + added
    }
}
