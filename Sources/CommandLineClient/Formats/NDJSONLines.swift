import ExternalText
import JSON

/// The lines of a file in the form of `POST /credentials/import`. It holds one line and one piece of the file at most.
struct NDJSONLines {
    private let input: ImportInput
    private var offset = 0
    private var buffer: [UInt8] = []
    private var start = 0
    /// Up to where the buffer has no line's end.
    private var searched = 0
    private var number = 0
    private var isAtEnd = false

    /// The longest line, in bytes, without its end.
    static let longest = 1 << 20

    private static let lineFeed: UInt8 = 0x0a

    init(_ input: ImportInput) { self.input = input }

    /// Whether the first line that is not empty is one of this form: an object that names a storage key.
    static func begins(_ bytes: [UInt8]) -> Bool {
        let start = bytes.starts(with: [0xef, 0xbb, 0xbf]) ? bytes[3...] : bytes[...]
        let line = start.drop { [0x20, 0x09, 0x0a, 0x0d].contains($0) }.prefix { $0 != lineFeed }
        guard line.first == UInt8(ascii: "{"), line.count <= longest else { return false }
        return (try? JSONValue(parsing: Array(line)))?["storage_key"] != nil
    }

    /// The next line that is not empty; nil at the end. A line that is too long, or that cannot be an object, is refused.
    mutating func next() throws(CommandError) -> ImportItem? {
        while let (bytes, isTooLong) = try line() {
            number += 1
            var line = bytes
            if number == 1, line.starts(with: [0xef, 0xbb, 0xbf]) { line.removeFirst(3) }
            if line.last == 0x0d { line.removeLast() }
            if isTooLong || line.count > Self.longest {
                return ImportItem(number: number, content: .refused("it has more than \(Self.longest) bytes"))
            }
            guard let first = line.first(where: { $0 != 0x20 && $0 != 0x09 }) else { continue }
            if first != UInt8(ascii: "{") {
                return ImportItem(
                    number: number,
                    content: .refused(
                        line.starts(with: "eyJ".utf8)
                            ? "it is sealed: open it with the private key of the export first"
                            : "it is no JSON object"))
            }
            return ImportItem(number: number, content: .line(line))
        }
        return nil
    }

    /// The next line without its line feed; nil at the end. Of one that is too long only that is known.
    private mutating func line() throws(CommandError) -> (bytes: [UInt8], isTooLong: Bool)? {
        var isTooLong = false
        while true {
            if let end = buffer[searched...].firstIndex(of: Self.lineFeed) {
                let bytes = isTooLong ? [] : Array(buffer[start..<end])
                (start, searched) = (end + 1, end + 1)
                return (bytes, isTooLong)
            }
            if isAtEnd {
                defer { (buffer, start, searched) = ([], 0, 0) }
                return isTooLong ? ([], true) : start == buffer.count ? nil : (Array(buffer[start...]), false)
            }
            // A carriage return, and a mark before the first line, do not count.
            if buffer.count - start > Self.longest + 4 { isTooLong = true }
            buffer = isTooLong ? [] : Array(buffer[start...])
            (start, searched) = (0, buffer.count)
            let piece = try input.piece(at: offset)
            offset += piece.count
            isAtEnd = piece.isEmpty
            buffer += piece
        }
    }
}
