import HTTPServer
import Synchronization

/// Takes the lines of a content out of its pieces. It holds one line at most.
struct ContentLines {
    /// A line with its number, from 1.
    struct Line: Sendable {
        let number: Int
        /// Without its end; nil for a line that is too long.
        let bytes: [UInt8]?
    }

    /// The longest line, in bytes, without its end.
    static let longest = 1 << 20

    private var rest: [UInt8] = []
    private var isTooLong = false
    private var number = 0
    private var hasBegun = false

    private static let lineFeed = UInt8(ascii: "\n")
    private static let byteOrderMark: [UInt8] = [0xef, 0xbb, 0xbf]

    /// The lines that end in this piece. Empty ones are left out, and counted.
    mutating func lines(of piece: [UInt8]) -> [Line] {
        var lines: [Line] = []
        var start = 0
        while let end = piece[start...].firstIndex(of: Self.lineFeed) {
            take(piece[start..<end])
            if let line = endLine() { lines.append(line) }
            start = end + 1
        }
        take(piece[start...])
        return lines
    }

    /// The number of the line that has not ended.
    var nextNumber: Int { number + 1 }

    /// What stands behind the last line's end; nil for nothing.
    mutating func last() -> Line? { endLine() }

    private mutating func take(_ bytes: ArraySlice<UInt8>) {
        if isTooLong { return }
        // A carriage return, and a mark before the first line, do not count.
        if rest.count + bytes.count > Self.longest + 1 + Self.byteOrderMark.count {
            (rest, isTooLong) = ([], true)
        } else {
            rest += bytes
        }
    }

    private mutating func endLine() -> Line? {
        number += 1
        defer { (rest, isTooLong) = ([], false) }
        if !hasBegun, !isTooLong, rest.starts(with: Self.byteOrderMark) { rest.removeFirst(Self.byteOrderMark.count) }
        hasBegun = true
        if rest.last == UInt8(ascii: "\r") { rest.removeLast() }
        if isTooLong || rest.count > Self.longest { return Line(number: number, bytes: nil) }
        if rest.allSatisfy({ $0 == UInt8(ascii: " ") || $0 == UInt8(ascii: "\t") }) { return nil }
        return Line(number: number, bytes: rest)
    }
}

extension Call {
    /// The content, in pieces. A request that no server has brought has it in one.
    var content: RequestContent {
        if let content = request.content { return content }
        let pieces = BodyOnce(request.body)
        return RequestContent { () throws(ContentFault) in pieces.take() }
    }
}

/// A content that has arrived.
private final class BodyOnce: Sendable {
    private let body: Mutex<[UInt8]?>

    init(_ body: [UInt8]) { self.body = Mutex(body.isEmpty ? nil : body) }

    func take() -> [UInt8]? {
        body.withLock { body in
            defer { body = nil }
            return body
        }
    }
}
