/// Percent-encoding (RFC 3986 §2.1) and `application/x-www-form-urlencoded` (WHATWG URL §5).
package enum FormEncoding {
    package struct Pair: Sendable, Equatable {
        package let name: String
        package let value: String

        package init(_ name: String, _ value: String) {
            self.name = name
            self.value = value
        }
    }

    /// Text that is not a sequence of well-formed pairs: a broken percent escape or bytes that are not UTF-8.
    package struct Malformed: Error, Equatable {}

    /// `a=1&b=2`, with every byte outside RFC 3986's unreserved set as %XX; a space is %20, which every form decoder
    /// and every URL query takes.
    package static func encode(_ pairs: [Pair]) -> String {
        var bytes: [UInt8] = []
        bytes.reserveCapacity(pairs.reduce(0) { $0 + $1.name.utf8.count + $1.value.utf8.count + 2 })
        for pair in pairs {
            if !bytes.isEmpty { bytes.append(UInt8(ascii: "&")) }
            append(pair.name, to: &bytes)
            bytes.append(UInt8(ascii: "="))
            append(pair.value, to: &bytes)
        }
        return String(decoding: bytes, as: UTF8.self)
    }

    /// Reads pairs in order, repeated names included. `+` is a space; a name without `=` has an empty value; empty
    /// pieces between ampersands are skipped.
    package static func decode(_ text: String) throws(Malformed) -> [Pair] {
        var pairs: [Pair] = []
        var rest = text.utf8[...]
        while !rest.isEmpty {
            let piece = rest.prefix { $0 != UInt8(ascii: "&") }
            rest = rest[piece.endIndex...].dropFirst()
            if piece.isEmpty { continue }
            let name = piece.prefix { $0 != UInt8(ascii: "=") }
            pairs.append(Pair(try formDecode(name), try formDecode(piece[name.endIndex...].dropFirst())))
        }
        return pairs
    }

    private static func formDecode(_ text: Substring.UTF8View) throws(Malformed) -> String {
        // Nearly everything stands there as it is.
        if text.allSatisfy({ $0 != UInt8(ascii: "%") && $0 != UInt8(ascii: "+") }) { return String(Substring(text)) }
        return try percentDecode(text, plusIsSpace: true)
    }

    package static func percentEncode(_ text: String) -> String {
        if text.utf8.allSatisfy(isUnreserved) { return text }
        var bytes: [UInt8] = []
        append(text, to: &bytes)
        return String(decoding: bytes, as: UTF8.self)
    }

    private static func append(_ text: String, to bytes: inout [UInt8]) {
        let text = text.utf8.span
        for index in text.indices {
            let byte = text[index]
            if isUnreserved(byte) {
                bytes.append(byte)
            } else {
                bytes.append(UInt8(ascii: "%"))
                bytes.append(hexDigit(byte >> 4))
                bytes.append(hexDigit(byte & 15))
            }
        }
    }

    package static func percentDecode(
        _ bytes: some Sequence<UInt8>, plusIsSpace: Bool = false
    ) throws(Malformed) -> String {
        var result: [UInt8] = []
        var iterator = bytes.makeIterator()
        while let byte = iterator.next() {
            switch byte {
            case UInt8(ascii: "%"):
                guard let high = iterator.next().flatMap(ByteClass.hexValue),
                    let low = iterator.next().flatMap(ByteClass.hexValue)
                else { throw Malformed() }
                result.append(high << 4 | low)
            case UInt8(ascii: "+") where plusIsSpace:
                result.append(UInt8(ascii: " "))
            default:
                result.append(byte)
            }
        }
        guard let text = String(validating: result, as: UTF8.self) else { throw Malformed() }
        return text
    }

    private static func isUnreserved(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "a")...UInt8(ascii: "z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "."), UInt8(ascii: "_"),
            UInt8(ascii: "~"):
            true
        default: false
        }
    }

    private static func hexDigit(_ value: UInt8) -> UInt8 {
        value < 10 ? UInt8(ascii: "0") + value : UInt8(ascii: "A") + value - 10
    }
}
