/// The common part of both encoders. All fields are checked before the first byte is written, so a fault leaves the
/// output unchanged.
enum FieldEncoding {
    /// Refuses names and values that would end a field line early, and fields that only the encoder may write.
    static func check(_ fields: Fields, reserved: [String]) throws(EncodingFault) {
        for line in fields.lines {
            guard !line.name.isEmpty, fields.bytes[line.name].allSatisfy(ByteClass.isToken) else { throw .fieldName }
            guard !fields.bytes[line.value].contains(where: ByteClass.isForbiddenControl) else { throw .fieldValue }
            for name in reserved where fields.isNamed(line, name.utf8.span) { throw .reservedField }
        }
    }

    static func append(_ fields: Fields, to output: inout [UInt8]) {
        for line in fields.lines {
            output.append(contentsOf: fields.bytes[line.name])
            output.append(contentsOf: ": ".utf8)
            output.append(contentsOf: fields.bytes[line.value])
            output.append(contentsOf: "\r\n".utf8)
        }
    }

    static func append(_ fields: Fields, to output: OutputBuffer) {
        let bytes = fields.bytes.span
        for line in fields.lines {
            output.append(bytes.extracting(line.name))
            output.append(": ")
            output.append(bytes.extracting(line.value))
            output.append("\r\n")
        }
    }

    /// Appends a decimal number without allocating a string.
    static func append(decimal value: Int, to output: inout [UInt8]) {
        var digits: [20 of UInt8] = .init(repeating: 0)
        var (rest, first) = (value, 20)
        repeat {
            first -= 1
            digits[first] = UInt8(ascii: "0") + UInt8(rest % 10)
            rest /= 10
        } while rest > 0
        for index in first..<20 { output.append(digits[index]) }
    }

    /// Appends a hexadecimal number, as in a chunk's size, without allocating a string.
    static func append(hexadecimal value: Int, to output: inout [UInt8]) {
        var shift = (Int.bitWidth - 1 - max(value, 1).leadingZeroBitCount) & ~3
        while shift >= 0 {
            let digit = UInt8(value >> shift & 0xf)
            output.append(digit < 10 ? UInt8(ascii: "0") + digit : UInt8(ascii: "a") + digit - 10)
            shift -= 4
        }
    }
}
