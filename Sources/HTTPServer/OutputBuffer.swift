/// Where a worker puts answers together before they leave: memory of a fixed size that every connection uses in turn, so
/// that an answer costs no allocation. What the peer does not take at once goes to the connection's own.
///
/// One worker's, on its thread. Whoever appends has asked for `room` first; too much ends the process.
@safe package final class OutputBuffer {
    private let base: UnsafeMutableRawPointer
    private let capacity: Int
    package private(set) var count = 0

    init(capacity: Int) {
        unsafe base = .allocate(byteCount: capacity, alignment: 16)
        self.capacity = capacity
    }

    deinit { unsafe base.deallocate() }

    /// Bytes that can be appended.
    package var room: Int { capacity - count }

    func removeAll() { count = 0 }

    /// Takes back what was appended from `start` on.
    package func remove(from start: Int) {
        precondition(start <= count)
        count = start
    }

    package func append(_ bytes: [UInt8]) {
        unsafe bytes.withUnsafeBytes { unsafe copy($0.baseAddress, $0.count) }
    }

    package func append(_ bytes: Span<UInt8>) {
        unsafe bytes.withUnsafeBytes { unsafe copy($0.baseAddress, $0.count) }
    }

    package func append(_ text: StaticString) {
        unsafe copy(text.utf8Start, text.utf8CodeUnitCount)
    }

    package func append(_ byte: UInt8) {
        precondition(count < capacity)
        unsafe base.storeBytes(of: byte, toByteOffset: count, as: UInt8.self)
        count += 1
    }

    /// The digits of a number that is not negative, with spaces before them up to `width`; more digits than that are
    /// written all the same.
    package func append(decimal number: Int64, width: Int = 1) {
        var digits: (UInt64, UInt64, UInt64) = (0, 0, 0)
        unsafe withUnsafeMutableBytes(of: &digits) { digits in
            var rest = UInt64(number)
            var start = 24
            repeat {
                start -= 1
                unsafe digits[start] = UInt8(ascii: "0") + UInt8(truncatingIfNeeded: rest % 10)
                rest /= 10
            } while rest != 0
            while 24 - start < width {
                start -= 1
                unsafe digits[start] = UInt8(ascii: " ")
            }
            unsafe copy(digits.baseAddress.map { unsafe UnsafeRawPointer($0 + start) }, 24 - start)
        }
    }

    /// 16 hexadecimal digits.
    func append(hexadecimal word: UInt64) {
        precondition(room >= 16)
        unsafe base.storeBytes(of: Self.digits(UInt32(word >> 32)), toByteOffset: count, as: UInt64.self)
        unsafe base.storeBytes(
            of: Self.digits(UInt32(truncatingIfNeeded: word)), toByteOffset: count + 8, as: UInt64.self)
        count += 16
    }

    /// What was appended from `start` on.
    func withBytes<R>(from start: Int = 0, _ body: (UnsafeRawBufferPointer) -> R) -> R {
        precondition(start <= count)
        return unsafe body(UnsafeRawBufferPointer(start: base + start, count: count - start))
    }

    func copy(_ source: UnsafeRawPointer?, _ length: Int) {
        precondition(length <= room)
        guard length > 0, let source = unsafe source else { return }
        unsafe (base + count).copyMemory(from: source, byteCount: length)
        count += length
    }

    /// Eight digits at once: each half-byte gets a byte of its own, and those above nine move on to the letters.
    private static func digits(_ word: UInt32) -> UInt64 {
        var spread = UInt64(word)
        spread = (spread << 16 | spread) & 0x0000_ffff_0000_ffff
        spread = (spread << 8 | spread) & 0x00ff_00ff_00ff_00ff
        spread = (spread << 4 | spread) & 0x0f0f_0f0f_0f0f_0f0f
        let letters = (spread &+ 0x0606_0606_0606_0606) >> 4 & 0x0101_0101_0101_0101
        let text = spread &+ 0x3030_3030_3030_3030 &+ letters &* 39
        return text.byteSwapped.littleEndian
    }
}
