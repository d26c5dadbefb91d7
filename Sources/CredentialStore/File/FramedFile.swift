import Cryptography
import Glibc

/// The content of a file with its kind and format in front and its SHA-256 digest behind, so that truncation and disk
/// errors are noticed. Protection against deliberate changes comes from the seals of the records.
enum FramedFile {
    private static let markCount = 4

    enum Failure: Error {
        case damaged
        case newerFormat
    }

    /// - Parameter mark: four characters that identify the kind of the file.
    static func encode(mark: String, format: UInt8, _ body: [UInt8]) -> [UInt8] {
        precondition(mark.utf8.count == markCount, "a mark has four characters")
        let bytes = Array(mark.utf8) + [format] + body
        return bytes + SHA256.digest(bytes)
    }

    static func decode(_ bytes: [UInt8], mark: String, format: UInt8) throws(Failure) -> ArraySlice<UInt8> {
        try decode(bytes, mark: mark, formats: format...format).body
    }

    /// Decodes a kind of file that has several formats.
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

    /// The flaw of a file that did not decode.
    /// - Parameter expected: the length of the file in octets that follows from its fields; nil when unknown.
    static func flaw(_ failure: Failure, of bytes: [UInt8], expected: Int?) -> FileFlaw {
        if failure == .newerFormat { return .newerFormat }
        if bytes.isEmpty { return .empty }
        let (content, digest) = (bytes.dropLast(SHA256.digestCount), bytes.suffix(SHA256.digestCount))
        if SHA256.digest(Array(content)) == Array(digest) { return .otherFile }
        let isShort = bytes.count < markCount + 1 + SHA256.digestCount || expected.map { bytes.count < $0 } ?? false
        return isShort ? .truncated : .checksum
    }

    // MARK: Files of several frames

    /// The flaw of a frame at the beginning of `bytes` that did not decode.
    static func flaw(_ failure: Failure, ofPart bytes: ArraySlice<UInt8>) -> FileFlaw {
        if failure == .newerFormat { return .newerFormat }
        if bytes.isEmpty { return .empty }
        var fields = FieldReader(bytes)
        guard let count = fields.integer(UInt32.self), bytes.count >= lengthCount + Int(count) else {
            return .truncated
        }
        return .checksum
    }

    /// Encodes one frame of a file that has several: the length (4), then the framed content.
    static func encodePart(mark: String, format: UInt8, _ body: [UInt8]) -> [UInt8] {
        var part = FieldWriter()
        part.write(encode(mark: mark, format: format, body))
        return part.bytes
    }

    /// The content of the frame at the beginning of `bytes`, and the length of the frame in octets.
    static func decodePart(
        _ bytes: ArraySlice<UInt8>, mark: String, format: UInt8
    ) throws(Failure) -> (body: ArraySlice<UInt8>, count: Int) {
        let part = try decodePart(bytes, mark: mark, formats: format...format)
        return (part.body, part.count)
    }

    /// The same for a kind of file whose frames have several formats.
    static func decodePart(
        _ bytes: ArraySlice<UInt8>, mark: String, formats: ClosedRange<UInt8>
    ) throws(Failure) -> (format: UInt8, body: ArraySlice<UInt8>, count: Int) {
        var fields = FieldReader(bytes)
        guard let framed = fields.bytes() else { throw .damaged }
        let (format, body) = try decode(framed, mark: mark, formats: formats)
        return (format, body, lengthCount + framed.count)
    }

    /// Whether a whole frame for which `fits` is true begins anywhere behind the first octet.
    static func hasPart(
        behind bytes: ArraySlice<UInt8>, mark: String, where fits: (ArraySlice<UInt8>) -> Bool
    ) -> Bool {
        let mark = Array(mark.utf8)
        var rest = bytes.dropFirst(1 + lengthCount)
        while let start = firstIndex(of: mark[0], in: rest) {
            if rest[start...].starts(with: mark), fits(bytes[(start - lengthCount)...]) { return true }
            rest = rest[(start + 1)...]
        }
        return false
    }

    /// Uses memchr, because most of the file is zeros, over which memchr is fast.
    private static func firstIndex(of octet: UInt8, in bytes: ArraySlice<UInt8>) -> Int? {
        let offset = unsafe bytes.withUnsafeBytes { buffer -> Int? in
            guard let base = buffer.baseAddress, let found = unsafe memchr(base, CInt(octet), buffer.count) else {
                return nil
            }
            return unsafe base.distance(to: UnsafeRawPointer(found))
        }
        return offset.map { bytes.startIndex + $0 }
    }

    private static let lengthCount = 4
}
