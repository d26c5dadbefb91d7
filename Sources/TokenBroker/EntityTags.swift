internal import HTTPCodec
internal import OAuth

/// The entity tags of `If-None-Match` (RFC 9110 §13.1.2).
struct EntityTags {
    /// Where the next tag is looked for.
    private var line = 0
    private var start = 0

    /// Whether one of the tags is this one. Weak comparison, as the field asks for.
    /// - Parameters:
    ///   - tag: with its quotes.
    ///   - lines: the request's field lines.
    ///   - bytes: what the lines count in.
    static func contain(_ tag: Span<UInt8>, _ lines: Span<FieldLine>, _ bytes: Span<UInt8>) -> Bool {
        var tags = EntityTags()
        while let other = tags.next(lines, bytes) {
            let text = bytes.extracting(other)
            if ByteRun.equal(text, tag) || text.count == 1 && text[0] == UInt8(ascii: "*") { return true }
        }
        return false
    }

    /// The highest version that the caller says it holds.
    static func version(_ lines: Span<FieldLine>, _ bytes: Span<UInt8>) -> Int64? {
        var tags = EntityTags()
        var highest: Int64?
        while let tag = tags.next(lines, bytes) {
            if let version = version(bytes.extracting(tag)) { highest = max(highest ?? version, version) }
        }
        return highest
    }

    /// The number that a tag begins with.
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

    /// The next tag, without what says that it is a weak one.
    private mutating func next(_ lines: Span<FieldLine>, _ bytes: Span<UInt8>) -> Range<Int>? {
        while line < lines.count {
            let value = lines[line].value
            guard case .ifNoneMatch = lines[line].known, start <= value.count else {
                (line, start) = (line + 1, 0)
                continue
            }
            // Our tags hold digits and hyphens, so splitting at commas cannot cut one.
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
