/// One field line as offsets into the bytes that it was read from (RFC 9112 §5): `field-name ":" OWS field-value OWS`.
package struct FieldLine: Sendable {
    struct Malformed: Error, Equatable {}

    private let nameStart: UInt32
    private let nameEnd: UInt32
    private let valueStart: UInt32
    private let valueEnd: UInt32
    /// The known name of the field.
    package let known: FieldName

    /// - Parameter bytes: the bytes that the ranges refer to.
    init(_ bytes: Span<UInt8>, name: Range<Int>, value: Range<Int>) {
        self.init(FieldName(bytes, name), name, value)
    }

    private init(_ known: FieldName, _ name: Range<Int>, _ value: Range<Int>) {
        self.known = known
        nameStart = UInt32(truncatingIfNeeded: name.lowerBound)
        nameEnd = UInt32(truncatingIfNeeded: name.upperBound)
        valueStart = UInt32(truncatingIfNeeded: value.lowerBound)
        valueEnd = UInt32(truncatingIfNeeded: value.upperBound)
    }

    package var name: Range<Int> { Int(nameStart)..<Int(nameEnd) }
    package var value: Range<Int> { Int(valueStart)..<Int(valueEnd) }

    /// Reads a line whose bytes contain no forbidden control characters.
    ///
    /// White space before the colon, or at the start of the line (a folded line, RFC 9112 §5.2), is not part of a token
    /// and is refused.
    static func parse(_ bytes: Span<UInt8>, _ line: Range<Int>) throws(Malformed) -> FieldLine {
        let (known, colon) = try readName(bytes, line)
        var first = colon + 1
        var end = line.upperBound
        while first < end, ByteClass.isWhitespace(bytes[first]) { first += 1 }
        while end > first, ByteClass.isWhitespace(bytes[end - 1]) { end -= 1 }
        return FieldLine(known, line.lowerBound..<colon, first..<end)
    }

    /// The name at the beginning of the line, and the index of its colon.
    @inline(__always)
    private static func readName(
        _ bytes: Span<UInt8>, _ line: Range<Int>
    ) throws(Malformed) -> (FieldName, colon: Int) {
        // Nearly every request has these two names, so they are compared as whole words first.
        if ByteRun.has("host:", bytes, at: line.lowerBound) { return (.host, line.lowerBound + 4) }
        if ByteRun.has("authorization:", bytes, at: line.lowerBound) { return (.authorization, line.lowerBound + 13) }
        let colon = ByteRun.end(of: .token, bytes, from: line.lowerBound)
        guard colon > line.lowerBound, colon < line.upperBound, bytes[colon] == UInt8(ascii: ":") else {
            throw Malformed()
        }
        return (FieldName(bytes, line.lowerBound..<colon), colon)
    }
}
