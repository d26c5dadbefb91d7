internal import Glibc

/// Request heads with the beginning of what each is answered, in a fixed number of places of a fixed size: whoever sends
/// the same head again is recognised by comparing bytes. Nothing is allocated after the start, and a place costs no
/// memory until it is used.
///
/// One worker's, on its thread. A head holds an API key, so what is not used any more is to be wiped.
@safe package final class HeadMemory {
    package static let longestHead = 640
    package static let longestOpening = 896

    private struct Lengths {
        var head: UInt16 = 0
        var opening: UInt16 = 0
    }

    private let base: UnsafeMutableRawPointer
    private let lengths: UnsafeMutablePointer<Lengths>
    private let places: Int
    private static var stride: Int { longestHead + longestOpening }

    /// - Parameter places: a power of two.
    package init(places: Int) {
        precondition(places > 0 && places & (places - 1) == 0)
        self.places = places
        // The kernel gives pages as they are written to; calloc leaves large blocks alone.
        guard let base = unsafe calloc(places, Self.stride) else { preconditionFailure("no memory for request heads") }
        unsafe self.base = base
        unsafe lengths = .allocate(capacity: places)
        unsafe lengths.initialize(repeating: Lengths(), count: places)
    }

    deinit {
        for place in 0..<places { wipe(place) }
        unsafe free(base)
        unsafe lengths.deallocate()
    }

    /// The length of the head at that place where `bytes` begins with it; 0 where it does not.
    package func recognise(_ bytes: Span<UInt8>, at place: Int) -> Int {
        precondition(place >= 0 && place < places)
        let length = unsafe Int(lengths[place].head)
        guard length > 0, length <= bytes.count else { return 0 }
        return unsafe bytes.withUnsafeBytes { bytes in
            guard let start = bytes.baseAddress else { return 0 }
            return unsafe memcmp(start, base + place * Self.stride, length) == 0 ? length : 0
        }
    }

    /// Where a head is kept, if it is: each has one place, which it shares with others. And a number that tells it from
    /// most of them; never 0.
    package func place(of head: Span<UInt8>) -> (place: Int, mark: UInt32) {
        var hash: UInt64 = 0x9e37_79b9_7f4a_7c15
        var index = 0
        let bytes = unsafe head.bytes
        while index + 8 <= head.count {
            let word = unsafe bytes.unsafeLoadUnaligned(fromUncheckedByteOffset: index, as: UInt64.self)
            hash = (hash ^ word) &* 0xff51_afd7_ed55_8ccd
            hash ^= hash >> 32
            index += 8
        }
        while index < head.count {
            hash = (hash ^ UInt64(head[index])) &* 0xff51_afd7_ed55_8ccd
            hash ^= hash >> 32
            index += 1
        }
        return (Int(truncatingIfNeeded: hash) & (places - 1), UInt32(truncatingIfNeeded: hash >> 32) | 1)
    }

    /// Keeps a head and the beginning of its answer, which is what `output` holds from `start` on, in place of what is
    /// there. False where either is too long.
    package func keep(_ head: Span<UInt8>, _ output: OutputBuffer, from start: Int, at place: Int) -> Bool {
        precondition(place >= 0 && place < places)
        let opening = output.count - start
        guard head.count > 0, head.count <= Self.longestHead, opening <= Self.longestOpening else { return false }
        let target = unsafe base + place * Self.stride
        unsafe head.withUnsafeBytes { head in
            unsafe UnsafeMutableRawBufferPointer(start: target, count: Self.longestHead).copyMemory(from: head)
        }
        unsafe output.withBytes(from: start) { bytes in
            unsafe UnsafeMutableRawBufferPointer(start: target + Self.longestHead, count: Self.longestOpening)
                .copyMemory(from: bytes)
        }
        unsafe lengths[place] = Lengths(head: UInt16(head.count), opening: UInt16(opening))
        return true
    }

    /// Appends the beginning of the answer that is kept there.
    package func append(openingAt place: Int, to output: OutputBuffer) {
        precondition(place >= 0 && place < places)
        unsafe output.copy(base + place * Self.stride + Self.longestHead, Int(lengths[place].opening))
    }

    /// Overwrites what is kept there.
    package func wipe(_ place: Int) {
        precondition(place >= 0 && place < places)
        if unsafe lengths[place].head == 0 { return }
        unsafe lengths[place] = Lengths()
        unsafe explicit_bzero(base + place * Self.stride, Self.stride)
    }
}
