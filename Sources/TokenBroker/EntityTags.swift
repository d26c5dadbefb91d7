import HTTPCodec
import OAuth

/// The entity tags of `If-None-Match` (RFC 9110 §13.1.2).
struct EntityTags {
    /// The index of the field line that is read next.
    private var line = 0
    private var start = 0

    /// Whether `tag` is among the tags, by weak comparison (RFC 9110 §13.1.2).
    /// - Parameters:
    ///   - tag: an entity tag with its quotes.
    ///   - lines: the request's field lines.
    ///   - bytes: the bytes that the ranges of `lines` refer to.
    static func contain(_ tag: Span<UInt8>, _ lines: Span<FieldLine>, _ bytes: Span<UInt8>) -> Bool {
        var tags = EntityTags()
        while let other = tags.next(lines, bytes) {
            let text = bytes.extracting(other)
            if ByteRun.equal(text, tag) || text.count == 1 && text[0] == UInt8(ascii: "*") { return true }
        }
        return false
    }

    /// The highest version among the tags: the newest version that the caller has.
    static func version(_ lines: Span<FieldLine>, _ bytes: Span<UInt8>) -> Int64? {
        var tags = EntityTags()
        var highest: Int64?
        while let tag = tags.next(lines, bytes) {
            if let version = version(bytes.extracting(tag)) { highest = max(highest ?? version, version) }
        }
        return highest
    }

    /// The number at the beginning of a tag.
    private static func version(_ tag: Span<UInt8>) -> Int64? {
        guard tag.count > 1, tag[0] == UInt8(ascii: "\"") else { return nil }
        var (version, digits): (Int64, Int) = (0, 0)
        while 1 + digits < tag.count, tag[1 + digits].isDigit {
            let (product, isTooLarge) = version.multipliedReportingOverflow(by: 10)
            let (sum, isLargeSum) = product.addingReportingOverflow(Int64(tag[1 + digits] - UInt8(ascii: "0")))
            digits += 1
            if isTooLarge || isLargeSum || digits > 19 { return nil }
            version = sum
        }
        return digits > 0 ? version : nil
    }

    /// The next tag, without the prefix `W/`.
    private mutating func next(_ lines: Span<FieldLine>, _ bytes: Span<UInt8>) -> Range<Int>? {
        while line < lines.count {
            let value = lines[line].value
            guard case .ifNoneMatch = lines[line].known, start <= value.count else {
                (line, start) = (line + 1, 0)
                continue
            }
            // The broker's tags consist of digits and hyphens, so splitting at commas cannot cut them.
            let first = value.lowerBound + start
            let end = ByteRun.first(UInt8(ascii: ","), bytes, first..<value.upperBound)
            start = end + 1 - value.lowerBound
            var tag = first..<end
            while let byte = tag.first, bytes[byte] == 0x20 || bytes[byte] == 0x09 { tag = byte + 1..<end }
            while let byte = tag.last, bytes[byte] == 0x20 || bytes[byte] == 0x09 { tag = tag.lowerBound..<byte }
            if tag.count >= 2, bytes[tag.lowerBound] == UInt8(ascii: "W"),
                bytes[tag.lowerBound + 1] == UInt8(ascii: "/")
            {
                tag = tag.lowerBound + 2..<tag.upperBound
                if tag.isEmpty { continue }
            }
            if !tag.isEmpty { return tag }
        }
        return nil
    }
}
