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
}
