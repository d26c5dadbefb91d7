/// The head of a plain request, as nearly all are: a GET in origin form without content, whose fields ask nothing of the
/// connection but perhaps its end. It is read in one go and as offsets, without an allocation.
///
/// What is not plain, or has not all arrived, is `RequestParser`'s to judge. What is plain, that parser would have read
/// in the same way: this is a narrower reader of the same grammar, so that no two readers disagree about a request.
package struct PlainHead {
    /// From the first byte of the request line to the end of the empty line.
    package private(set) var length = 0
    /// Without escapes.
    package private(set) var path = 0..<0
    /// What follows the first `?`, without escapes; nil without one.
    package private(set) var query: Range<Int>?
    /// The value of the one Authorization field; nil without one.
    package private(set) var authorization: Range<Int>?
    /// The value of the one If-None-Match field; nil without one.
    package private(set) var ifNoneMatch: Range<Int>?
    /// Whether the client wants the connection closed after the answer.
    package private(set) var closes = false

    private enum Name {
        case host, authorization, ifNoneMatch, connection
        /// Says nothing about the framing, the connection, or the answers of this service.
        case indifferent
    }

    /// - Parameter bytes: what has arrived, from the head's first byte on. What follows the head is not looked at.
    package init?(_ bytes: Span<UInt8>, limits: RequestLimits) {
        guard let targetEnd = readTarget(bytes) else { return nil }
        // `HTTP/1.1`, and the end of the line.
        guard ByteRun.matches(bytes, targetEnd + 1, 0x312e_312f_5054_5448),
            targetEnd + 11 <= min(bytes.count, limits.requestLineBytes + 2),
            bytes[targetEnd + 9] == UInt8(ascii: "\r"), bytes[targetEnd + 10] == UInt8(ascii: "\n")
        else { return nil }
        var index = targetEnd + 11
        var hasHost = false
        for _ in 0...limits.fieldCount {
            guard index + 1 < bytes.count else { return nil }
            if bytes[index] == UInt8(ascii: "\r") {
                guard bytes[index + 1] == UInt8(ascii: "\n"), hasHost, index + 2 <= limits.headBytes else { return nil }
                length = index + 2
                return
            }
            guard let (name, colon) = Self.readName(bytes, index) else { return nil }
            let end = ByteRun.visibleEnd(bytes, from: colon + 1)
            guard end + 1 < bytes.count, bytes[end] == UInt8(ascii: "\r"), bytes[end + 1] == UInt8(ascii: "\n")
            else { return nil }
            var (first, last) = (colon + 1, end)
            while first < last, bytes[first] == UInt8(ascii: " ") { first += 1 }
            while last > first, bytes[last - 1] == UInt8(ascii: " ") { last -= 1 }
            switch name {
            case .indifferent: break
            case .host:
                guard !hasHost, RequestTarget.isHost(bytes, first..<last) else { return nil }
                hasHost = true
            case .authorization:
                guard authorization == nil else { return nil }
                authorization = first..<last
            case .ifNoneMatch:
                guard ifNoneMatch == nil else { return nil }
                ifNoneMatch = first..<last
            case .connection:
                guard let closes = Self.closes(bytes, first..<last) else { return nil }
                self.closes = self.closes || closes
            }
            index = end + 2
        }
        return nil
    }

    /// Reads `GET SP origin-form`; returns where the target ends.
    private mutating func readTarget(_ bytes: Span<UInt8>) -> Int? {
        // `GET /`
        guard ByteRun.matches(bytes, 0, 0x2f_2054_4547, fold: ~0xff_ffff_ffff) else { return nil }
        var index = 5
        while index < bytes.count, ByteClass.isPathCharacter(bytes[index]) || bytes[index] == UInt8(ascii: "/") {
            index += 1
        }
        path = 4..<index
        guard index < bytes.count else { return nil }
        if bytes[index] == UInt8(ascii: "?") {
            let start = index + 1
            index = start
            while index < bytes.count,
                ByteClass.isPathCharacter(bytes[index]) || bytes[index] == UInt8(ascii: "/")
                    || bytes[index] == UInt8(ascii: "?")
            {
                index += 1
            }
            query = start..<index
        }
        return index < bytes.count && bytes[index] == UInt8(ascii: " ") ? index : nil
    }

    /// The field name at `start`, and where its colon is. Nil for what is no name, and for one whose field steers what
    /// is not plain.
    private static func readName(_ bytes: Span<UInt8>, _ start: Int) -> (Name, colon: Int)? {
        var colon = start
        while colon < bytes.count, ByteClass.isToken(bytes[colon]) { colon += 1 }
        guard colon > start, colon < bytes.count, bytes[colon] == UInt8(ascii: ":") else { return nil }
        // The length tells the fields that matter from nearly all others at the price of one switch.
        switch colon - start {
        case 4: return (equal(bytes, start, "host") ? .host : .indifferent, colon)
        case 6 where equal(bytes, start, "expect") || equal(bytes, start, "prefer"): return nil
        case 8 where equal(bytes, start, "x-tenant"): return nil
        case 10: return (equal(bytes, start, "connection") ? .connection : .indifferent, colon)
        case 13:
            if equal(bytes, start, "authorization") { return (.authorization, colon) }
            return (equal(bytes, start, "if-none-match") ? .ifNoneMatch : .indifferent, colon)
        case 14 where equal(bytes, start, "content-length"): return nil
        case 17 where equal(bytes, start, "transfer-encoding"): return nil
        default: return (.indifferent, colon)
        }
    }

    /// `keep-alive` or `close`, alone; nil for anything else.
    private static func closes(_ bytes: Span<UInt8>, _ value: Range<Int>) -> Bool? {
        if value.count == 5, equal(bytes, value.lowerBound, "close") { return true }
        if value.count == 10, equal(bytes, value.lowerBound, "keep-alive") { return false }
        return nil
    }

    /// Whether the text, which is in lower case, stands at `start` in whatever case.
    private static func equal(_ bytes: Span<UInt8>, _ start: Int, _ text: StaticString) -> Bool {
        let count = text.utf8CodeUnitCount
        guard start + count <= bytes.count else { return false }
        return text.withUTF8Buffer { text in
            for index in 0..<count where ByteClass.lowercased(bytes[start + index]) != (unsafe text[index]) {
                return false
            }
            return true
        }
    }
}
