internal import Glibc

/// Where answers are put together before they leave: memory of a fixed size that all connections of a worker use in
/// turn, so that an answer costs no allocation.
///
/// One worker's, on its thread. Whoever appends has asked for `room` first; too much ends the process.
@safe @usableFromInline package final class OutputBuffer {
    let base: UnsafeMutableRawPointer
    @usableFromInline let capacity: Int
    let stamp: ResponseStamp
    // In memory of its own: Swift would check at each access to a property that nobody else is in the middle of one.
    @usableFromInline let length: UnsafeMutablePointer<Int>

    init(capacity: Int, stamp: ResponseStamp) {
        unsafe base = .allocate(byteCount: capacity, alignment: 16)
        unsafe length = .allocate(capacity: 1)
        unsafe length.initialize(to: 0)
        self.capacity = capacity
        self.stamp = stamp
    }

    deinit {
        unsafe base.deallocate()
        unsafe length.deallocate()
    }

    @inlinable package var count: Int { unsafe length.pointee }

    /// Bytes that can be appended.
    @inlinable package var room: Int { capacity - count }

    func removeAll() { unsafe length.pointee = 0 }

    /// Overwrites what earlier answers have left in the memory: there are tokens among them. Does nothing while an answer
    /// is in the buffer.
    ///
    /// Answers begin at the buffer's start and have no page of zeros in them, so the first such page ends what was ever
    /// written. Pages behind it were never touched, and a look at them takes no memory.
    func wipe() {
        guard count == 0 else { return }
        let page = 4096
        var end = 0
        while end < capacity, unsafe !Self.isZero(base + end, min(page, capacity - end)) { end += page }
        unsafe explicit_bzero(base, min(end, capacity))
    }

    private static func isZero(_ start: UnsafeMutableRawPointer, _ count: Int) -> Bool {
        unsafe UnsafeRawBufferPointer(start: start, count: count).allSatisfy { $0 == 0 }
    }

    /// Takes back so many bytes.
    @inline(__always)
    func drop(_ removed: Int) {
        precondition(removed >= 0 && removed <= count)
        unsafe length.pointee &-= removed
    }

    package func append(_ bytes: [UInt8]) {
        unsafe bytes.withUnsafeBytes { unsafe append($0.baseAddress, $0.count) }
    }

    package func append(_ bytes: Span<UInt8>) {
        unsafe bytes.withUnsafeBytes { unsafe append($0.baseAddress, $0.count) }
    }

    /// The same, with the digits of a number that is not negative in place of the bytes up to `end`, which are at least as
    /// many, 19 at most.
    @inline(__always)
    package func append(_ bytes: Span<UInt8>, writing number: Int64, upTo end: Int) {
        precondition(end >= 19 && end <= bytes.count)
        let target = unsafe extend(by: bytes.count)
        unsafe bytes.withUnsafeBytes { bytes in
            if let source = bytes.baseAddress { unsafe target.copyMemory(from: source, byteCount: bytes.count) }
        }
        _ = unsafe Self.write(decimal: number, before: target + end)
    }

    package func append(_ text: StaticString) {
        unsafe append(text.utf8Start, text.utf8CodeUnitCount)
    }

    /// The digits of a number that is not negative, with spaces before them up to `width`, 24 at most; more digits than
    /// that are written all the same.
    package func append(decimal number: Int64, width: Int = 1) {
        precondition(width <= 24)
        let spaces: UInt64 = 0x2020_2020_2020_2020
        var digits = (spaces, spaces, spaces)
        unsafe withUnsafeMutableBytes(of: &digits) { digits in
            guard let end = unsafe digits.baseAddress.map({ unsafe $0 + 24 }) else { return }
            let written = unsafe max(width, Self.write(decimal: number, before: end))
            unsafe append(end - written, written)
        }
    }

    /// Writes the digits, up to `end`. Returns how many they are, 19 at most.
    @inline(__always)
    static func write(decimal number: Int64, before end: UnsafeMutableRawPointer) -> Int {
        var rest = UInt64(max(0, number))
        var position = unsafe end
        let pairs = unsafe UnsafeRawPointer(Self.pairs.utf8Start)
        // Two digits for each division.
        while rest >= 10 {
            let (tens, pair) = rest.quotientAndRemainder(dividingBy: 100)
            unsafe position -= 2
            unsafe position.storeBytes(
                of: pairs.loadUnaligned(fromByteOffset: Int(truncatingIfNeeded: pair) &* 2, as: UInt16.self),
                as: UInt16.self)
            rest = tens
        }
        if unsafe rest > 0 || position == end {
            unsafe position -= 1
            unsafe position.storeBytes(of: UInt8(ascii: "0") &+ UInt8(truncatingIfNeeded: rest), as: UInt8.self)
        }
        return unsafe end - position
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

    /// Room for so many bytes more, to be written at once.
    @inline(__always)
    func extend(by added: Int) -> UnsafeMutableRawPointer {
        let count = unsafe length.pointee
        precondition(added <= capacity &- count)
        unsafe length.pointee = count &+ added
        return unsafe base + count
    }

    @inline(__always)
    func append(_ source: UnsafeRawPointer?, _ added: Int) {
        let count = unsafe length.pointee
        precondition(added <= capacity &- count)
        guard added > 0, let source = unsafe source else { return }
        unsafe (base + count).copyMemory(from: source, byteCount: added)
        unsafe length.pointee = count + added
    }
}
