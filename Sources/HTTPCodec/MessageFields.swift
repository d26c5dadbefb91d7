/// What the fields that steer a message say: its length, its connection's fate, its host (RFC 9112 §6, §9.3, §3.2).
///
/// One pass over the field lines. Nothing here forgives: two lengths, even equal ones, or a length beside a transfer
/// coding are how two readers come to see two different streams.
struct MessageFields {
    enum Fault: Error, Equatable {
        /// Content-Length repeated, a list, signed, empty, not decimal, or beyond 2^63 - 1.
        case contentLength
        /// Content-Length beside Transfer-Encoding.
        case conflictingLength
        /// Transfer-Encoding is not allowed, breaks its grammar, applies chunked twice or does not end with it.
        case transferEncoding
        /// A coding other than chunked.
        case unknownTransferCoding
        /// More than one Host.
        case repeatedHost
    }

    enum Expectation {
        case none, `continue`, unknown
    }

    private(set) var contentLength: Int?
    private(set) var isChunked = false
    private(set) var hasClose = false
    private(set) var hasKeepAlive = false
    private(set) var host: Range<Int>?
    private(set) var expectation = Expectation.none
    private var hasTransferEncoding = false
    private var codings = Codings()

    /// How the members of Transfer-Encoding follow each other, over all its lines.
    private struct Codings {
        var hasUnknown = false
        var chunkedCount = 0
        var endsInChunked = false
    }

    /// - Parameter allowsTransferEncoding: false for HTTP/1.0, where the field means that somebody on the way has
    ///   misread the framing (RFC 9112 §6.1).
    init(_ fields: Fields, allowsTransferEncoding: Bool) throws(Fault) {
        for line in fields.lines {
            // The length of the name tells the steering fields from nearly all others at the price of one switch.
            switch line.nameLength {
            case 4 where fields.isNamed(line, "host".utf8.span):
                guard host == nil else { throw .repeatedHost }
                host = line.value
            case 6 where fields.isNamed(line, "expect".utf8.span):
                let isContinue = Self.equals(fields.bytes, line.value, "100-continue")
                expectation = isContinue && expectation != .unknown ? .continue : .unknown
            case 10 where fields.isNamed(line, "connection".utf8.span):
                readConnection(fields.bytes, line.value)
            case 14 where fields.isNamed(line, "content-length".utf8.span):
                guard contentLength == nil else { throw .contentLength }
                contentLength = try Self.decimal(fields.bytes, line.value)
            case 17 where fields.isNamed(line, "transfer-encoding".utf8.span):
                guard allowsTransferEncoding else { throw .transferEncoding }
                hasTransferEncoding = true
                try readTransferEncoding(fields.bytes, line.value)
            default:
                break
            }
        }
        guard hasTransferEncoding else { return }
        guard contentLength == nil else { throw .conflictingLength }
        // RFC 9112 §6.3: a request whose last coding is not chunked has no reliable length, whatever the others are.
        guard codings.endsInChunked, codings.chunkedCount == 1 else { throw .transferEncoding }
        guard !codings.hasUnknown else { throw .unknownTransferCoding }
        isChunked = true
    }

    private mutating func readConnection(_ bytes: [UInt8], _ value: Range<Int>) {
        var start = value.lowerBound
        while start <= value.upperBound {
            let member = Self.nextMember(bytes, start..<value.upperBound)
            if Self.equals(bytes, member.trimmed, "close") { hasClose = true }
            if Self.equals(bytes, member.trimmed, "keep-alive") { hasKeepAlive = true }
            start = member.end + 1
        }
    }

    private mutating func readTransferEncoding(_ bytes: [UInt8], _ value: Range<Int>) throws(Fault) {
        var start = value.lowerBound
        while start <= value.upperBound {
            let member = Self.nextMember(bytes, start..<value.upperBound)
            let isChunked = Self.equals(bytes, member.trimmed, "chunked")
            if isChunked {
                codings.chunkedCount += 1
            } else {
                let name = bytes[member.trimmed].prefix(while: ByteClass.isToken)
                let rest = bytes[name.endIndex..<member.trimmed.upperBound].drop(while: ByteClass.isWhitespace)
                guard !name.isEmpty, rest.isEmpty || rest.first == UInt8(ascii: ";"),
                    !Self.equals(bytes, name.startIndex..<name.endIndex, "chunked")
                else { throw .transferEncoding }
                codings.hasUnknown = true
            }
            codings.endsInChunked = isChunked
            start = member.end + 1
        }
    }

    /// The list member at the beginning of `range`, and where its comma or the range's end is.
    private static func nextMember(_ bytes: [UInt8], _ range: Range<Int>) -> (trimmed: Range<Int>, end: Int) {
        var end = range.lowerBound
        while end < range.upperBound, bytes[end] != UInt8(ascii: ",") { end += 1 }
        var (first, last) = (range.lowerBound, end)
        while first < last, ByteClass.isWhitespace(bytes[first]) { first += 1 }
        while last > first, ByteClass.isWhitespace(bytes[last - 1]) { last -= 1 }
        return (first..<last, end)
    }

    private static func equals(_ bytes: [UInt8], _ range: Range<Int>, _ lowercase: String) -> Bool {
        let wanted = lowercase.utf8.span
        guard range.count == wanted.count else { return false }
        for index in wanted.indices
        where ByteClass.lowercased(bytes[range.lowerBound + index]) != wanted[index] {
            return false
        }
        return true
    }

    private static func decimal(_ bytes: [UInt8], _ range: Range<Int>) throws(Fault) -> Int {
        guard !range.isEmpty else { throw .contentLength }
        var value = 0
        for byte in bytes[range] {
            guard ByteClass.isDigit(byte) else { throw .contentLength }
            let (product, overflow) = value.multipliedReportingOverflow(by: 10)
            let (sum, carried) = product.addingReportingOverflow(Int(byte - UInt8(ascii: "0")))
            guard !overflow, !carried else { throw .contentLength }
            value = sum
        }
        return value
    }
}
