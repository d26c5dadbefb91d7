/// The parts of a request target as offsets into the head (RFC 9112 §3.2).
struct RequestTarget {
    /// Empty in an absolute-form target without a path.
    var path: Range<Int>
    var query: Range<Int>?
    /// Present in absolute form only.
    var authority: Range<Int>?

    /// Reads origin-form, absolute-form (`http` and `https`) or asterisk-form. Nil for other texts, including
    /// fragments, broken percent escapes and characters that RFC 3986 does not allow.
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
        while true {
            index = ByteRun.end(of: .target, bytes, from: index)
            guard index < range.upperBound else { break }
            guard bytes[index] == UInt8(ascii: "%"), index + 2 < range.upperBound,
                ByteClass.hexValue(bytes[index + 1]) != nil, ByteClass.hexValue(bytes[index + 2]) != nil
            else { return nil }
            index += 3
        }
        let question = ByteRun.first(UInt8(ascii: "?"), bytes, pathStart..<range.upperBound)
        path = pathStart..<question
        query = question < range.upperBound ? question + 1..<range.upperBound : nil
    }

    /// `uri-host [ ":" port ]` (RFC 9110 §7.2), with a host that is not empty. A percent escape must stand for a
    /// character that is also allowed unescaped. No host name contains an escaped space, control character or
    /// delimiter, and a reader that decodes it would see another authority.
    static func isHost(_ bytes: Span<UInt8>, _ range: Range<Int>) -> Bool {
        guard let first = range.first else { return false }
        var end = first
        if bytes[first] == UInt8(ascii: "[") {
            guard let close = endOfIPv6(bytes, first + 1..<range.upperBound), close < range.upperBound,
                bytes[close] == UInt8(ascii: "]")
            else { return false }
            end = close + 1
        } else {
            while true {
                end = min(ByteRun.end(of: .host, bytes, from: end), range.upperBound)
                guard end < range.upperBound, bytes[end] == UInt8(ascii: "%") else { break }
                guard end + 2 < range.upperBound, let high = ByteClass.hexValue(bytes[end + 1]),
                    let low = ByteClass.hexValue(bytes[end + 2]), ByteClass.isHostCharacter(high << 4 | low)
                else { return false }
                end += 3
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

    /// The end of the IPv6 address at the beginning of the range (RFC 3986 §3.2.2); nil if there is none. An address
    /// has eight groups of up to four digits. `::` may replace one run of groups, and the last two may be written as an
    /// IPv4 address.
    private static func endOfIPv6(_ bytes: Span<UInt8>, _ range: Range<Int>) -> Int? {
        let colon = UInt8(ascii: ":")
        func isColon(_ index: Int) -> Bool { index < range.upperBound && bytes[index] == colon }
        var index = range.lowerBound
        var groups = 0
        var isShortened = false
        if isColon(index) {
            guard isColon(index + 1) else { return nil }
            isShortened = true
            index += 2
        }
        while index < range.upperBound, ByteClass.hexValue(bytes[index]) != nil {
            let start = index
            while index < range.upperBound, ByteClass.hexValue(bytes[index]) != nil { index += 1 }
            if index < range.upperBound, bytes[index] == UInt8(ascii: ".") {
                guard let end = endOfIPv4(bytes, start..<range.upperBound) else { return nil }
                groups += 2
                index = end
                break
            }
            guard index - start <= 4 else { return nil }
            groups += 1
            guard isColon(index) else { break }
            index += 1
            if isColon(index) {
                guard !isShortened else { return nil }
                isShortened = true
                index += 1
            } else if index == range.upperBound || ByteClass.hexValue(bytes[index]) == nil {
                return nil
            }
        }
        return isShortened ? (groups < 8 ? index : nil) : (groups == 8 ? index : nil)
    }

    private static func endOfIPv4(_ bytes: Span<UInt8>, _ range: Range<Int>) -> Int? {
        var index = range.lowerBound
        for part in 0..<4 {
            if part > 0 {
                guard index < range.upperBound, bytes[index] == UInt8(ascii: ".") else { return nil }
                index += 1
            }
            let start = index
            var value = 0
            while index < range.upperBound, index - start < 3, ByteClass.isDigit(bytes[index]) {
                value = value * 10 + Int(bytes[index] - UInt8(ascii: "0"))
                index += 1
            }
            let hasLeadingZero = index - start > 1 && bytes[start] == UInt8(ascii: "0")
            guard index > start, value <= 255, !hasLeadingZero else { return nil }
        }
        return index
    }

    private static func endsAuthority(_ byte: UInt8) -> Bool {
        byte == UInt8(ascii: "/") || byte == UInt8(ascii: "?")
    }

    /// The start of the authority after `http://` or `https://`. Schemes compare without case (RFC 3986 §3.1).
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
