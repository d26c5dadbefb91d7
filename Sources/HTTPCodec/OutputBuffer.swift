import Glibc

/// The buffer in which a worker writes its responses before it sends them. All connections of the worker share it, so
/// that a response needs no allocation. The buffer grows as needed, and `wipe` frees the additional memory.
///
/// For one thread. Growing moves the content.
@safe @usableFromInline package final class OutputBuffer {
    @unsafe @usableFromInline struct Memory {
        @usableFromInline var base: UnsafeMutableRawPointer
        @usableFromInline var capacity: Int
        @usableFromInline var count = 0
        /// The most bytes that it contained since the last `wipe`.
        var written = 0

        init(capacity: Int) {
            unsafe base = .allocate(byteCount: capacity, alignment: 16)
            unsafe self.capacity = capacity
        }
    }

    // Allocated separately, because Swift checks exclusive access at run time for each property of a class.
    @usableFromInline let memory: UnsafeMutablePointer<Memory>
    private let firstCapacity: Int

    /// - Parameter capacity: the initial capacity in bytes, at least 1.
    package init(capacity: Int) {
        precondition(capacity >= 1)
        firstCapacity = capacity
        unsafe memory = .allocate(capacity: 1)
        unsafe memory.initialize(to: Memory(capacity: capacity))
    }

    deinit {
        removeAll()
        wipe()
        unsafe memory.pointee.base.deallocate()
        unsafe memory.deallocate()
    }

    @inlinable package var count: Int { unsafe memory.pointee.count }

    package func removeAll() { removeLast(count) }

    /// Removes the last `removed` bytes.
    package func removeLast(_ removed: Int) {
        precondition(removed >= 0 && removed <= count)
        unsafe memory.pointee.written = max(memory.pointee.written, memory.pointee.count)
        unsafe memory.pointee.count -= removed
    }

    /// Removes the first `removed` bytes.
    package func removeFirst(_ removed: Int) {
        precondition(removed >= 0 && removed <= count)
        let rest = count - removed
        if rest > 0 { unsafe memmove(memory.pointee.base, memory.pointee.base + removed, rest) }
        removeLast(removed)
    }

    /// Overwrites the bytes of earlier responses, which contain tokens. Does nothing while a response is in the buffer.
    package func wipe() {
        guard count == 0 else { return }
        unsafe explicit_bzero(memory.pointee.base, memory.pointee.written)
        unsafe memory.pointee.written = 0
        guard unsafe memory.pointee.capacity > firstCapacity else { return }
        unsafe memory.pointee.base.deallocate()
        unsafe memory.pointee = Memory(capacity: firstCapacity)
    }

    // MARK: Appending

    @inlinable package func append(_ bytes: Span<UInt8>) {
        unsafe bytes.withUnsafeBytes { unsafe append($0.baseAddress, $0.count) }
    }

    @inlinable package func append(_ text: StaticString) {
        unsafe append(UnsafeRawPointer(text.utf8Start), text.utf8CodeUnitCount)
    }

    package func append(contentsOf other: OutputBuffer) {
        unsafe append(other.memory.pointee.base, other.count)
    }

    /// Appends the decimal digits of a number, which must not be negative.
    package func append(decimal number: Int64) {
        var digits: (UInt64, UInt64, UInt64) = (0, 0, 0)
        unsafe withUnsafeMutableBytes(of: &digits) { digits in
            guard let start = digits.baseAddress else { return }
            let pairs = unsafe UnsafeRawPointer(Self.pairs.utf8Start)
            var (rest, position) = (UInt64(max(0, number)), 24)
            // Each division yields two digits.
            while rest >= 10 {
                let (tens, pair) = rest.quotientAndRemainder(dividingBy: 100)
                position &-= 2
                let text = unsafe pairs.loadUnaligned(
                    fromByteOffset: Int(truncatingIfNeeded: pair) &* 2, as: UInt16.self)
                unsafe start.storeBytes(of: text, toByteOffset: position, as: UInt16.self)
                rest = tens
            }
            if rest > 0 || position == 24 {
                position &-= 1
                let digit = UInt8(ascii: "0") &+ UInt8(truncatingIfNeeded: rest)
                unsafe start.storeBytes(of: digit, toByteOffset: position, as: UInt8.self)
            }
            unsafe append(start + position, 24 &- position)
        }
    }

    /// The number of digits that `append(decimal:)` writes.
    package static func digits(of number: Int64) -> Int {
        var (count, bound) = (1, Int64(10))
        while number >= bound, count < 19 {
            count += 1
            bound = count < 19 ? bound * 10 : .max
        }
        return count
    }

    /// Appends 16 bytes: those of the first word, then those of the second, each in memory order.
    @inline(__always)
    func append(_ first: UInt64, _ second: UInt64) {
        let target = unsafe extend(by: 16)
        unsafe target.storeBytes(of: first, as: UInt64.self)
        unsafe target.storeBytes(of: second, toByteOffset: 8, as: UInt64.self)
    }

    private static let pairs: StaticString = """
        00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748495051525354\
        555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899
        """

    @unsafe @inlinable func append(_ source: UnsafeRawPointer?, _ added: Int) {
        guard added > 0, let source = unsafe source else { return }
        unsafe extend(by: added).copyMemory(from: source, byteCount: added)
    }

    /// Extends the content by `added` bytes, which the caller must write at once.
    @unsafe @inlinable func extend(by added: Int) -> UnsafeMutableRawPointer {
        if unsafe added > memory.pointee.capacity &- memory.pointee.count { grow(by: added) }
        let count = unsafe memory.pointee.count
        unsafe memory.pointee.count = count &+ added
        return unsafe memory.pointee.base + count
    }

    @usableFromInline @inline(never) func grow(by added: Int) {
        let old = unsafe memory.pointee
        var new = unsafe Memory(capacity: max(old.capacity * 2, old.count + added))
        unsafe new.base.copyMemory(from: old.base, byteCount: old.count)
        unsafe new.count = old.count
        unsafe explicit_bzero(old.base, max(old.count, old.written))
        unsafe old.base.deallocate()
        unsafe memory.pointee = new
    }

    // MARK: Reading

    /// Calls `body` with the content from `start` up to `end`; without an end, up to the last byte.
    package func withBytes<R>(from start: Int = 0, to end: Int? = nil, _ body: (Span<UInt8>) -> R) -> R {
        let end = end ?? count
        precondition(start >= 0 && start <= end && end <= count)
        let bytes = unsafe UnsafeRawBufferPointer(start: memory.pointee.base + start, count: end - start)
        return unsafe body(bytes.bindMemory(to: UInt8.self).span)
    }
}
