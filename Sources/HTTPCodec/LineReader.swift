/// Finds the lines of a head in bytes that may arrive one at a time.
///
/// It examines each byte once, into however many pieces the head is divided.
struct LineReader {
    enum Fault: Error, Equatable {
        /// A CR without LF, or an LF without CR. RFC 9112 §2.2 permits a recipient to accept a bare LF, but requests
        /// can be smuggled past two readers that differ in this.
        case bareLineEnd
        /// A control character, such as NUL.
        case control
    }

    /// The start of the first incomplete line.
    private(set) var start = 0
    private var scanned = 0

    /// The length of the received part of the first incomplete line.
    var unfinishedLength: Int { scanned - start }

    /// The next complete line without its CRLF; nil if it is incomplete.
    /// - Parameter bytes: all received bytes of the head, including those of earlier calls.
    mutating func next(in bytes: Span<UInt8>) throws(Fault) -> Range<Int>? {
        var index = scanned
        let count = bytes.count
        while true {
            index = ByteRun.visibleEnd(bytes, from: index)
            // Tabs and bytes outside ASCII are allowed in a value.
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
