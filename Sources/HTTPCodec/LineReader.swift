/// Finds the lines of a head in bytes that may arrive one at a time.
///
/// It remembers how far it has looked: a byte is examined once, however the head is cut up.
struct LineReader {
    enum Fault: Error, Equatable {
        /// A CR without LF, or an LF without CR (RFC 9112 §2.2 lets a recipient accept a bare LF; two readers that
        /// differ in this are how requests are smuggled).
        case bareLineEnd
        /// A control character, such as NUL.
        case control
    }

    /// Where the first unfinished line begins.
    private(set) var start = 0
    private var scanned = 0

    /// How much of the first unfinished line has arrived, its line end not counted.
    var unfinishedLength: Int { scanned - start }

    /// The next whole line without its CRLF, or nil when it has not all arrived.
    /// - Parameter bytes: the head from its first byte on, with everything given before.
    mutating func next(in bytes: Span<UInt8>) throws(Fault) -> Range<Int>? {
        var index = scanned
        let count = bytes.count
        while true {
            index = ByteRun.visibleEnd(bytes, from: index)
            // Tabs, and bytes beyond ASCII, may stand in a value.
            guard index < count, !ByteClass.isForbiddenControl(bytes[index]) else { break }
            index += 1
        }
        scanned = index
        guard index < count else { return nil }
        switch bytes[index] {
        case UInt8(ascii: "\r"):
            guard index + 1 < count else { return nil }
            guard bytes[index + 1] == UInt8(ascii: "\n") else { throw .bareLineEnd }
        case UInt8(ascii: "\n"):
            throw .bareLineEnd
        default:
            throw .control
        }
        let line = start..<index
        start = index + 2
        scanned = start
        return line
    }
}
