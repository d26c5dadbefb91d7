/// The head of a plain request, as nearly all are: a GET of one path in origin form, without content, whose fields ask
/// nothing of the connection but perhaps its end. It is read in one go and as offsets, without an allocation.
///
/// What is not plain, or has not all arrived, is `RequestParser`'s to judge. What is plain, that parser would have read
/// in the same way: this is a narrower reader of the same grammar, so that no two readers disagree about a request.
package struct PlainHead {
    /// From the first byte of the request line to the end of the empty line.
    package private(set) var length = 0
    /// Of the request line, without its end.
    package private(set) var requestLineLength = 0
    /// What follows the `?` behind the path; nil without one. It was not looked at: whoever takes it refuses what has no
    /// place in a query (RFC 3986 §3.4).
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

    /// - Parameters:
    ///   - bytes: what has arrived, from the head's first byte on. What follows the head is not looked at.
    ///   - start: `GET`, a space, and the path.
    package init?(_ bytes: Span<UInt8>, start: StaticString, limits: RequestLimits) {
        guard let targetEnd = readTarget(bytes, start) else { return nil }
        guard targetEnd + 11 <= min(bytes.count, limits.requestLineBytes + 2),
            ByteRun.hasExactly("HTTP/1.1\r\n", bytes, at: targetEnd + 1)
        else { return nil }
        var index = targetEnd + 11
        requestLineLength = targetEnd + 9
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

    /// Returns where the target ends.
    @inline(__always)
    private mutating func readTarget(_ bytes: Span<UInt8>, _ start: StaticString) -> Int? {
        guard ByteRun.hasExactly(start, bytes, at: 0) else { return nil }
        var end = start.utf8CodeUnitCount
        guard end < bytes.count else { return nil }
        if bytes[end] == UInt8(ascii: "?") {
            let first = end + 1
            end = first
            while end < bytes.count, bytes[end] > 0x20 { end += 1 }
            query = first..<end
        }
        return end < bytes.count && bytes[end] == UInt8(ascii: " ") ? end : nil
    }

    /// The field name at `start`, and where its colon is. Nil for what is no name, and for one whose field steers what
    /// is not plain.
    @inline(__always)
    private static func readName(_ bytes: Span<UInt8>, _ start: Int) -> (Name, colon: Int)? {
        if ByteRun.has("host:", bytes, at: start) { return (.host, start + 4) }
        if ByteRun.has("authorization:", bytes, at: start) { return (.authorization, start + 13) }
        return readOtherName(bytes, start)
    }

    @inline(never)
    private static func readOtherName(_ bytes: Span<UInt8>, _ start: Int) -> (Name, colon: Int)? {
        let colon = ByteRun.end(of: ByteClass.tokenSet, bytes, from: start)
        guard colon > start, colon < bytes.count, bytes[colon] == UInt8(ascii: ":") else { return nil }
        // The length tells the fields that matter from nearly all others at the price of one switch.
        switch colon - start {
        case 6 where ByteRun.has("expect", bytes, at: start) || ByteRun.has("prefer", bytes, at: start): return nil
        case 8 where ByteRun.has("x-tenant", bytes, at: start): return nil
        case 10 where ByteRun.has("connection", bytes, at: start): return (.connection, colon)
        case 13 where ByteRun.has("if-none-match", bytes, at: start): return (.ifNoneMatch, colon)
        case 14 where ByteRun.has("content-length", bytes, at: start): return nil
        case 17 where ByteRun.has("transfer-encoding", bytes, at: start): return nil
        default: return (.indifferent, colon)
        }
    }

    /// `keep-alive` or `close`, alone; nil for anything else.
    private static func closes(_ bytes: Span<UInt8>, _ value: Range<Int>) -> Bool? {
        if value.count == 5, ByteRun.has("close", bytes, at: value.lowerBound) { return true }
        if value.count == 10, ByteRun.has("keep-alive", bytes, at: value.lowerBound) { return false }
        return nil
    }

    /// The token of a value that is the scheme `Bearer`, in whatever case, one space and the token (RFC 6750 §2.1), of
    /// 512 bytes at most.
    package static func bearerToken(_ bytes: Span<UInt8>, _ value: Range<Int>) -> Range<Int>? {
        guard value.count > 7, value.count <= 7 + 512, ByteRun.has("bearer ", bytes, at: value.lowerBound)
        else { return nil }
        let token = value.lowerBound + 7..<value.upperBound
        // The head's values are visible ASCII and spaces.
        return ByteRun.hasSpace(bytes, token) ? nil : token
    }
}
