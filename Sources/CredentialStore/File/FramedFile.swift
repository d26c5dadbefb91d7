internal import Cryptography

/// A file's content with its kind and format in front and its SHA-256 digest behind: what was cut off, or garbled by a
/// disk, is noticed before it is believed. Against people it is the seal that protects.
enum FramedFile {
    private static let markCount = 4

    enum Failure: Error {
        case damaged
        case newerFormat
    }

    /// - Parameter mark: four characters that tell one kind of file from another.
    static func encode(mark: String, format: UInt8, _ body: [UInt8]) -> [UInt8] {
        precondition(mark.utf8.count == markCount, "a mark has four characters")
        let bytes = Array(mark.utf8) + [format] + body
        return bytes + SHA256.digest(bytes)
    }

    static func decode(_ bytes: [UInt8], mark: String, format: UInt8) throws(Failure) -> ArraySlice<UInt8> {
        try decode(bytes, mark: mark, formats: format...format).body
    }

    /// For a kind of file that has been written in several formats.
    static func decode(
        _ bytes: [UInt8], mark: String, formats: ClosedRange<UInt8>
    ) throws(Failure) -> (format: UInt8, body: ArraySlice<UInt8>) {
        guard bytes.count >= markCount + 1 + SHA256.digestCount else { throw .damaged }
        let (content, digest) = (bytes.dropLast(SHA256.digestCount), bytes.suffix(SHA256.digestCount))
        guard content.starts(with: mark.utf8), SHA256.digest(Array(content)) == Array(digest) else { throw .damaged }
        let format = content[markCount]
        if format > formats.upperBound { throw .newerFormat }
        guard formats.contains(format) else { throw .damaged }
        return (format, content.dropFirst(markCount + 1))
    }

    // MARK: Several in a file

    /// One frame of a file that has several: its length (4) in front.
    static func encodePart(mark: String, format: UInt8, _ body: [UInt8]) -> [UInt8] {
        var part = FieldWriter()
        part.write(encode(mark: mark, format: format, body))
        return part.bytes
    }

    /// The frame with which `bytes` begin, and how many octets it takes up.
    static func decodePart(
        _ bytes: ArraySlice<UInt8>, mark: String, format: UInt8
    ) throws(Failure) -> (body: ArraySlice<UInt8>, count: Int) {
        var fields = FieldReader(bytes)
        guard let framed = fields.bytes() else { throw .damaged }
        return (try decode(framed, mark: mark, format: format), lengthCount + framed.count)
    }

    /// Whether a whole frame that `fits` begins anywhere behind the first octet.
    static func hasPart(
        behind bytes: ArraySlice<UInt8>, mark: String, where fits: (ArraySlice<UInt8>) -> Bool
    ) -> Bool {
        for start in bytes.indices.dropFirst().dropLast(lengthCount)
        where bytes[start + lengthCount] == mark.utf8.first && bytes[(start + lengthCount)...].starts(with: mark.utf8) {
            if fits(bytes[start...]) { return true }
        }
        return false
    }

    private static let lengthCount = 4
}
