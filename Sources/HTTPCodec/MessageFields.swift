/// The fields that control a message: its length, the persistence of its connection, its host (RFC 9112 §6, §9.3,
/// §3.2).
///
/// Read in one pass over the field lines. Two lengths, even equal ones, are refused, and so is a length together with a
/// transfer coding, because two readers could otherwise see two different streams.
struct MessageFields {
    enum Fault: Error, Equatable {
        /// Content-Length is repeated, a list, signed, empty, not decimal, or greater than 2^63 - 1.
        case contentLength
        /// Content-Length together with Transfer-Encoding.
        case conflictingLength
        /// Transfer-Encoding is not allowed, violates its grammar, applies chunked twice or does not end with it.
        case transferEncoding
        /// A coding other than chunked.
        case unknownTransferCoding
        /// There is more than one Host.
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

    /// The transfer codings of all lines, in order.
    private struct Codings {
        var hasUnknown = false
        var chunkedCount = 0
        var endsInChunked = false
    }

    /// A bit for each of the field names that are read here.
    static var names: UInt16 {
        FieldName.host.bit | FieldName.expect.bit | FieldName.connection.bit | FieldName.contentLength.bit
            | FieldName.transferEncoding.bit
    }

    /// A message whose only field of these is one Host.
    init(host: Range<Int>) {
        self.host = host
    }

    /// - Parameter allowsTransferEncoding: false for HTTP/1.0, where the field means that an intermediary has misread
    ///   the framing (RFC 9112 §6.1).
    init(_ bytes: Span<UInt8>, _ lines: Span<FieldLine>, allowsTransferEncoding: Bool) throws(Fault) {
        for index in lines.indices {
            let line = lines[index]
            switch line.known {
            case .host:
                guard host == nil else { throw .repeatedHost }
                host = line.value
            case .expect:
                let isContinue = Self.equals(bytes, line.value, "100-continue")
                expectation = isContinue && expectation != .unknown ? .continue : .unknown
            case .connection:
                readConnection(bytes, line.value)
            case .contentLength:
                guard contentLength == nil else { throw .contentLength }
                contentLength = try Self.decimal(bytes, line.value)
            case .transferEncoding:
                guard allowsTransferEncoding else { throw .transferEncoding }
                hasTransferEncoding = true
                try readTransferEncoding(bytes, line.value)
            case .other, .authorization, .ifNoneMatch, .prefer, .tenant, .proof:
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

    private mutating func readConnection(_ bytes: Span<UInt8>, _ value: Range<Int>) {
        var start = value.lowerBound
        while start <= value.upperBound {
            let member = Self.nextMember(bytes, start..<value.upperBound)
            if Self.equals(bytes, member.trimmed, "close") { hasClose = true }
            if Self.equals(bytes, member.trimmed, "keep-alive") { hasKeepAlive = true }
            start = member.end + 1
        }
    }

    private mutating func readTransferEncoding(_ bytes: Span<UInt8>, _ value: Range<Int>) throws(Fault) {
        var start = value.lowerBound
        while start <= value.upperBound {
            let member = Self.nextMember(bytes, start..<value.upperBound)
            let isChunked = Self.equals(bytes, member.trimmed, "chunked")
            if isChunked {
                codings.chunkedCount += 1
            } else {
                let name = member.trimmed.lowerBound..<Self.tokenEnd(bytes, member.trimmed)
                var rest = name.upperBound
                while rest < member.trimmed.upperBound, ByteClass.isWhitespace(bytes[rest]) { rest += 1 }
                guard !name.isEmpty, rest == member.trimmed.upperBound || bytes[rest] == UInt8(ascii: ";"),
                    !Self.equals(bytes, name, "chunked")
                else { throw .transferEncoding }
                codings.hasUnknown = true
            }
            codings.endsInChunked = isChunked
            start = member.end + 1
        }
    }

    /// The list member at the beginning of `range`, and the index of its comma or the range's end.
    private static func nextMember(_ bytes: Span<UInt8>, _ range: Range<Int>) -> (trimmed: Range<Int>, end: Int) {
        var end = range.lowerBound
        while end < range.upperBound, bytes[end] != UInt8(ascii: ",") { end += 1 }
        var (first, last) = (range.lowerBound, end)
        while first < last, ByteClass.isWhitespace(bytes[first]) { first += 1 }
        while last > first, ByteClass.isWhitespace(bytes[last - 1]) { last -= 1 }
        return (first..<last, end)
    }

    private static func tokenEnd(_ bytes: Span<UInt8>, _ range: Range<Int>) -> Int {
        var end = range.lowerBound
        while end < range.upperBound, ByteClass.isToken(bytes[end]) { end += 1 }
        return end
    }

    private static func equals(_ bytes: Span<UInt8>, _ range: Range<Int>, _ lowercase: StaticString) -> Bool {
        range.count == lowercase.utf8CodeUnitCount && ByteRun.has(lowercase, bytes, at: range.lowerBound)
    }

    private static func decimal(_ bytes: Span<UInt8>, _ range: Range<Int>) throws(Fault) -> Int {
        guard !range.isEmpty else { throw .contentLength }
        var value = 0
        for index in range {
            let byte = bytes[index]
            guard ByteClass.isDigit(byte) else { throw .contentLength }
            let (product, overflow) = value.multipliedReportingOverflow(by: 10)
            let (sum, carried) = product.addingReportingOverflow(Int(byte - UInt8(ascii: "0")))
            guard !overflow, !carried else { throw .contentLength }
            value = sum
        }
        return value
    }
}
