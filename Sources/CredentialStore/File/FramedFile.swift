internal import Cryptography
internal import Glibc

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

    /// What is wrong with a file that did not decode.
    /// - Parameter expected: how many octets the file has by what it says of its fields; nil where that is garbled.
    static func flaw(_ failure: Failure, of bytes: [UInt8], expected: Int?) -> FileFlaw {
        if failure == .newerFormat { return .newerFormat }
        if bytes.isEmpty { return .empty }
        let (content, digest) = (bytes.dropLast(SHA256.digestCount), bytes.suffix(SHA256.digestCount))
        if SHA256.digest(Array(content)) == Array(digest) { return .otherFile }
        let isShort = bytes.count < markCount + 1 + SHA256.digestCount || expected.map { bytes.count < $0 } ?? false
        return isShort ? .truncated : .checksum
    }

    // MARK: Several in a file

    /// What is wrong with a frame that did not decode, and with which `bytes` begin.
    static func flaw(_ failure: Failure, ofPart bytes: ArraySlice<UInt8>) -> FileFlaw {
        if failure == .newerFormat { return .newerFormat }
        if bytes.isEmpty { return .empty }
        var fields = FieldReader(bytes)
        guard let count = fields.integer(UInt32.self), bytes.count >= lengthCount + Int(count) else {
            return .truncated
        }
        return .checksum
    }

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
        let mark = Array(mark.utf8)
        var rest = bytes.dropFirst(1 + lengthCount)
        while let start = firstIndex(of: mark[0], in: rest) {
            if rest[start...].starts(with: mark), fits(bytes[(start - lengthCount)...]) { return true }
            rest = rest[(start + 1)...]
        }
        return false
    }

    /// Most of a file is zeros, which the C library's search passes fast.
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
