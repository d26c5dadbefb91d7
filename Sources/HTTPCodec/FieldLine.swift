/// The syntax of one field line (RFC 9112 §5): `field-name ":" OWS field-value OWS`.
enum FieldLine {
    struct Malformed: Error, Equatable {}

    /// Reads a line whose bytes hold no forbidden controls.
    ///
    /// White space before the colon or at the start of the line (a folded line, RFC 9112 §5.2) is not part of a token,
    /// so both are refused.
    static func parse(_ bytes: Span<UInt8>, _ line: Range<Int>) throws(Malformed) -> Fields.Line {
        var colon = line.lowerBound
        while colon < line.upperBound, ByteClass.isToken(bytes[colon]) { colon += 1 }
        guard colon > line.lowerBound, colon < line.upperBound, bytes[colon] == UInt8(ascii: ":") else {
            throw Malformed()
        }
        var first = colon + 1
        var end = line.upperBound
        while first < end, ByteClass.isWhitespace(bytes[first]) { first += 1 }
        while end > first, ByteClass.isWhitespace(bytes[end - 1]) { end -= 1 }
        return Fields.Line(name: line.lowerBound..<colon, value: first..<end)
    }
}
