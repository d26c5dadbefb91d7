/// The parts of a request target as offsets into the head (RFC 9112 §3.2).
struct RequestTarget {
    /// Empty in an absolute-form target without a path.
    var path: Range<Int>
    var query: Range<Int>?
    /// Present in absolute form only.
    var authority: Range<Int>?

    /// Reads origin-form, absolute-form (`http` and `https`) or asterisk-form; nil for anything else, which includes
    /// fragments, broken percent escapes and every character that RFC 3986 has no place for.
    init?(_ bytes: Span<UInt8>, _ range: Range<Int>, isOptions: Bool) {
        guard let first = range.first else { return nil }
        if bytes[first] == UInt8(ascii: "*") {
            guard range.count == 1, isOptions else { return nil }
            path = range
            return
        }
        var pathStart = first
        if bytes[first] != UInt8(ascii: "/") {
            guard let start = Self.authorityStart(bytes, range) else { return nil }
            pathStart = start
            while pathStart < range.upperBound, !Self.endsAuthority(bytes[pathStart]) { pathStart += 1 }
            let authority = start..<pathStart
            guard Self.isHost(bytes, authority) else { return nil }
            self.authority = authority
        }
        var index = pathStart
        var question: Int?
        while index < range.upperBound {
            let byte = bytes[index]
            if byte == UInt8(ascii: "%") {
                guard index + 2 < range.upperBound, ByteClass.hexValue(bytes[index + 1]) != nil,
                    ByteClass.hexValue(bytes[index + 2]) != nil
                else { return nil }
                index += 3
                continue
            }
            if byte == UInt8(ascii: "?") {
                if question == nil { question = index }
            } else if byte != UInt8(ascii: "/"), !ByteClass.isPathCharacter(byte) {
                return nil
            }
            index += 1
        }
        path = pathStart..<(question ?? range.upperBound)
        query = question.map { $0 + 1..<range.upperBound }
    }

    /// `uri-host [ ":" port ]` (RFC 9110 §7.2), with a host that is not empty.
    static func isHost(_ bytes: Span<UInt8>, _ range: Range<Int>) -> Bool {
        guard let first = range.first else { return false }
        var end = first
        if bytes[first] == UInt8(ascii: "[") {
            end += 1
            while end < range.upperBound, isIPv6Character(bytes[end]) { end += 1 }
            guard end > first + 2, end < range.upperBound, bytes[end] == UInt8(ascii: "]") else { return false }
            end += 1
        } else {
            while end < range.upperBound {
                if bytes[end] == UInt8(ascii: "%") {
                    guard end + 2 < range.upperBound, ByteClass.hexValue(bytes[end + 1]) != nil,
                        ByteClass.hexValue(bytes[end + 2]) != nil
                    else { return false }
                    end += 3
                } else if ByteClass.isHostCharacter(bytes[end]) {
                    end += 1
                } else {
                    break
                }
            }
            guard end > first else { return false }
        }
        if end == range.upperBound { return true }
        guard bytes[end] == UInt8(ascii: ":") else { return false }
        var port = 0
        for index in end + 1..<range.upperBound {
            guard ByteClass.isDigit(bytes[index]) else { return false }
            port = port * 10 + Int(bytes[index] - UInt8(ascii: "0"))
            guard port <= 65_535 else { return false }
        }
        return true
    }

    private static func isIPv6Character(_ byte: UInt8) -> Bool {
        ByteClass.hexValue(byte) != nil || byte == UInt8(ascii: ":") || byte == UInt8(ascii: ".")
    }

    private static func endsAuthority(_ byte: UInt8) -> Bool {
        byte == UInt8(ascii: "/") || byte == UInt8(ascii: "?")
    }

    /// Where the authority begins after `http://` or `https://`; schemes compare without case (RFC 3986 §3.1).
    private static func authorityStart(_ bytes: Span<UInt8>, _ range: Range<Int>) -> Int? {
        for scheme in ["http://", "https://"] {
            let wanted = scheme.utf8.span
            guard range.count > wanted.count else { continue }
            let matches = wanted.indices.allSatisfy {
                ByteClass.lowercased(bytes[range.lowerBound + $0]) == wanted[$0]
            }
            if matches { return range.lowerBound + wanted.count }
        }
        return nil
    }
}
